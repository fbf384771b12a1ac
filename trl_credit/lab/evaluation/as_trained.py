"""How runs are evaluated without a protocol: on problems of their own data that none of them trained on, sampled and
judged as in their training."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ...data import SETS, DataArguments, load_from_arguments
from ...demo import TASKS
from ...runs.data_identity import data_identity
from ...runs.data_order import rows_reached, steps_of_weights
from ...support.adapters import tokenizer_source
from .judging import reward_name
from .problems import NO_SCORES, set_label
from .protocols import AS_TRAINED
from .runs import DECODING, Run, check_agreement, check_trusted, read_training


PROBLEMS, SAMPLES = 256, 4  # a first look: minutes on a GPU, and an interval of some five points
_OF_SETS = ("accuracy", "demo", "knights_and_knaves")  # rewards that a set brings with it


class AsTrained(NamedTuple):
    """Keyword arguments of `evaluate`, and what they mean in words."""

    options: dict[str, Any]
    problems: str
    sampling: str


class Problems(NamedTuple):
    """Keyword arguments of `evaluate` for the problems, what they are in words, and the reward of their set."""

    options: dict[str, Any]
    words: str
    reward: str


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
) -> AsTrained:
    """How to evaluate runs as they were trained. Models beside them that are no runs are evaluated in the same way.

    Arguments as for `evaluate`; those that are given replace what the runs say. With `trust_run`, a reward function
    that a run names is imported. Without `sets` the problems are the test split of the runs' set or rows of it that
    none of them had reached, at most 256; for the embedded task, problems of a seed that no run has.

    Raises:
        ValueError: no model is a run that knows its data, the runs differ, they trained on every row, no single reward
            says what is right, or it is not built in; the message names the flag that settles it.
    """
    runs = [run for model in models if (run := read_training(model)) is not None]
    if not runs:
        raise ValueError(
            f"{models[0]!r} is not the folder of a run, which would say what to evaluate: give a --protocol"
        )
    changes = {name: value for name, value in (changes or {}).items() if value is not None}
    replaced = {"sets": sets, "prompt_style": prompt_style, "reward": reward}
    replaced = {f"--{name}" for name, value in (changes | replaced).items() if value is not None}
    check_agreement(runs, replaced)
    told = [run for run in runs if run.data is not None]  # whose data is known
    if not told and sets is None:
        why = "does not say what it was trained on (it was started from Python, or by an earlier trl_credit)"
        own_task = "--reward FILE.py:FUNCTION for a task of your own"
        style = "--prompt_style as in its training (without it, boxed puts an instruction around each problem)"
        raise ValueError(f"{runs[0].name!r} {why}: give --sets FILE, {own_task}, and {style}")
    judge = reward
    if reward is None and told:
        judge = told[0].reward
        check_trusted(told[0].name, [judge], command=["eval", *models], trust_run=trust_run)
    if sets is None:
        data = told[0].data
        data = replace(data, data_dir=data_dir or data.data_dir, prompt_style=prompt_style or data.prompt_style)
        problems = _own_problems(told, data, max_problems or PROBLEMS, trust_remote_code)
    else:
        usual = judge if judge in _OF_SETS and reward is None else "the reward of the set"
        problems = Problems({"sets": sets, "max_problems": max_problems}, ", ".join(map(set_label, sets)), usual)
    decoding = _decoding(runs[0], changes)
    trained_style = told[0].data.prompt_style if told else None  # not known of a run from Python
    style = prompt_style or trained_style or "boxed"
    is_changed = replaced & set(DECODING.values()) or style != trained_style
    options = {
        **problems.options,
        "changes": decoding,
        "prompt_style": style,
        "protocols": ["custom" if is_changed else AS_TRAINED],
        "reward": None if judge == problems.reward else judge,
        "chat_template_kwargs": runs[0].settings["chat_template_kwargs"],
    }
    sampling = (
        f"{decoding['samples']} responses to each, at most {decoding['max_new_tokens']:,} tokens, temperature "
        f"{decoding['temperature']:g}, prompt style {style if style.isidentifier() else repr(style)}; "
        f"judged by {judge or problems.reward}"
    )
    return AsTrained(options, problems.words, sampling)


def _decoding(run: Run, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The decoding of a run's training as fields of a protocol, with changes."""
    trained = {flag.removeprefix("--"): run.settings[name] for name, flag in DECODING.items()}
    decoding = {**trained, **changes}
    if decoding["max_new_tokens"] is None:
        raise ValueError(f"{run.name!r} has no max_completion_length: give --max_new_tokens")
    decoding.setdefault("samples", 1 if decoding["temperature"] == 0 else SAMPLES)
    unset = {"top_k": 50, "top_p": 1.0}  # what transformers takes for `None`
    return decoding | {name: value for name, value in unset.items() if decoding[name] is None}


