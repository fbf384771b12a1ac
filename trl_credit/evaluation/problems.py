"""The problems of a set, as token ids, and the reward that judges their responses."""

import asyncio
import functools
import hashlib
import inspect
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
from ..names import digest_of
from ..rewards import accuracy_reward, extract_answer, knights_and_knaves_reward, resolve_reward
from ..rewards.functions import asked_in
from ..rewards.guard import guard_rewards
from ..rewards.signature import Rows, required_parameters
from .scores import level_name


_PATIENCE = 2.0  # seconds of processor time for an answer: no training step waits for it
DEMO_PROBLEMS, DEMO_SEED = 64, 1_000_003  # another seed than any training run's
# columns that a reward or a table reads; they are kept with the samples
KEPT = ("answer", "level", "names", "truth")
# what TRL gives reward functions, and an evaluation cannot
_OF_TRAINING = ("completion_ids", "trainer_state", "log_extra", "log_metric")


@dataclass(frozen=True)
class Problem:
    """A prompt and what its responses are judged by.

    Attributes:
        digest: Of the prompt's text, whatever tokens it becomes.
        text: What was asked, for a strict reading.
    """

    id: str
    prompt_ids: list[int]
    reference: dict[str, Any]
    digest: str
    text: str = ""


def load_problems(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    data_dir: str | None = None,
    style: str = "boxed",
    max_problems: int | None = None,
    flag: str = "--sets",
    reward: str | None = None,
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
        reward (`str`, *optional*):
            That responses are judged by: it gets the prompt and every column of the set. By default the set's own,
            which wants an answer.

    Raises:
        ValueError: no such set, a problem without an answer or with a level that cannot be read, two problems with
            one id, or a reward that cannot be called with the set's columns.
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
    problems = as_problems(data, name, tokenizer, max_problems, every_column=reward is not None)
    if reward is not None:
        own_reward(reward, problems[0].reference)
    return problems


def _in_evaluation(said: str, flag: str) -> str:
    """What is wrong with a data set, without the flags that training alone has."""
    said = re.sub(r", or check --(prompt|answer)_column", "", said.replace("--dataset_name", flag))
    return re.sub(r"set --(prompt|answer)_column to one of", "rename one of", said)


def set_label(name: str) -> str:
    """A set's name in tables: a file's without its folder and ending, since tables are published."""
    return Path(name).stem if Path(name).is_file() else name


def as_problems(
    data: Dataset,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    max_problems: int | None = None,
    *,
    every_column: bool = False,
) -> list[Problem]:
    """The rows of a data set with columns `prompt`, `answer` and maybe `id`, `level`, `names`, `truth`.

    With `every_column` the reference is all of the row, and no answer is needed.
    """
    problems = []
    for i, row in enumerate(data.select(range(min(len(data), max_problems or len(data))))):
        kept = tuple(key for key in row if key != "id") if every_column else KEPT
        reference = {key: row[key] for key in kept if row.get(key) is not None or every_column}
        if not every_column and str(reference.get("answer", "")).strip() == "" and "truth" not in reference:
            raise ValueError(f"row {i} of {name!r} has no answer: responses to it cannot be judged")
        for key, value in reference.items():
            if (bad := _no_json(value)) is not None:
                raise ValueError(f"row {i} of {name!r}, column {key!r}: a {bad} is neither text nor a number")
        problem_id = i if row.get("id") is None else row["id"]
        if reference.get("level") is not None:
            try:
                level_name(set_label(name), reference["level"])
            except ValueError as error:
                raise ValueError(f"row {i} of {name!r}, column 'level': {error}") from error
        asked, ids = row.get("problem") or asked_in(row["prompt"]), _tokens(row["prompt"], tokenizer)
        problems.append(Problem(str(problem_id), ids, reference, _digest(row["prompt"]), str(asked)))
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
        ValueError: the reward gave something other than 0 or 1, or is not to be found.
        RewardRaised: a reward of one's own failed.
    """
    if reward in _REWARDS and "prompt" not in references[0]:
        rewards = _REWARDS[reward](list(texts), **{key: [r.get(key) for r in references] for key in KEPT})
    else:
        rewards = _by_own_reward(reward, texts, references)
    wrong = next((r for r in rewards if r not in (0.0, 1.0)), 0.0)
    if wrong not in (0.0, 1.0):
        raise ValueError(f"the reward {reward!r} gave {wrong!r}, but an evaluation wants 0 or 1")
    return [
        (_ANSWERS.get(reward, _said_answer)(text, reference), bool(r))
        for text, reference, r in zip(texts, references, rewards, strict=True)
    ]


def judge_strictly(
    reward: str, texts: Sequence[str], references: Sequence[dict[str, Any]], problems: Sequence[str]
) -> list[bool] | None:
    """Whether each response is right as training reads it, or `None` for a reward that has one reading."""
    if reward != "accuracy":
        return None
    answers = [r.get("answer") for r in references]
    rewards = accuracy_reward(list(texts), answers, problem=list(problems), timeout=_PATIENCE, slow_answers=None)
    return [bool(r) for r in rewards]


def own_reward(name: str, reference: dict[str, Any]) -> Callable[..., list[float | None]]:
    """The reward of that name, guarded, where it can be called with what `reference` holds and the responses.

    Raises:
        ValueError: there is none of that name, or it asks for something else.
    """
    function = resolve_reward(name)
    if "prompt" not in reference:
        raise ValueError(
            f"--reward {name!r}: these samples hold no prompts, since they were judged by the set's own reward. "
            "Evaluate anew with --reward and --overwrite"
        )
    absent = [asked for asked in required_parameters(function) if asked in _OF_TRAINING]
    if absent:
        raise ValueError(f"--reward {name!r} asks for {absent[0]!r}, which training has and an evaluation has not")
    return guard_rewards(function, data=[Rows("the set", tuple(reference))])


def reward_source(name: str) -> str:
    """What a reward of one's own is known by: its name and a digest of its file."""
    return f"{name} {digest_of(resolve_reward(name))[:16]}"


def _by_own_reward(name: str, texts: Sequence[str], references: Sequence[dict[str, Any]]) -> list[float | None]:
    """Called as in training: by name, with messages where the prompts are messages."""
    function = own_reward(name, references[0])
    prompts = [reference["prompt"] for reference in references]
    completions = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for text, prompt in zip(texts, prompts, strict=True)
    ]
    columns = {key: [r.get(key) for r in references] for key in references[0] if key != "prompt"}
    rewards = function(prompts=prompts, completions=completions, **columns)
    return asyncio.run(rewards) if inspect.iscoroutine(rewards) else rewards


