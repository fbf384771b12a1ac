"""The error with which a script of examples/ or a part of `trl-credit` stops."""

from collections.abc import Callable
from typing import Any

import pytest


QUICK = ["--per_device_train_batch_size", "8", "--num_generations", "4", "--logging_steps", "1", "--algo", "grpo"]


def error_of(main: Callable, argv: list[Any], capsys: pytest.CaptureFixture, *, code: int = 2) -> str:
    """The line with which a script or a command stops, with this exit code, or a line for each of several errors."""
    capsys.readouterr()
    try:
        ended = main(list(map(str, argv)))
    except SystemExit as stop:
        ended = stop.code
    said = capsys.readouterr()
    assert ended == code, said.err
    lines = said.err.strip().splitlines()
    assert "Traceback" not in said.err and "usage:" not in said.err + said.out
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    assert lines and len(errors) == len(lines) or code == 1, said.err  # during a run a progress bar stands before it
    assert lines[-1].startswith("error: ")
    return "\n".join(errors)
