"""Sets of real numbers, as intervals, unions, inequalities, exceptions or lists: x < 1 or x > 3, x ≠ 2, ℝ∖{2}."""

import re
from collections import Counter
from typing import NamedTuple

from sympy import Expr, FiniteSet, Float, Intersection, Interval, S, Set, Union, oo

from .normal import compiled, rewritten, split_outside, without_brackets
from .read import is_label, read


_REALS = {"": "(-\\infty,\\infty)", "positive": "(0,\\infty)", "nonnegative": "[0,\\infty)", "nonzero": "!=0"}
_ONE_SIGN = compiled(  # for each meaning
    (r"\\([lg])(?:(t)|eq?|eqslant)(?![A-Za-z])", lambda sign: "<>"[sign[1] == "g"] + "=" * (not sign[2])),
    (r"\\neq?(?![A-Za-z])|\\not ?=", "!="),
    # all real numbers x such that x > 1
    (r"^(?i:for |all |any |real |numbers? |values of |[a-z] such that )+(?=[A-Za-z] ?(?:[<>!]|\\(?:not)?in\b))", ""),
    (
        r"(?i:(?:the )?(?:set of )?(?:(?:all|any|every) )?(?:(?P<kind>positive|non-?negative|non-?zero) )?"
        r"reals?(?: (?:number|value)s?)?(?: of)?(?: [a-z])?(?![a-z]))|"
        r"(?:\\R(?![A-Za-z])|\\mathbb ?\{? ?R ?\}?|ℝ)(?P<plus> ?[\^_] ?\{? ?(?:\+|> ?0) ?\}?)?",
        lambda reals: _REALS["positive" if reals["plus"] else (reals["kind"] or "").lower().replace("-", "")],
    ),
    (r"\\backslash(?![A-Za-z])|\bexcept(?: for| at)?\b|(?<=[)}]) ?-(?= ?\\\{)", r"\\setminus "),
)
_SET_SIGN = re.compile(
    r"[<>ℝ]|!=|(?i:reals?\b)|^\]|\[$|"
    r"\\(?:[lg](?:t|eq?|eqslant)|neq?|not|in|notin|R|mathbb|cup|lor|vee|setminus|emptyset|infty)(?![A-Za-z])"
)
_OR = re.compile(r" ?[,;]? ?(?:\bor\b|\\(?:cup|lor|vee)(?![A-Za-z])) ?")
_AND = re.compile(r" ?[,;]? ?(?:\b(?:and|such that|where|with)\b|\\(?:land|wedge)(?![A-Za-z])) ?")
_COMMA = re.compile(r" ?[,;] ?")
_WITHOUT = re.compile(r"\\setminus(?![A-Za-z])")
_BAR = re.compile(r"\||:|\\(?:mid|vert)(?![A-Za-z])")
_MEMBER = re.compile(r"(?P<name>[^<>=!]*?) ?(?P<sign>!=|\\(?:not ?\\?)?in(?![A-Za-z])) ?(?P<values>[^<>=!]+)")
_INTERVAL = re.compile(r"[(\[\]](?P<low>[^,;]+)[,;](?P<high>[^,;]+)[)\[\]]")
_SIGN = re.compile(r" ?([<>]=?|=) ?")
_TURNED = str.maketrans("<>", "><")
_LONGEST = 500  # characters


class Comparison(NamedTuple):
    """Whether two answers are equal, whether the first is as finished as the second, and the numbers in each."""

    equal: bool
    done: bool
    numbers: tuple[str, str]


def both_sets(answer: str, gold: str) -> Comparison | None:
    """Compares sets of real numbers, if one is written as a set or with inequalities and the other as a set or list."""
    if max(len(answer), len(gold)) > _LONGEST or not (_SET_SIGN.search(answer) or _SET_SIGN.search(gold)):
        return None
    try:
        one, other = _Reading(answer), _Reading(gold)
    except ValueError:  # no sets of numbers
        return None
    equal = one.elements == other.elements and len(one.names | other.names) < 2
    return Comparison(equal, one.done or not other.done, (", ".join(one.numbers), ", ".join(other.numbers)))


