"""Chains of equal sides that end in the answer: (3 - 2i)² = 9 - 12i - 4 = 5 - 12i."""

import re
from itertools import pairwise

from sympy import Expr, Float, cancel

from .forms import is_label, split_outside
from .plain import joined
from .units import without_units
from .values import INEQUALITY, decimal_of, parsed_as


_SIGN = re.compile(r"(?<![<>!:\\])=|\\(?:approx|simeq)(?![A-Za-z])")
_NO_CHAIN = re.compile(r"\d_|%|\\circ|\\pm|\\(?:equiv|neq?|mathbb|quad|text)(?![A-Za-z])|[;&]|\b(?:or|and|so|not)\b")
_MOST_SIDES = 12


def chain_end(text: str) -> str:
    """The last side of a chain in normal form if every other side equals it or is a name, else the text. After an
    approximation sign a decimal may be rounded. Sides are numbers or rational functions."""
    sides = [side.strip() for side in split_outside(_SIGN, text)]
    if not 2 <= len(sides) <= _MOST_SIDES or not all(sides) or _NO_CHAIN.search(text) or INEQUALITY.search(text):
        return text
    names = [side for side in sides if is_label(side)]
    if (
        is_label(sides[-1])
        or any(len(name) == 1 for name in names if name != sides[0])
        or len(names) == 1 == len(sides) - 1
    ):
        return text
    if len(_SIGN.findall(text)) != len(sides) - 1:  # a sign in brackets
        return text
    signs = _SIGN.findall(text)
    kept = [i for i, side in enumerate(sides) if side not in names]
    return sides[-1] if all(_follows(sides[i], sides[j], signs[i:j]) for i, j in pairwise(kept)) else text


def _follows(one: str, other: str, signs: list[str]) -> bool:
    other = joined(without_units(other).strip())
    values = [next((p for p in parsed_as(text) if isinstance(p, Expr)), None) for text in (joined(one), other)]
    if None in values or values[0].free_symbols != values[1].free_symbols:
        return False
    if values[0].free_symbols:
        is_exact = set(signs) == {"="} and all(value.is_rational_function() for value in values)
        return is_exact and cancel(values[0] - values[1]) == 0
    a, b = (value.evalf(20) for value in values)
    if not (a - b).is_number or not all(value.is_finite for value in (a, b)):
        return False
    places = len(other.partition(".")[2]) if decimal_of(other) is not None and set(signs) != {"="} else None
    limit = abs(b) * Float("1e-9") if places is None else Float(f"0.6e-{places}")
    return bool(abs(a - b) <= max(limit, Float("1e-15")))
