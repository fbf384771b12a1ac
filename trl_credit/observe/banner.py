"""The lines that a run begins with: what is trained, and how."""

import inspect
from collections.abc import Callable
from pathlib import PurePath
from typing import Protocol

from ..config.knobs import is_default
from ..demo import DEMO, agent_reward, demo_reward
from ..runs.identity import IdentifiedTrainer
from ..runs.model_identity import embedded_task
from ..support.functions import is_object_name, method_label
from .sampling import describe_preset, describe_sampling


class ShownTrainer(IdentifiedTrainer, Protocol):
    """The parts of a trainer that the banner describes."""

    @property
    def credit_method(self) -> Callable | None: ...


def banner(trainer: ShownTrainer) -> list[str]:
    """The algorithm with its custom credit function, the amount of data, what is sampled, the embedded task, and what
    the preset sets."""
    data, name = trainer.train_dataset, credit_name(trainer)
    rows = f" on {len(data):,} prompts" if hasattr(data, "__len__") else ""
    count = trainer.accelerator.num_processes
    processes = f", on {count} processes" if count > 1 else ""
    lines = [f"{name}{rows}: {describe_sampling(trainer.args)}{processes}"]
    if any(inspect.unwrap(reward) in (demo_reward, agent_reward) for reward in trainer.reward_funcs):
        task = embedded_task(trainer.accelerator.unwrap_model(trainer.model).config) or DEMO
        lines.append(f"embedded task: {task.description}; reward 1 if the last digit is right")
    if changed := describe_preset(trainer.args, trainer.algorithm_name):
        lines.append(changed)
    return lines


def credit_name(trainer: ShownTrainer) -> str:
    """The algorithm, with the user's credit function if there is one: "S-trace with credit mine.py:f"."""
    credit, name = _custom_credit(trainer), trainer.algorithm_name
    return name if credit is None else f"{name} with credit {credit}"


def _custom_credit(trainer: ShownTrainer) -> str | None:
    """The name of the user's credit function, without its folder, and without the digest of an object."""
    if trainer.credit_method is not None:
        return method_label(trainer.credit_method)
    name = trainer.args.credit
    if name is None or is_default(trainer.args, "credit"):  # the preset's own
        return None
    path, colon, function = name.rpartition(":")
    function = function.rpartition("@")[0] if is_object_name(function) else function
    return f"{PurePath(path).name}{colon}{function}"
