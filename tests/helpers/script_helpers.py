"""The error with which a script of examples/ or a part of `trl-credit` stops."""

from collections.abc import Callable
from typing import Any

import pytest


QUICK = ["--per_device_train_batch_size", "8", "--num_generations", "4", "--logging_steps", "1", "--algo", "grpo"]


def error_of(main: Callable, argv: list[Any], capsys: pytest.CaptureFixture, *, code: int = 2) -> str:
    """The line with which a script or a command stops, with this exit code, or a line for each of several errors."""
    capsys.readouterr()
    try:
        exit_code = main(list(map(str, argv)))
    except SystemExit as stop:
        exit_code = stop.code
    printed = capsys.readouterr()
    assert exit_code == code, printed.err
    lines = printed.err.strip().splitlines()
    assert "Traceback" not in printed.err and "usage:" not in printed.err + printed.out
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    assert lines and len(errors) == len(lines) or code == 1, printed.err  # during a run a progress bar stands before it
    assert lines[-1].startswith("error: ")
    return "\n".join(errors)
