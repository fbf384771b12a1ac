"""Custom functions by name, and runs with them."""

from pathlib import Path

from trl_credit import CreditConfig


FILE = Path(__file__).parents[1] / "data" / "own_functions.py"


def custom(name):
    """How a setting names a function of tests/data/own_functions.py."""
    return f"{FILE}:{name}"


def config(folder, **knobs):
    return CreditConfig(str(folder), report_to="none", **knobs)
