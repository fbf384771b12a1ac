"""Procedural tasks of the reasoning-gym library: rows by the name of a task, and the task's own score as reward."""

import functools
import json
from typing import Any

from ..support.conversation import response_text
from .judging import extract_answer


_ROWS = 1000  # rows of a task whose settings do not give a size
_LONGEST_ANSWER = 10_000  # characters; even grids are shorter
_BAD_ANSWERS = (ArithmeticError, AttributeError, LookupError, RecursionError, SyntaxError, TypeError, ValueError)


def reasoning_gym_rows(task: str, *, settings: dict[str, Any], seed: int) -> list[dict]:
    """Rows of a task, the same for the same settings: `problem`, `answer` (one of the right answers), `id` and `entry`.

    Args:
        task (`str`):
            Name in reasoning-gym, such as `chain_sum`.
        settings (`dict`):
            Fields of the task's configuration, including `size` (default: 1000 rows) and `seed`.
        seed (`int`):
            Seed, if `settings` has none.

    Raises:
        ImportError: reasoning-gym is not installed.
        ValueError: there is no such task, or it does not take the settings.
    """
    settings = {"size": _ROWS, "seed": seed, **settings}
    data, rows = _task(task, json.dumps(settings, sort_keys=True)), []
    for i in range(len(data)):
        answer = None if data[i]["answer"] is None else str(data[i]["answer"])
        entry = json.dumps({"task": task, "settings": settings, "row": i}, sort_keys=True)
        row_id = f"{task}-{settings['seed']}-{i}"
        rows.append({"problem": data[i]["question"], "answer": answer, "id": row_id, "entry": entry})
    return rows


def reasoning_gym_reward(completions: list, entry: list[str], **kwargs) -> list[float]:
    """The task's score of the response's answer (its last box, `<answer>`, …); 0 without one.

    The score is reasoning-gym's, in [0, 1]. Some of its tasks parse the answer with SymPy in this process, without a
    sandbox.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Responses, plain or conversational.
        entry (`list[str]`):
            Column of the rows: the task and row that each response answers.
    """
    answers = [extract_answer(response_text(completion)) for completion in completions]
    return [_score(answer, row) for answer, row in zip(answers, entry, strict=True)]


def _score(answer: str | None, entry: str) -> float:
    if not answer or len(answer) > _LONGEST_ANSWER:
        return 0.0
    data, row = _row(entry)
    try:
        return float(data.score_answer(answer, entry=row))
    except _BAD_ANSWERS:  # some scores do not expect that an answer may be anything
        return 0.0


@functools.lru_cache(maxsize=4096)
def _row(entry: str) -> tuple:
    """Makes a row again from its number, since JSON cannot hold all metadata."""
    where = json.loads(entry)
    data = _task(where["task"], json.dumps(where["settings"], sort_keys=True))
    return data, data[where["row"]]


@functools.lru_cache(maxsize=16)
def _task(name: str, settings: str) -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise ImportError("reasoning_gym tasks need `pip install 'trl-credit[reasoning-gym]'`") from error
    try:
        return reasoning_gym.create_dataset(name, **json.loads(settings))
    except (AssertionError, TypeError, ValueError) as error:  # how it refuses names and values
        raise ValueError(f"reasoning-gym has no task {name!r} with that --dataset_config: {error}") from error
