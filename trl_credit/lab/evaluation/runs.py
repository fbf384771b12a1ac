"""Runs of `trl-credit train` as their folders describe them: data, rewards, decoding."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ...config.knobs import is_default
from ...data import DataArguments
from ...rewards import REWARDS
from ...runs.checkpoints import read_run
from ...support.files import short_path


_OF_FORM = ("format", "soft_overlong")  # rewards that do not say whether an answer is right
# fields of a run's identity, and the flag of `trl-credit eval` that stands for each
DECODING = {
    "temperature": "--temperature",
    "top_p": "--top_p",
    "top_k": "--top_k",
    "max_completion_length": "--max_new_tokens",
}
_FLAGS = {"data": "--sets", "prompt_style": "--prompt_style", "reward": "--reward", **DECODING}
_NOT_THE_SET = ("dataset_name", "prompt_style", "max_prompt_tokens", "decontaminate", "data_dir")


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        name: The folder, as it was given; that of the run or of a checkpoint.
        record: What [`~trl_credit.runs.checkpoints.read_run`] reads there.
        data: The flags of its data; `None` if it was not started by `trl-credit train`.
        rewards: The rewards that say whether a response is right, by name; without those of its form, and those of
            weight 0.
    """

    name: str
    record: dict[str, Any]
    data: DataArguments | None
    rewards: tuple[str, ...]

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that the run resumes with."""
        return self.record["identity"]

    @property
    def settings(self) -> dict[str, Any]:
        """What runs that are compared must agree on, by name."""
        decoding = {name: self.identity.get(name) for name in (*DECODING, "chat_template_kwargs")}
        if self.data is None:
            return decoding
        others = {f.name for f in fields(self.data) if f.name not in _NOT_THE_SET and not is_default(self.data, f.name)}
        data = [self.data.dataset_name, *(f"{name}={getattr(self.data, name)}" for name in sorted(others))]
        return {"data": " ".join(data), "prompt_style": self.data.prompt_style, "reward": self.rewards, **decoding}

    @property
    def reward(self) -> str:
        """The reward that says what is right. Raises `ValueError` if there are none or several."""
        if len(self.rewards) != 1:
            what = f"{len(self.rewards)} rewards that say what is right ({', '.join(self.rewards)})"
            raise ValueError(f"{self.name!r} has {what}: give --reward one that is 1 for right, 0 for wrong")
        return self.rewards[0]


def read_training(model: str) -> Run | None:
    """The run in a folder, or that of a checkpoint; `None` for a model that is neither.

    Raises:
        ValueError: the file that describes the run is damaged.
    """
    record = read_run(model) if Path(model).is_dir() else None
    if record is None:
        return None
    task = record.get("task")
    if task is None:
        return Run(model, record, None, ())
    try:
        names = {f.name for f in fields(DataArguments)}
        data = DataArguments(**{name: value for name, value in task.items() if name in names})
        weights = record["identity"].get("reward_weights") or [1.0] * len(task["reward"])
        pairs = zip(task["reward"], weights, strict=True)
        rewards = [name for name, weight in pairs if weight and name not in _OF_FORM]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"credit_run.json in {model!r} is damaged ({error!r}): give a --protocol") from error
    return Run(model, record, replace(data, dataset_name=_short(data.dataset_name)), tuple(map(_short, rewards)))


def check_trusted(folder: str | Path, rewards: Sequence[str], *, command: Sequence[str], trust_run: bool) -> None:
    """Refuses functions that a folder names, which may be somebody else's: only built-in rewards are run unasked.

    Raises:
        ValueError: a reward is not built in, and `trust_run` is `False`. The message shows `command`, which allows it.
    """
    if not trust_run and (custom := [str(name) for name in rewards if name not in tuple(REWARDS)]):
        what = f"{str(folder)!r} names the reward {', '.join(custom)}, and functions that a folder names are not run"
        fix = shlex.join(["trl-credit", *command, "--trust_run"])
        raise ValueError(f"{what}: if you trust it, `{fix}`, or name a function yourself with --reward")


def check_agreement(runs: Sequence[Run], flags: Collection[str]) -> None:
    """Refuses runs that differ in a setting that decides how they are evaluated, and whose flag is not in `flags`.

    Raises:
        ValueError: they differ; the message names the setting and the flag.
    """
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        first, *others = [run for run in runs if name in run.settings]
        flag = _FLAGS.get(name)
        for other in others:
            values = first.settings[name], other.settings[name]
            if values[0] != values[1] and flag not in flags:
                what = f"{first.name!r} and {other.name!r} were trained differently: {name} is"
                fix = "evaluate them with a --protocol" if flag is None else f"give {flag} for both"
                raise ValueError(f"{what} {values[0]!r} and {values[1]!r}. To compare them, {fix}")


def _short(path: str) -> str:
    """A file relative to the working folder if it lies there; another name as it is."""
    return str(short_path(path)) if Path(path).is_absolute() else path
