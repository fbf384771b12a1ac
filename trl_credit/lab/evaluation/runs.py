"""Runs of `trl-credit train` as their folders describe them, and how they are evaluated without a protocol: on problems
of their own data that none of them trained on, sampled and judged as in their training."""

import json
import random
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ...data import SETS, DataArguments, load_from_arguments
from ...demo import TASKS
from ...rewards import REWARDS
from ...runs.checkpoints import read_run
from ...runs.data_identity import data_identity
from ...runs.data_order import rows_reached, steps_of_weights
from ...support.adapters import tokenizer_source
from ...support.files import short_path
from .judging import reward_name
from .problems import set_label
from .protocols import AS_TRAINED


PROBLEMS, SAMPLES = 256, 4  # a first look: minutes on a GPU, and an interval of some five points
_OF_SETS = ("accuracy", "demo", "knights_and_knaves")  # rewards that a set brings with it
_OF_FORM = ("format", "soft_overlong")  # rewards that do not say whether an answer is right
# flag of `trl-credit eval` → field of a run's identity
DECODING = {f"--{name}": name for name in ("temperature", "top_p", "top_k")}
DECODING["--max_new_tokens"] = "max_completion_length"
_NOT_THE_SET = ("prompt_style", "max_prompt_tokens", "decontaminate", "data_dir")


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
        """What runs that are compared must agree on, by the flag that replaces it."""
        settings = {flag: self.identity.get(name) for flag, name in DECODING.items()}
        settings["--protocol"] = self.identity.get("chat_template_kwargs")
        if self.data is not None:
            data = {name: value for name, value in vars(self.data).items() if name not in _NOT_THE_SET}
            settings |= {"--sets": data, "--prompt_style": self.data.prompt_style, "--reward": self.rewards}
        return settings


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
    data = replace(data, dataset_name=str(short_path(data.dataset_name)))
    return Run(model, record, data, tuple(str(short_path(name)) for name in rewards))


def check_trusted(folder: str | Path, rewards: Sequence[str], *, command: Sequence[str], trust_run: bool) -> None:
    """Refuses functions that a folder names, which may be somebody else's: only built-in rewards are run unasked.

    Raises:
        ValueError: a reward is not built in, and `trust_run` is `False`. The message shows `command`, which allows it.
    """
    if not trust_run and (custom := [str(name) for name in rewards if name not in tuple(REWARDS)]):
        what = f"{str(folder)!r} names the reward {', '.join(custom)}, and functions that a folder names are not run"
        fix = shlex.join(["trl-credit", *command, "--trust_run"])
        raise ValueError(f"{what}: if you trust it, `{fix}`, or name a function yourself with --reward")


def plan_as_trained(
    models: Sequence[str],
    *,
    sets: Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    prompt_style: str | None = None,
    reward: str | None = None,
    data_dir: str | None = None,
    max_problems: int | None = None,
    trust_remote_code: bool = False,
    trust_run: bool = False,
) -> tuple[dict[str, Any], str]:
    """Keyword arguments of `evaluate` that evaluate runs as they were trained, and two lines that say what they mean.
    Models beside the runs that are no runs are evaluated in the same way.

    Arguments as for `evaluate`; those that are given replace what the runs say. With `trust_run`, a reward function
    that a run names is imported. Without `sets` the problems are the test split of the runs' set or rows of it that
    none of them had reached, at most 256; for the embedded task, problems of a seed that no run has.

    Raises:
        ValueError: no model is a run that knows its data, the runs differ, they trained on every row, no single reward
            says what is right, or it is not built in; the message names the flag that settles it.
    """
    runs = [run for model in models if (run := read_training(model)) is not None]
    if not runs:
        raise ValueError(f"{models[0]!r} is not the folder of a run, which names its data: give a --protocol")
    runs.sort(key=lambda run: run.data is None)
    run, changes = runs[0], {name: value for name, value in (changes or {}).items() if value is not None}
    task = {"sets": sets, "prompt_style": prompt_style, "reward": reward}
    flags = {f"--{name}" for name, value in (changes | task).items() if value is not None}
    for other in runs[1:]:
        pairs = {flag: (value, other.settings.get(flag, value)) for flag, value in run.settings.items()}
        if differ := [f"{flag} ({a} and {b})" for flag, (a, b) in pairs.items() if a != b and flag not in flags]:
            what = f"{run.name!r} and {other.name!r} were trained differently"
            raise ValueError(f"{what}: to compare them, give for both {', '.join(differ)}")
    if run.data is None and sets is None:
        why = "does not name its data (it was started from Python): give --sets, --reward, and --prompt_style as there"
        raise ValueError(f"{run.name!r} {why}")
    judge = reward
    if reward is None and run.data is not None:
        if len(run.rewards) != 1:
            what = f"{len(run.rewards)} rewards that say what is right ({', '.join(run.rewards)})"
            raise ValueError(f"{run.name!r} has {what}: give --reward one that is 1 for right, 0 for wrong")
        (judge,) = run.rewards
        check_trusted(run.name, [judge], command=["eval", *models], trust_run=trust_run)
    trained_style = run.data and run.data.prompt_style  # not known of a run from Python
    style = prompt_style or trained_style or "boxed"
    if sets is None:
        data = replace(run.data, data_dir=data_dir or run.data.data_dir, prompt_style=style)
        count = PROBLEMS if max_problems is None else max_problems
        options, problems, usual = _own_problems([r for r in runs if r.data], data, count, trust_remote_code)
    else:
        options, problems = {"sets": sets, "max_problems": max_problems}, ", ".join(map(set_label, sets))
        usual = judge if judge in _OF_SETS and reward is None else "the reward of the set"
    decoding = _decoding(run, changes)
    options |= {"changes": decoding, "prompt_style": style, "reward": None if judge == usual else judge}
    options["protocols"] = ["custom" if flags & DECODING.keys() or style != trained_style else AS_TRAINED]
    options["chat_template_kwargs"] = run.identity.get("chat_template_kwargs")
    description = (
        f"problems  {problems}\n"
        f"sampling  {decoding['samples']} responses to each, at most {decoding['max_new_tokens']:,} tokens, "
        f"temperature {decoding['temperature']:g}, prompt style {style if style.isidentifier() else repr(style)}; "
        f"judged by {judge or usual}"
    )
    return options, description


