"""Reward functions by name, and the check that their golds can be read.

`accuracy_reward` is math-verify with the last boxed or `####` answer of the response. It refuses to parse what could
hang the parser (very long answers, towers of powers), but parses in this process: treat it as good for mathematics of
school and competition kind, not as a sandbox.
"""

import re
import threading
from collections.abc import Callable, Iterable

from math_verify import parse, verify

from .demo import demo_reward
from .names import resolve_function


LONGEST_ANSWER = 200  # characters
# 9^9^9, 9^{9^9}, (9^9)^9, but neither 2^3 \cdot 3^2 nor e^{x^2}
_TOWER = re.compile(r"\^[\s{(]*[\d.]+[\s})]*\^")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_TEXT = re.compile(r"\\(?:text|mbox|mathrm|textbf)\{[^{}]*\}")


def accuracy_reward(completions: list, answer: list[str], **kwargs) -> list[float]:
    """1 where the response's last `\\boxed{…}` (or what follows its last `####`) equals `answer`, else 0.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Responses, plain or conversational.
        answer (`list[str]`):
            Golds, as in the data set: a bare answer, or a solution with `#### answer` or `\\boxed{answer}`.

    Returns:
        `list[float]`: one per response.
    """
    return [float(_equal(extract_answer(_text(c)), gold)) for c, gold in zip(completions, answer, strict=True)]


def extract_answer(text: str) -> str | None:
    """The content of the last `\\boxed{…}`, else what follows the last `####`, else `None`. Linear in `text`."""
    start = text.rfind("\\boxed{")
    if start >= 0:
        depth, begin = 0, start + len("\\boxed")
        for i in range(begin, min(len(text), begin + LONGEST_ANSWER + 2)):
            depth += (text[i] == "{") - (text[i] == "}")
            if depth == 0:
                return text[begin + 1 : i].strip()
        return None
    if "####" in text:
        lines = text.rsplit("####", 1)[1].strip().splitlines()
        return lines[0].strip() if lines else None
    return None


def read_gold(gold: object) -> str:
    """The bare answer of a data set's gold: what is boxed or follows `####`, else all of it; no thousands commas."""
    text = str(gold).strip()
    return _without_commas(extract_answer(text) or text)


def check_answers(answers: Iterable[object]) -> None:
    """Raises a `ValueError` that shows the first gold which math-verify cannot read: its reward would be 0 for ever.

    A column of prose counts as unreadable: math-verify would take its letters for variables and multiply them. One such
    gold among formulas does not.
    """
    golds = [("" if gold is None else read_gold(gold), gold) for gold in answers]
    is_prose = [len(_PROSE.findall(_TEXT.sub(" ", answer))) >= 3 for answer, _ in golds]
    column_is_prose = 2 * sum(is_prose) > len(golds)
    for row, (answer, gold) in enumerate(golds):
        prose = column_is_prose and is_prose[row]
        if not answer or len(answer) > LONGEST_ANSWER or prose or not _parse(answer):
            raise ValueError(
                f"the answer of row {row} cannot be read as mathematics: {str(gold)[:80]!r}. Choose another "
                "--answer_column, or a --reward that reads it."
            )


def resolve_reward(name: str) -> Callable:
    """A reward function by name (`accuracy`, `demo`), dotted path (`package.module.function`) or `file.py:function`.

    Raises:
        ValueError: there is no such function.
    """
    if name in REWARDS:
        return REWARDS[name]
    return resolve_function(name, what="reward", known=REWARDS)


def _text(completion: str | list[dict]) -> str:
    """The text of a response; empty where a conversation ends without one, as in a call of a tool."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    return content if isinstance(content, str) else ""


def _equal(answer: str | None, gold: object) -> bool:
    if not answer or len(answer) > LONGEST_ANSWER:
        return False
    answer, right = _without_commas(answer), read_gold(gold)
    if answer == right:
        return True
    if _TOWER.search(answer) or answer.count("{") > 20 or answer.count("(") > 20:
        return False
    # math-verify's timeouts are alarms, which only the main thread may set
    limit = {} if threading.current_thread() is threading.main_thread() else {"timeout_seconds": None}
    return bool(verify(_parse(right), _parse(answer), **limit))


def _parse(answer: str) -> list:
    limit = {} if threading.current_thread() is threading.main_thread() else {"parsing_timeout": None}
    return parse(f"\\boxed{{{answer}}}", **limit)


def _without_commas(text: str) -> str:
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)


REWARDS: dict[str, Callable] = {"accuracy": accuracy_reward, "demo": demo_reward}
