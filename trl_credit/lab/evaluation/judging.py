"""Verdicts on responses, by the reward of a set or a custom one."""

import asyncio
import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ...demo import TASKS, demo_reward, without_filler
from ...rewards import accuracy_reward, extract_answer, knights_and_knaves_reward, resolve_reward
from ...rewards.guard import guard_rewards
from ...rewards.signature import Rows, required_parameters
from ...support.digests import digest_of


# columns that a set's own reward or a table reads, kept with the samples
KEPT = ("answer", "level", "names", "truth")
# arguments that TRL gives reward functions in training only
_TRAINING_ONLY = ("completion_ids", "trainer_state", "log_extra", "log_metric")
_accuracy = functools.partial(accuracy_reward, timeout=2.0, slow_answers=None)  # no training step waits


def judge(reward: str, lines: Sequence[dict[str, Any]]) -> None:
    """Writes the verdicts of a reward into the samples of some lines of a sample file, in one call.

    Each sample gets its `answer` as extracted, `correct`, and for "accuracy" `correct_strict`. `correct` is as
    permissive as the graders of the papers, `correct_strict` as strict as training.

    Args:
        reward (`str`):
            "accuracy", "demo", "knights_and_knaves", or a custom reward for references that hold the prompt.
        lines (`Sequence[dict]`):
            Problems with their `reference` and `samples`; strict verdicts read the text in `problem`.

    Raises:
        ValueError: the reward returned something other than 0 or 1, or cannot be found.
        FunctionRaised: a custom reward failed.
    """
    samples = [sample for line in lines for sample in line["samples"]]
    texts = [sample["text"] for sample in samples]
    references = [line["reference"] for line in lines for _ in line["samples"]]
    if reward in _REWARDS and "prompt" not in references[0]:
        rewards = _REWARDS[reward](texts, **{key: [r.get(key) for r in references] for key in KEPT})
    else:
        rewards = _call_custom_reward(reward, texts, references)
    for sample, reference, value in zip(samples, references, rewards, strict=True):
        if value not in (0.0, 1.0):
            what = f"the reward {reward!r} gave {value!r}, but an evaluation needs 0 or 1"
            raise ValueError(f"{what}: give another --reward")
        sample |= {"answer": _answer(reward, sample["text"], reference), "correct": bool(value)}
    if reward == "accuracy":
        answers = [reference.get("answer") for reference in references]
        problems = [line.get("problem", "") for line in lines for _ in line["samples"]]
        for sample, value in zip(samples, _accuracy(texts, answers, problem=problems), strict=True):
            if value is not None:
                sample["correct_strict"] = bool(value)


def reward_name(set_name: str, reference: dict[str, Any]) -> str:
    """The reward of a set: that of an embedded task, `knights_and_knaves` for problems with `names` and `truth`, else
    `accuracy`."""
    if set_name in TASKS:
        return TASKS[set_name].reward
    return "knights_and_knaves" if {"names", "truth"} <= reference.keys() else "accuracy"


def custom_reward(name: str, reference: dict[str, Any]) -> Callable[..., list[float | None]]:
    """The reward of that name, guarded, after a check that responses and the columns of `reference` suffice to call it.

    Raises:
        ValueError: there is none of that name, or it needs something else.
    """
    function = resolve_reward(name)
    if "prompt" not in reference:
        raise ValueError(f"--reward {name!r}: these samples hold no prompts. Evaluate again with --reward --overwrite")
    for parameter in required_parameters(function):
        if parameter in _TRAINING_ONLY:
            raise ValueError(f"--reward {name!r} needs {parameter!r}, which exists in training only")
    return guard_rewards(function, data=[Rows("the set", tuple(reference))])


def reward_header(name: str | None) -> dict[str, str]:
    """Fields of a sample file's header for a custom reward, with a digest of its source; nothing without one."""
    return {} if name is None else {"reward": name, "reward_source": f"{name} {digest_of(resolve_reward(name))[:16]}"}


def _call_custom_reward(name: str, texts: Sequence[str], references: Sequence[dict[str, Any]]) -> list[float | None]:
    """Called as in training: arguments by name, responses as messages if the prompts are messages."""
    function = custom_reward(name, references[0])
    prompts = [reference["prompt"] for reference in references]
    completions = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for text, prompt in zip(texts, prompts, strict=True)
    ]
    columns = {key: [r.get(key) for r in references] for key in references[0] if key != "prompt"}
    rewards = function(prompts=prompts, completions=completions, **columns)
    return asyncio.run(rewards) if inspect.iscoroutine(rewards) else rewards


def _answer(reward: str, text: str, reference: dict[str, Any]) -> str | None:
    """The answer of a response, which votes in maj@k."""
    if reward == "demo":
        text = without_filler(text)
        return text[-1] if text[-2:-1] == "=" else None
    return _roles(text, reference["names"]) if reward == "knights_and_knaves" else extract_answer(text)


def _roles(text: str, names: list[str]) -> str | None:
    """The roles that a response gives the inhabitants: those for which its reward would be 1."""
    for roles in itertools.product((True, False), repeat=len(names)):
        if knights_and_knaves_reward([text], [names], [list(roles)]) == [1.0]:
            return ", ".join("knight" if is_knight else "knave" for is_knight in roles)
    return None


_REWARDS: dict[str, Callable[..., list[float | None]]] = {
    "accuracy": functools.partial(_accuracy, strict=False),
    "demo": demo_reward,
    "knights_and_knaves": knights_and_knaves_reward,
}
