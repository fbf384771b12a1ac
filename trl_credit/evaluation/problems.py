"""The problems of a set, as token ids, and the reward that judges their responses."""

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..data import load_prompts
from ..data.sets import SETS, resolve_style
from ..demo import demo_dataset, demo_reward
from ..rewards import accuracy_reward, extract_answer, knights_and_knaves_reward
from ..rewards.functions import asked_in
from .scores import level_name


_PATIENCE = 2.0  # seconds of processor time for an answer: no training step waits for it
DEMO_PROBLEMS, DEMO_SEED = 64, 1_000_003  # another seed than any training run's
# columns that a reward or a table reads; they are kept with the samples
KEPT = ("answer", "level", "names", "truth")


@dataclass(frozen=True)
class Problem:
    """A prompt and what its responses are judged by; `text`, what was asked, is for a strict reading."""

    id: str
    prompt_ids: list[int]
    reference: dict[str, Any]
    text: str = ""


def load_problems(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    data_dir: str | None = None,
    style: str = "boxed",
    max_problems: int | None = None,
    flag: str = "--sets",
) -> list[Problem]:
    """The test problems of a set: "demo", a name that `load_prompts` knows, or a file.

    Args:
        name (`str`):
            Of the set.
        tokenizer (`PreTrainedTokenizerBase`):
            With a chat template, prompts become conversations.
        data_dir (`str`, *optional*):
            Folder with the sets as files.
        style (`str`, *optional*, defaults to "boxed"):
            Prompt style of `trl_credit.data`.
        max_problems (`int`, *optional*):
            The first so many problems alone.
        flag (`str`, *optional*, defaults to "--sets"):
            What the set was named by, for messages.

    Raises:
        ValueError: no such set, a problem without an answer or with a level that cannot be read, or two problems with
            one id.
    """
    if max_problems is not None and max_problems < 1:
        raise ValueError(f"--max_problems must be at least 1, got {max_problems}")
    if name == "demo":
        data = demo_dataset(max_problems or DEMO_PROBLEMS, seed=DEMO_SEED)
    elif name.startswith("reasoning_gym:"):
        raise ValueError(f"{flag} {name!r} is scored in parts of 1, and an evaluation wants right or wrong")
    else:
        try:
            data = load_prompts(
                name,
                data_dir=data_dir,
                split="test" if name in SETS and "test" in SETS[name].splits else None,
                style=style,
                conversational=resolve_style(style).chat and tokenizer.chat_template is not None,
                tokenizer=tokenizer,
            )
        except ValueError as error:
            raise ValueError(_in_evaluation(str(error), flag)) from error
    return as_problems(data, name, tokenizer, max_problems)


def _in_evaluation(said: str, flag: str) -> str:
    """What is wrong with a data set, without the flags that training alone has."""
    said = re.sub(r", or check --(prompt|answer)_column", "", said.replace("--dataset_name", flag))
    return re.sub(r"set --(prompt|answer)_column to one of", "rename one of", said)


def set_label(name: str) -> str:
    """A set's name in tables: a file's without its folder and ending, since tables are published."""
    return Path(name).stem if Path(name).is_file() else name


def as_problems(
    data: Dataset, name: str, tokenizer: PreTrainedTokenizerBase, max_problems: int | None = None
) -> list[Problem]:
    """The rows of a data set with columns `prompt`, `answer` and maybe `id`, `level`, `names`, `truth`."""
    problems = []
    for i, row in enumerate(data.select(range(min(len(data), max_problems or len(data))))):
        reference = {key: row[key] for key in KEPT if row.get(key) is not None}
        if str(reference.get("answer", "")).strip() == "" and "truth" not in reference:
            raise ValueError(f"row {i} of {name!r} has no answer: responses to it cannot be judged")
        for key, value in reference.items():
            parts = value if isinstance(value, list) else [value]
            if bad := [part for part in parts if not isinstance(part, str | int | float)]:
                what = type(bad[0]).__name__
                raise ValueError(f"row {i} of {name!r}, column {key!r}: a {what} is neither text nor a number")
        problem_id = i if row.get("id") is None else row["id"]
        if "level" in reference:
            try:
                level_name(set_label(name), reference["level"])
            except ValueError as error:
                raise ValueError(f"row {i} of {name!r}, column 'level': {error}") from error
        text = row.get("problem") or asked_in(row["prompt"])
        problems.append(Problem(str(problem_id), _tokens(row["prompt"], tokenizer), reference, str(text)))
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise ValueError(f"two problems of {name!r} have the id {problem.id!r}: ids must differ")
        seen.add(problem.id)
    return problems


