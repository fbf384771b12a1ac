"""Configurations by hand, and custom functions by name."""

from pathlib import Path

from trl_credit import CreditConfig


FILE = Path(__file__).parents[1] / "data" / "own_functions.py"


def custom(name):
    """How a setting names a function of tests/data/own_functions.py."""
    return f"{FILE}:{name}"


def config(folder, **knobs):
    return CreditConfig(str(folder), report_to="none", **knobs)


def args_of(config_class=CreditConfig, **knobs):
    return config_class(output_dir="unused", use_cpu=True, bf16=False, report_to="none", **knobs)
