"""What the problem says about its answer: whether it has an order, and what would be a copy of the problem."""

import re
from collections import Counter
from functools import lru_cache

from .forms import without_label
from .plain import plain, squeezed


LONGEST_PROBLEM = 50_000  # characters, from the end
_END = r"(?:[a-z]+est|least|most|first|last|left|right|top|bottom|best|worst)"
_ORDER = re.compile(
    rf"(?i)\b{_END} to (?:the )?{_END}\b|"
    r"\b(?:in|into)\s+(?:(?!any\b|no\b|either\b|random\b|arbitrary\b)[a-z-]+\s+){0,3}order\b"
    r"(?!\s+(?:to\b|that\b|of\s+operations|for\b))|\border(?:ed)?\s+from\b"
)
_ANY_ORDER = re.compile(r"(?i)\b(?:in )?(?:any|no particular|either) order\b|\border (?:does not|doesn't) matter")
_RESPECTIVELY = re.compile(r"(?i)\brespectively\b")
_ASKS = re.compile(
    r"(?i)\?|\b(?:find|what|which|compute|determine|give|list|enter|express|write|state|calculate|evaluate|answer|report|"
    r"provide|name|solve|separate)\b"
)
_SENTENCE = re.compile(r"(?<=[.?!])\s+|\n\s*\n")
_MATH = re.compile(r"\$([^$]{1,300})\$|\\\(([^$]{1,300}?)\\\)|\\\[([^$]{1,300}?)\\\]")
_REWRITE = re.compile(
    r"(?i)\b(?:write|express|convert|change|turn|reduce|simplify|rewrite|represent|translate|round|rationali[sz]e|compute|"
    r"evaluate|calculate)\b"
)
_EXPAND = re.compile(r"(?i)\b(?:expand|multiply out)\b|\bwithout (?:parentheses|brackets)\b")
_FACTOR = re.compile(r"(?i)(?<!common )(?<!the )\bfactor(?:i[sz]e)?\b(?! of| is)(?=[^.?]*[$\\x(])")
_SUM_IN_BRACKETS = re.compile(r"\([^(),=]*[^(),=^{*/+-][+-][^(),=]*\)")
_SYMBOL = re.compile(r"\\[A-Za-z]+|\d+(?:\.\d+)?|\.\d+|[^\s{}$&()\\.,;:?*]|[()]|\\.")
_VARIABLES = ("abc", "xyz", "pqr", "mn", "uvw")
_SILENT = {"(", ")", "\\cdot", "\\times", "*", "\\quad"}
_OPERATION = re.compile(r"[+*/^!=<>-]|\\(?:frac|sqrt|binom|cdot|times|log|ln|sin|cos|tan|sum|int|prod|lim|le|ge|lt|gt)")
_PLAIN = re.compile(r"-?(?:\d+(?:\.\d+)?|\.\d+)")
_NUMERIC = re.compile(r"[-\d.,/\\{}frac_%\s]+|\d+_\{?\d+\}?")


@lru_cache(maxsize=4096)
def asks_order(problem: str) -> bool:
    """Whether the order of several answers counts: "respectively" in a sentence that asks, "least to greatest"."""
    text = problem[-LONGEST_PROBLEM:]
    if _ANY_ORDER.search(text):
        return False
    if _ORDER.search(text):
        return True
    return any(_RESPECTIVELY.search(part) and _ASKS.search(part) for part in _SENTENCE.split(text))


def is_product(letters: str, problem: str) -> bool:
    """Whether small letters in a row are numbers of the problem multiplied: each stands alone in a formula of it. Of an
    unknown problem, whether they are what variables are called."""
    if not letters.isalpha() or letters != letters.lower() or len(set(letters)) < len(letters):
        return False
    if not problem:
        return any(set(letters) <= set(names) for names in _VARIABLES)
    formulas = " ".join(filter(None, (part for found in _MATH.findall(problem[-LONGEST_PROBLEM:]) for part in found)))
    return all(re.search(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", formulas) for letter in letters)


def names(answer: str, problem: str) -> bool:
    """Whether what an answer says equals something stands in the problem, and not as equal to that already."""
    name, _, value = squeezed(plain(answer)).partition("=")
    if len(name) < 3 or not value:
        return False
    asked = _squeezed(problem[-LONGEST_PROBLEM:])
    return name in asked and f"{name}={value}" not in asked


@lru_cache(maxsize=1024)
def _squeezed(problem: str) -> str:
    return squeezed(plain(problem)).replace("$", "")


def restated(answer: str, gold: str, problem: str) -> bool:
    """Whether an answer that equals its gold is written otherwise, and stands in the problem: it was copied.

    The order of its terms and factors does not count, nor do signs of multiplication and brackets. A number alone is a
    copy only where the problem asks to write it in another way.
    """
    answer, gold = plain(answer), plain(gold)
    if squeezed(answer) == squeezed(gold):
        return False
    whole, answer, gold = answer, without_label(answer), without_label(gold)
    if squeezed(answer) == squeezed(gold):
        return False
    said = _symbols(answer)
    if Counter(said) == Counter(_symbols(gold)) or all(map(_PLAIN.fullmatch, (answer, gold))):
        return False
    problem = problem[-LONGEST_PROBLEM:]
    said = said[:-2] if said[-2:] == ["_", "10"] else said  # of base ten
    if _SUM_IN_BRACKETS.search(answer) and not _SUM_IN_BRACKETS.search(gold) and _EXPAND.search(problem):
        return True
    if _SUM_IN_BRACKETS.search(gold) and not _SUM_IN_BRACKETS.search(answer) and _FACTOR.search(problem):
        return True
    if _NUMERIC.fullmatch(answer) and not _REWRITE.search(problem):
        return False
    if not (_OPERATION.search(answer) or _NUMERIC.fullmatch(answer)):
        return False
    given = _given(problem)
    return _stands_in(said, given) or (whole != answer and _stands_in(_symbols(whole), given))


@lru_cache(maxsize=1024)
def _given(problem: str) -> tuple[str, ...]:
    return tuple(_symbols(plain(problem)))


def _symbols(text: str) -> list[str]:
    return [symbol for symbol in _SYMBOL.findall(text) if symbol not in _SILENT]


def _stands_in(symbols: list[str], given: tuple[str, ...]) -> bool:
    """Whether some stretch of what is given has the same symbols, in whatever order."""
    wanted, size = Counter(symbols), len(symbols)
    if not size or size > len(given):
        return False
    missing = Counter(wanted)
    off = sum(missing.values())  # how many symbols the stretch lacks
    for i, symbol in enumerate(given):
        off -= missing[symbol] > 0
        missing[symbol] -= 1
        if i >= size:
            out = given[i - size]
            missing[out] += 1
            off += missing[out] > 0
        if off == 0 and _ends_there(symbols, given, i, size):
            return True
    return False


def _ends_there(symbols: list[str], given: tuple[str, ...], last: int, size: int) -> bool:
    """A stretch that goes on with a power or a factorial is part of something else."""
    before, after = given[last - size : last - size + 1], given[last + 1 : last + 2]
    return after not in (("^",), ("!",), ("_",)) and before not in (("^",), ("_",)) and bool(symbols)
