"""What the folder of a finished run names: its data, its rewards, and how responses are sampled."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset

from ..config import CreditConfig
from ..data import DataArguments
from ..lab.evaluation.runs import check_trusted, read_training
from ..lab.explain.sampling import SAMPLING
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


def finished_run(folder: Path, *, reward: str | None = None, trust_run: bool = False) -> FinishedRun:
    """Loads what a run's folder names: `credit_run.json` of a run from the command line, else `recipe.yaml`. The rest
    of the recipe has no effect here: a run that needed several GPUs can be looked at without them. `reward` replaces
    those of the run, which are imported only with `trust_run` if they are not built in.

    Raises:
        ValueError: neither file names data and rewards, they cannot be loaded, or a reward is not built in.
        OSError, ImportError: as [`~trl_credit.cli.training.make_data`] does.
    """
    recipe, what, run = folder / RECIPE, f"{folder} has no rollout log, and", read_training(str(folder))
    names = {"reward", *SAMPLING, *(f.name for f in fields(DataArguments))}
    if run is not None and run.data is not None:
        settings = {name: run.record["identity"].get(name) for name in SAMPLING} | run.record["task"]
        model = str(folder)
    else:
        settings = read_settings([str(recipe)])[0] if recipe.is_file() else {}
        is_demo = bool(settings) and settings.get("model_name_or_path", DEMO) == DEMO
        # without a record nobody can tell a run on the embedded task from one from Python
        if "dataset_name" not in settings and not (is_demo and run is not None):
            fix = f"train with --log_credit 10, or give a JSONL file of responses, and --model {folder}"
            raise ValueError(f"{what} its {RECIPE} names no data (a run from Python?): {fix}")
        model = DEMO if is_demo else str(folder)
    kept = {name: value for name, value in settings.items() if name in names and value is not None}
    kept |= {"algo": "grpo", "model_name_or_path": model} | ({"reward": [reward]} if reward else {})
    try:
        choices = parse_arguments([], settings=kept)
        is_trusted = trust_run or reward is not None
        check_trusted(folder, choices.script.reward or (), command=["explain", str(folder)], trust_run=is_trusted)
        rewards = make_rewards(choices)
        return FinishedRun(choices.args, make_data(choices, rewards), rewards)
    except ValueError as error:
        raise ValueError(f"{what} what the run names cannot be used: {one_line(error)}") from error