def fingerprint(problems: Sequence[Problem]) -> str:
    """Changes with a prompt (its template and tokens included), an answer, or the order."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps([problem.id, problem.prompt_ids, problem.reference], sort_keys=True).encode())
    return digest.hexdigest()[:16]


def reward_name(set_name: str, problems: Sequence[Problem]) -> str:
    """Which reward judges a set: `demo`, `knights_and_knaves` (where there are `names` and `truth`) or `accuracy`."""
    if set_name == "demo":
        return "demo"
    return "knights_and_knaves" if {"names", "truth"} <= problems[0].reference.keys() else "accuracy"


def judge(reward: str, texts: Sequence[str], references: Sequence[dict[str, Any]]) -> list[tuple[str | None, bool]]:
    """The extracted answer of each response and whether it is right, by the reward of that name, in one call.

    `accuracy` reads as permissively as the graders of the papers do, not as strictly as in training.

    Raises:
        ValueError: the reward gave something other than 0 or 1.
    """
    rewards = _REWARDS[reward](list(texts), **{key: [r.get(key) for r in references] for key in KEPT})
    wrong = next((r for r in rewards if r not in (0.0, 1.0)), 0.0)
    if wrong not in (0.0, 1.0):
        raise ValueError(f"the reward {reward!r} gave {wrong!r}, but an evaluation wants 0 or 1")
    return [
        (_ANSWERS[reward](text, reference), bool(r))
        for text, reference, r in zip(texts, references, rewards, strict=True)
    ]


def judge_strictly(
    reward: str, texts: Sequence[str], references: Sequence[dict[str, Any]], problems: Sequence[str]
) -> list[bool] | None:
    """Whether each response is right as training reads it, or `None` for a reward that has one reading."""
    if reward != "accuracy":
        return None
    answers = [r.get("answer") for r in references]
    rewards = accuracy_reward(list(texts), answers, problem=list(problems), timeout=_PATIENCE)
    return [bool(r) for r in rewards]


def _demo_answer(text: str, reference: dict[str, Any]) -> str | None:
    return text[-1] if text[-2:-1] == "=" else None


def _said_roles(text: str, reference: dict[str, Any]) -> str | None:
    """The roles that a response gives to the inhabitants, as those for which its reward would be 1."""
    names = reference["names"]
    guesses = list(itertools.product((True, False), repeat=len(names)))
    rewards = knights_and_knaves_reward([text] * len(guesses), [names] * len(guesses), [list(g) for g in guesses])
    said = next((g for g, reward in zip(guesses, rewards, strict=True) if reward), None)
    return None if said is None else ", ".join("knight" if knight else "knave" for knight in said)


def _tokens(prompt: str | list[dict[str, str]], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


_REWARDS: dict[str, Callable[..., list[float | None]]] = {
    "accuracy": functools.partial(accuracy_reward, strict=False, timeout=_PATIENCE),
    "demo": demo_reward,
    "knights_and_knaves": knights_and_knaves_reward,
}
_ANSWERS: dict[str, Callable[[str, dict[str, Any]], str | None]] = {
    "accuracy": lambda text, reference: extract_answer(text),
    "demo": _demo_answer,
    "knights_and_knaves": _said_roles,
}
