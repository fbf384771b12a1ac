"""Answers that may take for ever to work out, known by their looks."""

import re


# a power of a power of numbers, an exponent or a factorial of many digits, a factorial of a power or of a factorial
_NUMBER = r"[({\s]*-?\d[\d.]*[)}\s]*"
_HEAVY = re.compile(
    rf"\d[)}}\s]*(?:\^|\*\*)(?:{_NUMBER}(?:\^|\*\*)|[({{\s]*\d{{5,}}|[({{\s]*{_NUMBER}!)|"
    r"(?<!\d)\d{5,}[)}\s]*+!|\^[^!]{1,20}!|![)}\s]*!"
)
_SHARE = 0.1


def seconds(answer: str, limit: float) -> float:
    """The limit of an answer by its looks, the same whatever stands beside it."""
    return limit * _SHARE if _HEAVY.search(answer) else limit
