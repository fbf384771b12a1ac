"""The scripts of examples/ as modules, and the error with which one stops."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICK = ["--per_device_train_batch_size", "8", "--num_generations", "4", "--logging_steps", "1", "--algo", "grpo"]


def load(name: str) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_script", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def error_of(main: Callable, argv: list[Any], capsys: pytest.CaptureFixture, *, code: int = 2) -> str:
    """The one line with which a script stops, with this exit code."""
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, argv)))
    said = capsys.readouterr()
    assert stop.value.code == code, said.err
    lines = said.err.strip().splitlines()
    assert "Traceback" not in said.err and "usage:" not in said.err + said.out
    assert len(lines) == 1 or code == 1, said.err  # during a run a progress bar stands before it
    assert lines[-1].startswith("error: ")
    return lines[-1].removeprefix("error: ")
