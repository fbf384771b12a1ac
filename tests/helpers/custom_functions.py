"""Custom functions by name, and runs with them."""

from pathlib import Path

import torch

from trl_credit import CreditConfig


FILE = Path(__file__).parents[1] / "data" / "own_functions.py"


def custom(name):
    """How a setting names a function of tests/data/own_functions.py."""
    return f"{FILE}:{name}"


def config(folder, **knobs):
    return CreditConfig(str(folder), report_to="none", **knobs)


def trained(make_trainer, folder, *args, **settings):
    trainer = make_trainer(*args, output_dir=str(folder), **settings)
    torch.manual_seed(3)
    trainer.train()
    return trainer
