"""What the recipe of a finished run names: its data, its rewards, and how responses are sampled."""

import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset

from ..config import CreditConfig
from ..data import DataArguments
from ..hub.recipe import to_yaml
from ..lab.explain.sampling import SAMPLING
from ..runs.checkpoints import read_run
from ..settings.arguments import DEMO, parse_arguments
from ..settings.files import read_settings
from ..support.errors import one_line
from .training import make_data, make_rewards


RECIPE = "recipe.yaml"


class FinishedRun(NamedTuple):
    """The parts of a run that its responses depend on, besides its model."""

    args: CreditConfig
    data: Dataset
    rewards: list[Callable]


def finished_run(folder: Path) -> FinishedRun:
    """Reads the recipe of a run's folder and loads what it names. The rest of the recipe has no effect here: a run that
    needed several GPUs can be looked at without them.

    Raises:
        ValueError: there is no recipe, or it does not name data and rewards that can be loaded.
        OSError, ImportError: as [`~trl_credit.cli.training.make_data`] does.
    """
    recipe, what = folder / RECIPE, f"{folder} has no rollout log, and"
    fix = f"train with --log_credit 10, or give a JSONL file of responses, and --model {folder}"
    if not recipe.is_file():
        raise ValueError(f"{what} no {RECIPE} that names data and reward: {fix}")
    given = read_settings([str(recipe)])[0]
    names = {"reward", *SAMPLING, *(f.name for f in fields(DataArguments))}
    kept = {name: value for name, value in given.items() if name in names}
    is_demo = given.get("model_name_or_path", DEMO) == DEMO
    if "dataset_name" not in kept and not (is_demo and read_run(folder) is not None):
        raise ValueError(f"{what} its {RECIPE} names no data (a run from Python?): {fix}")
    kept = {"algo": "grpo", "model_name_or_path": DEMO if is_demo else str(folder), **kept}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, RECIPE)
        path.write_text(to_yaml(kept), encoding="utf-8")
        try:
            choices = parse_arguments(["--config", str(path)])
            rewards = make_rewards(choices)
            return FinishedRun(choices.args, make_data(choices, rewards), rewards)
        except ValueError as error:
            reason = one_line(error).replace(str(path), str(recipe))
            raise ValueError(f"{what} what its {RECIPE} names cannot be used: {reason}") from error
