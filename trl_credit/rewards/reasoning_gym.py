"""Procedural tasks of the reasoning-gym library: rows by a task's name, and the reward that is the task's own score."""

import functools
import json
from typing import Any

from .judging import extract_answer


MOST_ROWS = 1000  # of a task, where its settings do not give a size
LONGEST_ANSWER = 10_000  # characters; grids are long, but nothing is this long
_BAD_ANSWERS = (ArithmeticError, AttributeError, LookupError, RecursionError, SyntaxError, TypeError, ValueError)


def reasoning_gym_rows(task: str, *, settings: dict[str, Any], seed: int) -> list[dict]:
    """Rows of a task, the same for the same settings: `problem`, `answer` (one of the right ones) and `entry`.

    Args:
        task (`str`):
            Name in reasoning-gym, such as `chain_sum`.
        settings (`dict`):
            Fields of the task's configuration; `size` (1000 rows by default) and `seed` too.
        seed (`int`):
            Where `settings` has none.

    Raises:
        ImportError: reasoning-gym is not installed.
        ValueError: no such task, or settings that it does not take.
    """
    settings = {"size": MOST_ROWS, "seed": seed, **settings}
    data = _task(task, json.dumps(settings, sort_keys=True))
    return [
        {
            "problem": data[i]["question"],
            "answer": None if data[i]["answer"] is None else str(data[i]["answer"]),
            "id": f"{task}-{settings['seed']}-{i}",
            "entry": json.dumps({"task": task, "settings": settings, "row": i}, sort_keys=True),
        }
        for i in range(len(data))
    ]


def reasoning_gym_reward(completions: list, entry: list[str], **kwargs) -> list[float]:
    """The task's score of the response's answer (its last box, `<answer>`, …); 0 without one.

    The score is reasoning-gym's, in [0, 1]. Some of its tasks parse the answer with SymPy in this process: it is no
    sandbox for model output.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Responses, plain or conversational.
        entry (`list[str]`):
            Column of the rows: which row of which task each response answers.
    """
    texts = [c if isinstance(c, str) else str((c[-1:] or [{}])[0].get("content") or "") for c in completions]
    return [_score(extract_answer(text), row) for text, row in zip(texts, entry, strict=True)]


def _score(answer: str | None, entry: str) -> float:
    if not answer or len(answer) > LONGEST_ANSWER:
        return 0.0
    data, row = _row(entry)
    try:
        return float(data.score_answer(answer, entry=row))
    except _BAD_ANSWERS:  # some scores parse the answer without expecting that it may be anything
        return 0.0


@functools.lru_cache(maxsize=4096)
def _row(entry: str) -> tuple:
    """A row is made again from its number, since its metadata may hold what JSON cannot."""
    where = json.loads(entry)
    data = _task(where["task"], json.dumps(where["settings"], sort_keys=True))
    return data, data[where["row"]]


@functools.lru_cache(maxsize=16)
def _task(name: str, settings: str) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ImportError("reasoning_gym tasks need `pip install 'trl-credit[reasoning-gym]'`") from error
    if name not in DATASETS:
        raise ValueError(f"reasoning-gym has no task {name!r}: choose one of {', '.join(sorted(DATASETS))}")
    try:
        return reasoning_gym.create_dataset(name, **json.loads(settings))
    except (AssertionError, TypeError, ValueError) as error:  # how its configurations refuse values
        raise ValueError(f"--dataset_config does not fit the task {name!r}: {error}") from error