def _decoding(run: Run, changes: dict[str, Any]) -> dict[str, Any]:
    """The decoding of a run's training as fields of a protocol, with changes."""
    decoding = {flag.removeprefix("--"): run.identity.get(name) for flag, name in DECODING.items()} | changes
    if decoding["max_new_tokens"] is None:
        raise ValueError(f"{run.name!r} has no max_completion_length: give --max_new_tokens")
    decoding.setdefault("samples", 1 if decoding["temperature"] == 0 else SAMPLES)
    unset = {"top_k": 50, "top_p": 1.0}  # what transformers takes for `None`
    return decoding | {name: value for name, value in unset.items() if decoding[name] is None}


def _own_problems(
    runs: Sequence[Run], data: DataArguments, count: int, trust_remote_code: bool
) -> tuple[dict[str, Any], str, str]:
    """At most `count` problems of the runs' data that none of them trained on, the same in every call: arguments of
    `evaluate`, what they are in words, and the reward of their set."""
    name = data.dataset_name
    if count < 1:
        raise ValueError(f"--max_problems must be at least 1, got {count}")
    if name in TASKS:
        words = f"{count:,} of the embedded task, of a seed that no run has"
        return {"sets": [name], "max_problems": count}, words, reward_name(name, {})
    data = replace(data, max_prompt_tokens=None, decontaminate=None)  # ids are those of the whole set
    splits = SETS[name].splits if name in SETS else {}
    has_test = "test" in splits and (data.dataset_split or next(iter(splits))) != "test"
    arguments = replace(data, dataset_split="test") if has_test else data
    load = partial(load_from_arguments, arguments, seed=runs[0].identity["seed"], needs_answers=False)
    whole = load(tokenizer=_tokenizer(runs[0], trust_remote_code))
    if has_test:
        label, ids, what = name, list(whole["id"]), f"problems of {name}'s test split"
    else:
        unseen = [_unseen_by(run, data.data_dir, trust_remote_code) for run in runs]
        ids = [row_id for row_id in unseen[0] if all(row_id in others for others in unseen[1:])]
        label, what = f"{set_label(name)} unseen", f"rows of {name} that no run trained on"
        if not ids:
            raise ValueError(f"there are no {what}: give --sets with problems that they did not see")
    drawn = set(random.Random(0).sample(ids, min(count, len(ids))))

    def rows(tokenizer: PreTrainedTokenizerBase) -> Dataset:
        loaded = load(tokenizer=tokenizer)
        return loaded.select([i for i, row_id in enumerate(loaded["id"]) if row_id in drawn])

    options = {"sets": [label], "data": {label: rows}, "max_problems": None}
    return options, f"{len(drawn):,} of {len(ids):,} {what}", reward_name(label, whole[0])


def _unseen_by(run: Run, data_dir: str | None, trust_remote_code: bool) -> dict[str, None]:
    """Ids of the rows that a run had not reached by its last step, in order. Copies of a row that it had reached are
    left out."""
    arguments, name = replace(run.data, data_dir=data_dir), run.data.dataset_name
    tokenizer = _tokenizer(run, trust_remote_code)
    data = load_from_arguments(arguments, tokenizer=tokenizer, seed=run.identity["seed"], needs_answers=False)
    trained_on, here = run.identity["data"], data_identity(data, first_rows=[])
    if any(here[key] != trained_on.get(key) for key in ("rows", "content")):
        raise ValueError(f"{name!r} is not the data that {run.name!r} was trained on: restore it, or give --sets")
    steps = steps_of_weights(run.name)
    if steps is None:
        raise ValueError(f"{run.name!r} has no checkpoint that says how far it trained: give --sets")
    try:
        reached = rows_reached(run.record, steps=steps, folder=run.name)
    except ValueError as error:
        raise ValueError(f"{run.name!r}: {error}: give --sets") from error
    prompts = [json.dumps(prompt) for prompt in data["prompt"]]
    seen = {prompts[i] for i in reached}
    return {row_id: None for row_id, prompt in zip(data["id"], prompts, strict=True) if prompt not in seen}


def _tokenizer(run: Run, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tokenizer_source(run.name), trust_remote_code=trust_remote_code)
