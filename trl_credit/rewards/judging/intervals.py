"""Inequalities of one letter as intervals: x < 1 or x > 3, and the set of such x."""

import re


SET = re.compile(
    r"\\\{ ?(?P<letter>[A-Za-z])(?: ?\\in ?(?:\\mathbb ?\{? ?R ?\}?|R))? ?"
    r"(?:\\mid|\\vert|:|\|) ?(?P<what>(?:(?!\\\}).)*) ?\\\}"
)
_JOIN = re.compile(r" ?(?:\b(?P<word>or|and)\b|\\(?P<sign>cup|lor|vee|land|wedge)(?![A-Za-z])|,) ?(?:(?:or|and) )?")
_SIGN = r" ?(<|>|\\(?:leq?|geq?|lt|gt|leqslant|geqslant)(?![A-Za-z])) ?"
_ONE = re.compile(rf"([A-Za-z]){_SIGN}([^<>]+)")
_TURNED = re.compile(rf"([^<>]+?){_SIGN}([A-Za-z])")
_TWO = re.compile(rf"([^<>]+?){_SIGN}([A-Za-z]){_SIGN}([^<>]+)")
_LEAST, _MOST = "-\\infty", "\\infty"


def as_intervals(text: str) -> str:
    """An inequality of several parts as an interval or a union of intervals; any other text unchanged."""
    found = SET.fullmatch(text)
    inside = found["what"].strip() if found else text
    parts = [part.strip() for part in _JOIN.split(inside)[:: _JOIN.groups + 1]]
    if len(parts) < 2:
        return inside
    joins = {join["word"] or join["sign"] or "or" for join in _JOIN.finditer(inside)}
    pieces = [interval(part) for part in parts]
    letters = {piece[0] for piece in pieces if piece}
    if None in pieces or len(letters) != 1:
        return text
    if not joins & {"and", "land", "wedge"}:
        return "\\cup ".join(f"{left}{low}, {high}{right}" for _, left, low, high, right in pieces)
    if len(pieces) != 2:
        return text
    below = [piece for piece in pieces if piece[3] == _MOST]
    above = [piece for piece in pieces if piece[2] == _LEAST]
    if len(below) != 1 or len(above) != 1:
        return text
    return f"{below[0][1]}{below[0][2]}, {above[0][3]}{above[0][4]}"


def interval(text: str) -> tuple[str, str, str, str, str] | None:
    """Letter, left bracket, lower end, upper end and right bracket of an inequality, or `None` for other text."""
    if found := _ONE.fullmatch(text):
        letter, sign, value = found.groups()
        is_upper = _is_less(sign)
    elif found := _TURNED.fullmatch(text):
        value, sign, letter = found.groups()
        is_upper = not _is_less(sign)
    else:
        found = _TWO.fullmatch(text)
        if not found or not (_is_less(found[2]) and _is_less(found[4])):
            return None
        low, first, letter, second, high = found.groups()
        return letter, _bracket(first, "["), low, high, _bracket(second, "]")
    if is_upper:
        return letter, "(", _LEAST, value, _bracket(sign, "]")
    return letter, _bracket(sign, "["), value, _MOST, ")"


def _is_less(sign: str) -> bool:
    return sign == "<" or sign.startswith("\\l")


def _bracket(sign: str, closed: str) -> str:
    """`closed` if the end belongs to the interval, else the open bracket of that side."""
    is_open = sign in ("<", ">", "\\lt", "\\gt")
    return {"[": "(", "]": ")"}[closed] if is_open else closed
