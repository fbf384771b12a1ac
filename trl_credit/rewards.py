"""Reward functions by name, and the check that their golds can be read.

`accuracy_reward` is math-verify with the last boxed or `####` answer of the response. It refuses to parse what could
hang the parser (very long answers, towers of powers), but parses in this process: treat it as good for mathematics of
school and competition kind, not as a sandbox.
"""

import math
import re
import threading
import unicodedata
from collections.abc import Callable, Iterable

from math_verify import parse, verify
from sympy import Expr

from .demo import demo_reward
from .names import resolve_function


LONGEST_ANSWER = 200  # characters
MOST_PARTS = 20  # boxes of one answer
_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s{0,3}\{|\s{1,3}(?=[\w\\-]))")
_TOKEN = re.compile(r"-?[\w.]+|\\[A-Za-z]+(?:\{[^{}]*\}){0,2}")
_BESIDE = re.compile(r"[\s$,;]*(?:and|or|\\text\{ ?(?:and|or) ?\})?[\s$,;]*")
_PERCENT = re.compile(r"\s*\\?%\s*$")
_INEQUALITY = re.compile(r"[<>≤≥]|\\(?:leq?|geq?|lt|gt)(?![A-Za-z])")
_E_NOTATION = re.compile(r"(?<![\w.\\])(-?\d+(?:\.\d+)?)[eE]([+-]?\d+)(?!\w)")
# 9^9^9, 9^{9^9}, (9^9)^9, but neither 2^3 \cdot 3^2 nor e^{x^2}
_TOWER = re.compile(r"\^[\s{(]*[\d.]+[\s})]*\^")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_TEXT = re.compile(r"\\(?:text|mbox|mathrm|textbf)\{[^{}]*\}")


def accuracy_reward(completions: list, answer: list[str], **kwargs) -> list[float]:
    """1 where the response's last `\\boxed{…}` (or what follows its last `####`) equals `answer`, else 0.

    Stricter than math-verify where that is generous: tiny numbers are told apart, 5000 % is not 50, a list of guesses
    is not its last one, and what is boxed inside `<think>` is no answer.

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
    """The content of the last `\\boxed{…}` or `\\fbox{…}`, else what follows the last `####`, else `None`.

    Boxes that stand side by side ("\\boxed{5}, \\boxed{7}", or with "and", "or" between them) are one answer with
    commas: a list of guesses is not the last of them. What stands in `<think>` does not count, and if that does not
    end, nothing does. Linear in `text`.
    """
    if "</think>" in text:
        text = text.rpartition("</think>")[2]
    elif "<think>" in text:
        return None
    boxes = list(_BOX.finditer(text))
    if boxes:
        parts: list[str] = []
        for box, follows in zip(reversed(boxes[-MOST_PARTS:]), [None, *reversed(boxes)], strict=False):
            begin = box.end()
            end = _closing(text, begin)
            if end is None and not parts:  # cut off, or far too long
                return None
            if end is None or (parts and not _BESIDE.fullmatch(text, end, follows.start())):
                break
            parts.insert(0, text[begin : end - (text[begin - 1] == "{")].strip())
        return ",".join(parts)
    if "####" in text:
        lines = text.rsplit("####", 1)[1].strip().splitlines()
        return lines[0].strip() if lines else None
    return None


def _closing(text: str, begin: int) -> int | None:
    """Where a box that begins at `begin` ends, its brace included; without a brace it is one token."""
    if text[begin - 1] != "{":
        token = _TOKEN.match(text, begin)
        return token.end() if token else None
    depth = 1
    for i in range(begin, min(len(text), begin + LONGEST_ANSWER + 2)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i + 1
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
    answer, right = _plain(answer), _plain(read_gold(gold))
    if answer == right:
        return True
    if _TOWER.search(answer) or answer.count("{") > 20 or answer.count("(") > 20:
        return False
    bare, bare_right = _PERCENT.sub("", answer), _PERCENT.sub("", right)
    if _same(bare, bare_right):
        return True
    # 50 % is ½, but nobody means 50 by 5000 %
    if bare != answer and bare_right == right:
        share = _number(right)
        return share is not None and abs(share) <= 1 and _same(f"({bare})/100", right)
    if bare == answer and bare_right != right:
        share = _number(answer)
        return share is not None and abs(share) <= 1 and _same(answer, f"({bare_right})/100")
    return False


def _same(answer: str, right: str) -> bool:
    # math-verify's timeouts are alarms, which only the main thread may set
    limit = {} if threading.current_thread() is threading.main_thread() else {"timeout_seconds": None}
    found, gold = _parse(answer), _parse(right)
    if verify(gold, found, **limit):
        numbers = _number(answer), _number(right)
        # it rounds to six places, at which all tiny numbers are one
        return None in numbers or math.isclose(*numbers, rel_tol=1e-4, abs_tol=0.0)
    # an inequality equals its interval, whichever of the two is the gold
    return bool(_INEQUALITY.search(answer) and not _INEQUALITY.search(right) and verify(found, gold, **limit))


def _number(text: str) -> float | None:
    """The value of an answer that is one real number."""
    for parsed in _parse(text):
        if isinstance(parsed, Expr) and parsed.is_number and parsed.is_real:
            try:
                return float(parsed)
            except (OverflowError, TypeError, ValueError):
                return None
    return None


def _plain(text: str) -> str:
    """Without thousands commas; fullwidth digits, vulgar fractions and e-notation as LaTeX writes them."""
    if not text.isascii():
        text = "".join(map(_ascii, text))
    return _E_NOTATION.sub(r"\1\\times 10^{\2}", _without_commas(text))


def _ascii(c: str) -> str:
    kind = unicodedata.decomposition(c).split(" ")[0]
    if kind == "<wide>":
        return unicodedata.normalize("NFKC", c)
    if kind == "<fraction>":
        numerator, _, denominator = unicodedata.normalize("NFKC", c).partition("\u2044")
        return f"\\frac{{{numerator}}}{{{denominator}}}"
    return c


def _parse(answer: str) -> list:
    limit = {} if threading.current_thread() is threading.main_thread() else {"parsing_timeout": None}
    return parse(f"\\boxed{{{answer}}}", **limit)


def _without_commas(text: str) -> str:
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)


REWARDS: dict[str, Callable] = {"accuracy": accuracy_reward, "demo": demo_reward}
