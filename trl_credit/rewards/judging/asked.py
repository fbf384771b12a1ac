"""The units that a problem asks for, and those that it names."""

import re
from functools import lru_cache
from itertools import product

from .units import SPEEDS, UNITS, Quantity, read_quantity


ASKS = re.compile(
    r"(?i)\?|\b(?:find|what|which|compute|determine|give|list|enter|express|write|state|calculate|evaluate|answer|report|"
    r"provide|name|solve|separate|convert|how (?:many|much|long|far))\b"
)
SENTENCE = re.compile(r"(?<=[.?!])\s+|\n\s*\n")
_FONT = re.compile(r"\\(?:text|mbox|mathrm|textrm|rm)\s*\{([^{}]*)\}")
_DEGREE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|°")
_SPACES = re.compile(r"(?:\$|~|\\[,;:! ]|\s)+")
_NAMES = sorted({*UNITS, *SPEEDS} - {"in", "unit"}, key=len, reverse=True)
_NAME = "|".join(f"(?i:{name}(?:e?s)?)" if len(name) > 3 else name + "s?" * (len(name) > 1) for name in _NAMES)
_UNIT = (
    rf"(?:(?i:square|sq|cubic) )?(?:{_NAME}|(?<=\d )in(?= ?[.,^)]|$))(?![A-Za-z])"
    r"(?: ?\^ ?(?:-?\d|\{ ?-?\d ?\})| squared| cubed)?"
)
_NAMED = re.compile(rf"(?<![A-Za-z\\])(?P<unit>{_UNIT}(?:(?: per (?:an? )?| ?/ ?| ?\\cdot ){_UNIT})*)")
_ASKED = re.compile(
    r"(?i)\b(?:how many|number of|in|into|to)"
    r"(?: of)?(?: (?:more|full|whole|total|additional))? ?\(?$"
)
_MEASURE = re.compile(r"(?i)\b(?:degree|radian)(?= measure)")
# before a unit that is no plural: a number, a hyphen, or one of these words
_ONE = re.compile(r"(?i)(?:[\d})-]|\\pi|\b(?:per|an?|each|one|every|half|nearest|how many|\d [a-z]*llion)) ?$")
_PLURAL = re.compile(r"(?i)[a-z]{3,}s\b|feet\b|inches\b|hertz|celsius|fahrenheit|.*(?:/| per )")
_MOST = 8  # units


def units_for(answer: str, gold: str, problem: str) -> tuple[str, ...]:
    """The units that a gold without one may have, if the answer has a unit: those that the problem asks for, else those
    that it names, and only what measures the same as the answer's. Answer and gold are in normal form."""
    unit = answer.rpartition("\\unit{")[2].partition("}")[0] if "\\unit" in answer else ""
    powers = _powers(unit)
    if not powers or "unit" in powers or "\\unit" in gold or gold.endswith("%"):
        return ()
    asked, named = _units_of(problem)
    if fitting := tuple(unit for unit in asked if set(_powers(unit)) == set(powers)):
        return fitting
    if set(powers) == {"angle"} and "\\pi" in gold:
        return ("radian",)
    # miles and hours are also miles per hour
    single = [[unit for unit in named if _powers(unit) == {dimension: 1}] for dimension in powers]
    products = [
        " ".join(f"{unit}^{power}" for unit, power in zip(units, powers.values(), strict=True))
        for units in product(*single)
    ]
    whole = [unit for unit in named if _powers(unit) == powers]
    return tuple(dict.fromkeys(whole + products))[:_MOST]


def _powers(unit: str) -> dict[str, int]:
    return (read_quantity(f"1\\unit{{{unit}}}") or Quantity("")).powers


@lru_cache(maxsize=1024)
def _units_of(problem: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The units that the problem asks for, in a sentence that asks if there is one, and all that it names."""
    asking, asked, named = [], [], []
    text = _DEGREE.sub(" degrees ", _FONT.sub(r" \1 ", problem.replace("\\$", " dollars ")))
    for sentence in SENTENCE.split(text):
        sentence = _SPACES.sub(" ", sentence)
        for found in _NAMED.finditer(sentence):
            unit = re.sub(r"[{}]", "", re.sub(r" squared", "^2", re.sub(r" cubed", "^3", found["unit"]))).replace(
                "\\cdot", " "
            )
            before = sentence[max(0, found.start() - 40) : found.start()]
            is_asked = _ASKED.search(before) or _MEASURE.match(sentence, found.start())
            if is_asked and unit.lower() not in ("second", "foot"):  # in second place
                asked.append(unit)
                asking += [unit] if ASKS.search(sentence) else []
            if is_asked or _PLURAL.match(unit) or _ONE.search(before):
                named += [unit, *re.split(r" per (?:an? )?| ?/ ?", unit)]
    return tuple(dict.fromkeys(asking or asked)), tuple(dict.fromkeys(named))