def _own_problems(runs: Sequence[Run], data: DataArguments, count: int, trust_remote_code: bool) -> Problems:
    """At most `count` problems of the runs' data that none of them trained on, the same in every call."""
    name, seed = data.dataset_name, runs[0].identity["seed"]
    if count < 1:
        raise ValueError(f"--max_problems must be at least 1, got {count}")
    if name in TASKS:
        words = f"{count:,} of the embedded task, of a seed that no run has"
        return Problems({"sets": [name], "max_problems": count}, words, "demo")
    if name.startswith("reasoning_gym:"):
        raise ValueError(f"{name!r} {NO_SCORES}: give --sets FILE and --reward FILE.py:FUNCTION")
    data = replace(data, max_prompt_tokens=None, decontaminate=None)  # ids are those of the whole set
    tokenizer = _tokenizer(runs[0], trust_remote_code)
    splits = SETS[name].splits if name in SETS else {}
    if "test" in splits and (data.dataset_split or next(iter(splits))) != "test":
        data = replace(data, dataset_split="test")
        label, ids, what = name, _load(data, tokenizer, seed)["id"], f"problems of {name}'s test split"
    else:
        unseen = [_unseen_by(run, data.data_dir, trust_remote_code) for run in runs]
        ids = [row_id for row_id in unseen[0] if all(row_id in others for others in unseen[1:])]
        who = repr(runs[0].name) if len(runs) == 1 else f"the {len(runs)} runs together"
        if not ids:
            raise ValueError(f"{who} trained on every row of {name!r}: give --sets with problems that they did not see")
        who = f"{runs[0].name} did not train on" if len(runs) == 1 else "no run trained on"
        label, what = f"{set_label(name)} unseen", f"rows of {name} that {who}"
    share = "all" if len(ids) <= count else f"{count:,} of the"
    drawn = ids if len(ids) <= count else [ids[i] for i in sorted(random.Random(0).sample(range(len(ids)), count))]

    def rows(tokenizer: PreTrainedTokenizerBase) -> Dataset:
        loaded = _load(data, tokenizer, seed)
        place = {row_id: i for i, row_id in enumerate(loaded["id"])}
        return loaded.select([place[row_id] for row_id in drawn])

    options = {"sets": [label], "data": {label: rows}, "max_problems": None}
    return Problems(options, f"{share} {len(ids):,} {what}", reward_name(label, rows(tokenizer)[0]))


def _unseen_by(run: Run, data_dir: str | None, trust_remote_code: bool) -> dict[str, None]:
    """Ids of the rows that a run had not reached by its last step, in order. Copies of a row that it had reached are
    left out."""
    arguments = replace(run.data, data_dir=data_dir)
    data = _load(arguments, _tokenizer(run, trust_remote_code), run.identity["seed"])
    trained_on, here = run.identity["data"], data_identity(data, first_rows=[])
    if any(here[key] != trained_on.get(key) for key in ("rows", "content")):
        name = arguments.dataset_name
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


def _load(arguments: DataArguments, tokenizer: PreTrainedTokenizerBase, seed: int) -> Dataset:
    return load_from_arguments(arguments, tokenizer=tokenizer, seed=seed, needs_answers=False)
