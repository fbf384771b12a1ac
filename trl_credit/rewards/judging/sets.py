"""Sets of real numbers, as intervals, unions, inequalities, exceptions or lists: x < 1 or x > 3, x ≠ 2, ℝ∖{2}."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .forms import split_outside
from .intervals import SET, interval
from .values import decimal_of, parsed_as, value_of


SET_SIGN = re.compile(
    r"[<>]|\\(?:leq?|geq?|lt|gt|leqslant|geqslant|neq?|notin|not|cup|setminus|backslash|infty|lor|vee|emptyset|R)"
    r"(?![A-Za-z])|\\mathbb ?\{? ?R|\breals?\b|^\]|\[$"
)
_OR = re.compile(r" ?[,;]? ?(?:\bor\b|\\(?:cup|lor|vee)(?![A-Za-z])) ?")
_AND = re.compile(r" ?[,;]? ?(?:\band\b|\\(?:land|wedge)(?![A-Za-z])) ?")
_COMMA = re.compile(r" ?[,;] ?")
_ANY = re.compile(r" ?(?:[,;]|\band\b|\bor\b|\\(?:cup|lor|vee)(?![A-Za-z])) ?")
_REALS = re.compile(
    r"(?:[A-Za-z] ?\\in ?)?(?:\\mathbb ?\{? ?R ?\}?|\\R|ℝ)|"
    r"(?i:(?:the )?(?:set of )?(?:(?:all|any|every) )?reals?(?: numbers?| values?)?(?: of)?(?: ?\b[a-z])?)"
)
_HALVES = {  # of the real numbers: whether zero belongs to it
    r"(?:[A-Za-z] ?\\in ?)?\\mathbb ?\{? ?R ?\}? ?[\^_] ?\{? ?(?:\+|> ?0) ?\}?": False,
    r"(?:all )?positive real(?: number)?s": False,
    r"(?:all )?non-?negative real(?: number)?s": True,
}
_LETTER_IN = re.compile(r"([A-Za-z]) ?\\in(?![A-Za-z]) ?")
_WITHOUT = re.compile(r" ?(?:\\(?:setminus|backslash)(?![A-Za-z])|\bexcept(?: for| at)?\b|(?<=[)}R]) ?-) ?")
_NOT = re.compile(r"(?:([A-Za-z]) ?)?(?:\\neq?(?![A-Za-z])|\\not ?=) ?(.+)", re.DOTALL)
_NOT_IN = re.compile(r"([A-Za-z]) ?(?:\\notin(?![A-Za-z])|\\not ?\\in(?![A-Za-z])) ?(.+)", re.DOTALL)
_EQUALS = re.compile(r"([A-Za-z])(?:_\d)? ?= ?(.+)", re.DOTALL)
_ALL = re.compile(r"(?i)^(?:(?:for )?(?:all|any) )?(?:real )?(?:numbers |values of )?(?=[a-z] ?(?:[<>]|\\[lgn]))")
# P(0) < 0 and x_1 < 0 are about one number, as x < 0 is
_NUMBER = re.compile(
    r"(?<![A-Za-z\\])([A-Za-z])(?:\(\w+\)|_\w)(?= ?(?:[<>=]|\\(?:leq?|geq?|lt|gt|neq?|in)(?![A-Za-z])))"
)
_SUCH = re.compile(r" ?(?:\b(?:such that|where|with)\b) ?")
_INFINITY = re.compile(r"([+-]?) ?\\infty")
_MOST_PARTS = 20
_LONGEST = 500  # characters


@dataclass
class RealSet:
    """Disjoint intervals in order: low, whether it belongs to it, high, whether it belongs to it. A point is one too.

    Args:
        done (`bool`): nothing is left to unite, to intersect or to take away.
        ends (`list[str]`): how the ends were written.
        letters (`set[str]`): names of the elements.
    """

    pieces: list[tuple[float, bool, float, bool]]
    done: bool = True
    ends: list[str] = field(default_factory=list)
    letters: set[str] = field(default_factory=set)

    def equals(self, other: "RealSet") -> bool:
        if self.letters and other.letters and self.letters != other.letters:
            return False
        pairs = zip(self.pieces, other.pieces, strict=False)
        return len(self.pieces) == len(other.pieces) and all(
            _near(a[0], b[0]) and _near(a[2], b[2]) and a[1] == b[1] and a[3] == b[3] for a, b in pairs
        )


def read_set(text: str) -> RealSet | None:
    """The set that a text in normal form says, or `None` if it is no set of numbers."""
    if len(text) > _LONGEST:
        return None
    if len({found.group() for found in _NUMBER.finditer(text)}) == 1:
        text = _NUMBER.sub(r"\1", text)
    return _listed(text) or _read(text)


def _read(text: str) -> RealSet | None:
    text = text.strip()
    if found := SET.fullmatch(text):
        inside = _read(found["what"].strip())
        return inside and _with_letters(inside, {found["letter"]})
    text = _ALL.sub("", text)
    for separator, combined in ((_OR, _union), (_AND, _intersection), (_COMMA, _either), (_SUCH, _intersection)):
        parts = split_outside(separator, text)
        if len(parts) > 1:
            return _combined(parts, combined)
    return _single(text)


def _combined(texts: list[str], combined: Callable[[list[RealSet]], RealSet]) -> RealSet | None:
    if len(texts) > _MOST_PARTS:
        return None
    parts: list[RealSet] = []
    for i, text in enumerate(texts):
        if i and _NOT.fullmatch(texts[i - 1].strip()) and _value(text) is not None:  # x ≠ 2, 3
            texts[i] = f"\\neq {text}"
        part = _read(texts[i])
        if part is None:
            return None
        parts.append(part)
    found = combined(parts)
    found.letters = set().union(*(part.letters for part in parts))
    found.ends = [end for part in parts for end in part.ends]
    return found


def _single(text: str) -> RealSet | None:
    if _REALS.fullmatch(text):
        return _reals()
    if half := [closed for name, closed in _HALVES.items() if re.fullmatch(name, text)]:
        return RealSet([(0.0, half[0], math.inf, False)])
    if re.fullmatch(r"(?:all )?non-?zero real(?: number)?s", text):
        return _outside(_reals(), _points(["0"]), set())
    if text == "\\emptyset":
        return RealSet([])
    if found := _NOT_IN.fullmatch(text):
        return _outside(_reals(), _read(found[2]), {found[1]})
    if found := _NOT.fullmatch(text):
        return _outside(
            RealSet([(-math.inf, False, math.inf, False)]), _points([found[2]]), set(filter(None, [found[1]]))
        )
    if len(parts := split_outside(_WITHOUT, text)) == 2:
        return _outside(_read(parts[0]), read_set(parts[1]), set())
    if found := _LETTER_IN.match(text):
        inside = read_set(text[found.end() :])
        return inside and _with_letters(inside, {found[1]})
    if text.startswith("\\{") and text.endswith("\\}"):
        return _listed(text[2:-2])
    if len(text) > 2 and text[0] in "([]" and text[-1] in ")][":
        ends = split_outside(_COMMA, text[1:-1])
        if len(ends) != 2:
            return _read(text[1:-1]) if text[0] == "(" and text[-1] == ")" and len(ends) == 1 else None
        return _interval(text[0] == "[", *ends, text[-1] == "]", set())
    if found := interval(text):
        letter, left, low, high, right = found
        return _interval(left == "[", low, high, right == "]", {letter})
    return _listed(text)


def _listed(text: str) -> RealSet | None:
    """Numbers, or equations that give the value of one letter."""
    parts = [part.strip() for part in split_outside(_ANY, text)]
    if not 0 < len(parts) <= _MOST_PARTS:
        return None
    letters = {found[1] for part in parts if (found := _EQUALS.fullmatch(part))}
    points = _points([_EQUALS.sub(r"\2", part) for part in parts])
    return points if points is None or len(letters) > 1 else _with_letters(points, letters)


def _points(texts: list[str]) -> RealSet | None:
    """A finite set; ±2 are two points."""
    signed = [text.replace("\\pm", sign, 1) for text in texts for sign in "+-"[: 1 + ("\\pm" in text)]]
    values = [_value(text) for text in signed]
    if None in values or any(map(math.isinf, values)):
        return None
    found = _union(RealSet([(value, True, value, True)]) for value in values)
    found.ends = texts
    return found


def _interval(left: bool, low: str, high: str, right: bool, letters: set[str]) -> RealSet | None:
    ends = _value(low), _value(high)
    if None in ends or ends[0] >= ends[1]:
        return None
    pieces = [(ends[0], left and not math.isinf(ends[0]), ends[1], right and not math.isinf(ends[1]))]
    return RealSet(pieces, ends=[end for end in (low, high) if "infty" not in end], letters=letters)


def _value(text: str) -> float | None:
    text = text.strip()
    if found := _INFINITY.fullmatch(text):
        return -math.inf if found[1] == "-" else math.inf
    number = decimal_of(text)
    if number is None and text and not re.search(r"[,<>=]|\\\{|\\(?:neq?|cup|in|emptyset|mathbb)(?![A-Za-z])", text):
        number = value_of(parsed_as(text))
    return None if number is None else float(number)


def _near(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def _with_letters(found: RealSet, letters: set[str]) -> RealSet:
    found.letters = found.letters | letters
    return found


def _union(parts: Iterable[RealSet]) -> RealSet:
    parts = list(parts)
    pieces = sorted((piece for part in parts for piece in part.pieces), key=lambda p: (p[0], not p[1]))
    merged: list[tuple[float, bool, float, bool]] = []
    for low, with_low, high, with_high in pieces:
        if merged and (merged[-1][2] > low or (_near(merged[-1][2], low) and (merged[-1][3] or with_low))):
            before = merged.pop()
            if _near(high, before[2]):
                high, with_high = before[2], before[3] or with_high
            elif before[2] > high:
                high, with_high = before[2], before[3]
            low, with_low = before[0], before[1]
        merged.append((low, with_low, high, with_high))
    return RealSet(merged, done=len(merged) == len(pieces) and all(part.done for part in parts))


def _complement(part: RealSet) -> RealSet:
    pieces, low, with_low = [], -math.inf, False
    for piece in part.pieces:
        if piece[0] > low or (with_low and not piece[1] and low == piece[0]):
            pieces.append((low, with_low, piece[0], not piece[1]))
        low, with_low = piece[2], not piece[3]
    if low < math.inf:
        pieces.append((low, with_low, math.inf, False))
    return RealSet(pieces)


def _intersection(parts: list[RealSet]) -> RealSet:
    """Done if no part can be left out, as in x > 2 and x < 5."""
    whole = _complement(_union(map(_complement, parts)))
    rest = [_complement(_union(_complement(p) for p in parts if p is not part)) for part in parts]
    real = [not _is_all(part) for part in parts]
    needed = all(not other.equals(whole) for other, is_real in zip(rest, real, strict=True) if is_real)
    return RealSet(whole.pieces, done=needed and bool(whole.pieces) and all(part.done for part in parts))


def _either(parts: list[RealSet]) -> RealSet:
    """Parts with commas: x < 1, x > 3 are a union, x > 1, x < 3 and x > 1, x ≠ 2 an intersection."""
    union = _union(parts)
    return _intersection(parts) if len(parts) > 1 and _is_all(union) else union


def _reals() -> RealSet:
    return RealSet([(-math.inf, False, math.inf, False)])


def _is_all(part: RealSet) -> bool:
    return part.pieces == _reals().pieces


def _outside(base: RealSet | None, removed: RealSet | None, letters: set[str]) -> RealSet | None:
    if base is None or removed is None:
        return None
    finite = all(piece[0] == piece[2] for piece in removed.pieces)
    found = _intersection([base, _complement(removed)])
    found.done = base.done and (_is_all(base) or (finite and any(piece[0] < piece[2] for piece in base.pieces)))
    found.ends, found.letters = base.ends + removed.ends, letters | base.letters
    return found
