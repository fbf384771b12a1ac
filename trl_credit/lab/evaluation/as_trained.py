"""How runs are evaluated without a protocol: on problems of their own data that none of them trained on, sampled and
judged as in their training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...demo import TASKS
from .judging import reward_name
from .problems import set_label
from .protocols import AS_TRAINED
from .runs import DECODING, Run, check_agreement, check_trusted, read_training
from .unseen import unseen_problems


PROBLEMS, SAMPLES = 256, 4  # a first look: minutes on a GPU, and an interval of some five points
_OF_SETS = ("accuracy", "demo", "knights_and_knaves")  # rewards that a set brings with it


class AsTrained(NamedTuple):
    """Keyword arguments of `evaluate`, and what they mean in words."""

    options: dict[str, Any]
    problems: str
    sampling: str


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
    that a run names is imported. Without `sets` the problems are those
    of [`~trl_credit.lab.evaluation.unseen.unseen_problems`], at most 256; for the embedded task, problems of a seed
    that no run has.

    Raises:
        ValueError: no model is a run that knows its data, the runs differ, they trained on every row, no single reward
            says what is right, or it is not built in; the message names the flag that settles it.
    """
    runs = [run for model in models if (run := read_training(model)) is not None]
    if not runs:
        raise ValueError(
            f"{models[0]!r} is not the folder of a run, which would say what to evaluate: give a --protocol"
        )
    own = {f"--{name}": value for name, value in (changes or {}).items() if value is not None}
    given = {**own, "--sets": sets, "--prompt_style": prompt_style, "--reward": reward}
    check_agreement(runs, [flag for flag, value in given.items() if value is not None])
    told = [run for run in runs if run.data is not None]
    if not told and sets is None:
        why = "does not say what it was trained on (it was started from Python, or by an earlier trl_credit)"
        own_task = "--reward FILE.py:FUNCTION for a task of your own"
        style = "--prompt_style as in its training (without it, boxed puts an instruction around each problem)"
        raise ValueError(f"{runs[0].name!r} {why}: give --sets FILE, {own_task}, and {style}")
    judge = reward or (told[0].reward if told else None)
    if judge != reward:
        check_trusted(told[0].name, [judge], command=["eval", *models], trust_run=trust_run)
    if sets is None:
        if max_problems is not None and max_problems < 1:
            raise ValueError(f"--max_problems must be at least 1, got {max_problems}")
        options, words, usual = _own_problems(told, prompt_style, data_dir, max_problems or PROBLEMS, trust_remote_code)
        judge = None if judge == usual else judge
    else:
        options = {"sets": sets, "max_problems": max_problems}
        words, usual = ", ".join(map(set_label, sets)), "the reward of the set"
        judge = None if reward is None and judge in _OF_SETS else judge
    options["changes"] = decoding = _decoding(runs[0], changes or {})
    trained_style = told[0].data.prompt_style if told else None  # not known of a run from Python
    options["prompt_style"] = style = prompt_style or trained_style or "boxed"
    changed = own.keys() & set(DECODING.values()) or style != trained_style
    options["protocols"] = ["custom" if changed else AS_TRAINED]
    options["reward"] = judge
    options["chat_template_kwargs"] = runs[0].settings["chat_template_kwargs"]
    sampling = f"{decoding['samples']} responses to each, at most {decoding['max_new_tokens']:,} tokens, temperature "
    sampling = f"{sampling}{decoding['temperature']:g}, prompt style {style if style.isidentifier() else repr(style)}"
    return AsTrained(options, words, f"{sampling}; judged by {judge or usual}")


def _own_problems(
    runs: Sequence[Run], style: str | None, data_dir: str | None, count: int, trust_remote_code: bool
) -> tuple[dict[str, Any], str, str]:
    """Arguments of `evaluate` for problems of the runs' data, what they are in words, and the reward of their set."""
    data = runs[0].data
    data = replace(data, data_dir=data_dir or data.data_dir, prompt_style=style or data.prompt_style)
    if data.dataset_name in TASKS:
        return (
            {"sets": [data.dataset_name], "max_problems": count},
            f"{count:,} of the embedded task, of a seed that no run has",
            "demo",
        )
    if data.dataset_name.startswith("reasoning_gym:"):
        why = "gives scores between 0 and 1, but an evaluation needs 0 or 1"
        raise ValueError(f"{data.dataset_name!r} {why}: give --sets FILE and --reward FILE.py:FUNCTION")
    found = unseen_problems(runs, data, count=count, trust_remote_code=trust_remote_code)
    options = {"sets": [found.label], "data": {found.label: found.rows}, "max_problems": None}
    return options, found.words, reward_name(found.label, found.first)


def _decoding(run: Run, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The decoding of a run's training as fields of a protocol, with changes."""
    trained = {flag.removeprefix("--"): run.settings[name] for name, flag in DECODING.items() if flag is not None}
    decoding = trained | {name: value for name, value in changes.items() if value is not None}
    if decoding["max_new_tokens"] is None:
        raise ValueError(f"{run.name!r} has no max_completion_length: give --max_new_tokens")
    decoding.setdefault("samples", 1 if decoding["temperature"] == 0 else SAMPLES)
    unset = {"top_k": 50, "top_p": 1.0}  # what transformers takes for `None`
    return decoding | {name: value for name, value in unset.items() if decoding[name] is None}
