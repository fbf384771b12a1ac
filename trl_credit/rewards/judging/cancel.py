"""Fractions whose numerator and denominator are equal, or have a common factor with letters: x/x, 2x²/x."""

import re

from sympy import Add, Expr, Mul, Symbol, exp, gcd, pi

from .values import parsed_as


_FRACTION = re.compile(r"\\frac ?(?=\{)")
_SLASH = re.compile(r"(?P<above>\([^()]{1,100}\)|[\w^{}\\]{1,60}) ?/ ?(?P<below>\([^()]{1,100}\)|[\w^{}\\]{1,60})")
_LETTER = re.compile(r"(?:\\(?!frac|cdot|times|left|right|sqrt)[A-Za-z]+|(?<![\\A-Za-z])[A-Za-z]+)")
_ROOT = re.compile(r"\\sqrt|\^ ?\{? ?\(?-?(?:\d+ ?/|\\frac|\d*\.\d)")
_MOST, _LONGEST = 6, 120  # fractions, and characters of a numerator


def cancels(answer: str, gold: str) -> bool:
    """Whether a fraction of the answer can be cancelled and none of the gold can."""
    return any(map(_has_factor, _fractions(answer))) and not any(map(_has_factor, _fractions(gold)))


def _fractions(text: str) -> list[tuple[str, str]]:
    found = []
    for start in list(_FRACTION.finditer(text))[:_MOST]:
        above = _group(text, start.end())
        below = _group(text, start.end() + len(above) + 2) if above else ""
        found.append((above, below))
    return found + [(slash["above"], slash["below"]) for slash in list(_SLASH.finditer(text))[:_MOST]]


def _group(text: str, begin: int) -> str:
    """The content of the braces at a place, or the empty text."""
    if text[begin : begin + 1] != "{":
        return ""
    depth = 0
    for end in range(begin, min(len(text), begin + _LONGEST)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[begin + 1 : end]
    return ""


def _has_factor(fraction: tuple[str, str]) -> bool:
    above, below = fraction
    letters = [set("".join(_LETTER.findall(text)).replace("\\", "")) for text in fraction]
    # √x/x is a common form of 1/√x
    if not letters[0] & letters[1] or _ROOT.search(above) or _ROOT.search(below):
        return False
    if above.strip("() ") == below.strip("() "):
        return True
    parsed = [next((p for p in parsed_as(text) if isinstance(p, Expr)), None) for text in fraction]
    if None in parsed:
        return False
    named = [one.xreplace({pi: Symbol("pi")}).replace(exp, lambda power: Symbol("e") ** power) for one in parsed]
    factor = gcd(*named)
    if factor.has(Add):  # (x² - 1)/(x - 1) is a value, (x - 1)(x + 1)/(x - 1) is not
        bases = [{part.as_base_exp()[0] for part in Mul.make_args(one)} for one in named]
        return any(base.is_Add and ({base, (-base).expand()} & bases[1]) for base in bases[0])
    return bool(factor.free_symbols) and factor.free_symbols <= named[1].free_symbols