class _Reading:
    """A set, the names of its elements, and the ends of its intervals and its lone numbers as they are written.

    Raises a `ValueError` if the text is no set of real numbers.
    """

    def __init__(self, text: str) -> None:
        self.numbers: list[str] = []
        self.names: set[str] = set()
        self._ends: Counter[Expr] = Counter()
        self.elements = self._read(rewritten(text, _ONE_SIGN))

    @property
    def done(self) -> bool:
        """Whether nothing is left to unite, to intersect or to take away: all that is written is an end of the set."""
        return self._ends <= Counter(end for part in Union.make_args(self.elements) for end in part.boundary)

    def _read(self, text: str) -> Set:
        text = without_brackets(text.strip())
        if (member := _MEMBER.fullmatch(text)) and (not member["name"] or _is_name(member["name"])):
            self.names |= {member["name"]} - {""}
            values = self._read(member["values"])
            return values if member["sign"] == "\\in" else values.complement(S.Reals)
        for separator in (_OR, _WITHOUT, _AND, _COMMA):
            if len(parts := split_outside(separator, text)) > 1:
                return _combined([self._read(part) for part in parts], separator)
        if text.startswith("\\{") and text.endswith("\\}"):
            head, *conditions = split_outside(_BAR, text[2:-2])
            # {1, 2}, {x | x > 1} or {x ∈ ℝ | x > 1}
            return self._read("\\land ".join(conditions if conditions and "\\in" not in head else [head, *conditions]))
        if interval := _INTERVAL.fullmatch(text):
            above = self._beside(">=" if text[0] == "[" else ">", interval["low"])
            return Intersection(above, self._beside("<=" if text[-1] == "]" else "<", interval["high"]))
        sides = _SIGN.split(text)  # 5, x > 1, 1 < x or 1 < x < 2
        sets = [] if len(sides) > 1 else [self._beside("=", text)]
        for left, sign, right in zip(sides[:-2:2], sides[1::2], sides[2::2], strict=True):
            name, sign, value = (left, sign, right) if _is_name(left) else (right, sign.translate(_TURNED), left)
            if not _is_name(name):
                raise ValueError("no interval")
            self.names.add(name)
            sets.append(self._beside(sign, value))
        return Intersection(*sets)

    def _beside(self, sign: str, text: str) -> Set:
        """The numbers that are less than a value, greater, or the same. ±2 are two values."""
        text = text.strip()
        values = [_value(text.replace("\\pm", one).strip()) for one in "+-"[: 1 + ("\\pm" in text)]]
        if values[0] not in (oo, -oo):
            self.numbers.append(text)
            self._ends.update(values)
        if sign == "=":
            return FiniteSet(*values)
        (value,) = values
        is_open = "=" not in sign
        return Interval(value, oo, is_open) if sign[0] == ">" else Interval(-oo, value, False, is_open)


def _combined(sets: list[Set], separator: re.Pattern[str]) -> Set:
    """Parts with commas: x < 1, x > 3 are a union, x > 1, x < 3 and x > 1, x ≠ 2 an intersection."""
    if separator is _WITHOUT:
        return sets[0] - Union(*sets[1:])
    union = Union(*sets)
    are_lists = all(isinstance(part, FiniteSet) for part in sets)
    is_both = (separator is _AND and not are_lists) or (separator is _COMMA and union == S.Reals)
    return Intersection(*sets) if is_both else union


def _is_name(text: str) -> bool:
    return is_label(text) and text not in ("e", "i", "\\pi", "\\infty")


def _value(text: str) -> Expr:
    """A real number to 9 digits, so that equal numbers are the same."""
    if infinity := re.fullmatch(r"([+-]?) ?\\infty", text):
        return -oo if infinity[1] == "-" else oo
    value = read(text).number
    if value is None:
        raise ValueError("no real number")
    return Float(value, 9)