def _no_json(value: Any) -> str | None:
    """The type of what in a value is neither text nor a number, nor lists and `name: value` of these; else `None`."""
    if value is None or isinstance(value, str | int | float):
        return None
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return type(value).__name__
    return next((bad for part in value if (bad := _no_json(part)) is not None), None)


def _said_answer(text: str, reference: dict[str, Any]) -> str | None:
    return extract_answer(text)


def _demo_answer(text: str, reference: dict[str, Any]) -> str | None:
    return text[-1] if text[-2:-1] == "=" else None


def _said_roles(text: str, reference: dict[str, Any]) -> str | None:
    """The roles that a response gives to the inhabitants, as those for which its reward would be 1."""
    names = reference["names"]
    guesses = list(itertools.product((True, False), repeat=len(names)))
    rewards = knights_and_knaves_reward([text] * len(guesses), [names] * len(guesses), [list(g) for g in guesses])
    said = next((g for g, reward in zip(guesses, rewards, strict=True) if reward), None)
    return None if said is None else ", ".join("knight" if knight else "knave" for knight in said)


def _digest(prompt: str | list[dict[str, str]]) -> str:
    # messages as the plain text that a model without a chat template is given
    text = prompt if isinstance(prompt, str) else "\n\n".join(str(message["content"]) for message in prompt)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _tokens(prompt: str | list[dict[str, str]], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


_REWARDS: dict[str, Callable[..., list[float | None]]] = {
    "accuracy": functools.partial(accuracy_reward, strict=False, timeout=_PATIENCE, slow_answers=None),
    "demo": demo_reward,
    "knights_and_knaves": knights_and_knaves_reward,
}
_ANSWERS: dict[str, Callable[[str, dict[str, Any]], str | None]] = {
    "demo": _demo_answer,
    "knights_and_knaves": _said_roles,
}
