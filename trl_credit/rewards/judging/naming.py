"""Values with names: T(10)=2, T(11)=4, or 7 goats and 4 helicopters, in the order in which the problem has them."""

import re
from functools import lru_cache

from .asked import ASKS
from .forms import is_label, split_outside
from .numerals import in_figures
from .units import read_quantity


_OR = re.compile(r" ?[,;]? ?\bor\b ?")
_AND = re.compile(r" ?(?:[,;] ?(?:and\b)?|\band\b) ?")
_TO = re.compile(r" ?(?::|\bto\b) ?")
_COMMA = re.compile(r",")
_COLON = re.compile(r":")
_TUPLES = re.compile(r"\(([^()=]+)\) ?= ?\(([^()=]+)\)")
_VALUE = re.compile(r"(?:[Tt]he )?(?P<name>[^=:<>]+?) ?(?:[=:]|\bis\b) ?(?P<value>[^=:<>]+)")
_WORDS = re.compile(r"[A-Za-z]{3,20}(?:[ -][A-Za-z]{2,20}){0,4}")
_COUNT = re.compile(
    r"(?P<value>-?\d{1,12}(?:\.\d{1,9})?) ?(?:\\unit\{)?(?P<name>[A-Za-z]{3,20}(?: [A-Za-z]{2,20}){0,4})\}?"
)
_HAS_NAMES = re.compile(r"[=<>]|(?<![\\A-Za-z])[A-Za-z]{3}")
_LETTERS = re.compile(r"\([a-z](?:,[a-z])+\)")
_NO_NAME = re.compile(r"(?i)\b(?:not|no|or|than|wrong|false|answer|approx\w*)\b")
_DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|$)", re.DOTALL)
_TYPESET = re.compile(
    r"\$|\\(?:(?:left|right|displaystyle|text|mathrm|triangle|angle|quad)(?![A-Za-z])|[^A-Za-z])|[{}]|\s"
)
_BETWEEN = re.compile(r" ?(?:[,:/]|and|to|\)? ?,? ?and)? ?(?:the )?")  # symbols in a row
_MOST_BETWEEN = 60  # characters between two nouns of a sentence
_STOP = re.compile(r"[.?!;] |\.$")
_MOST_PARTS = 12


def read_named(text: str) -> list[dict[str, str]]:
    """Names and values; several such groups, with "or" between them, are several solutions. Empty for other texts."""
    groups: list[dict[str, str]] = []
    for group in split_outside(_OR, text):
        parts = [part.strip() for part in split_outside(_AND, group)]
        tuples = [_TUPLES.fullmatch(part) for part in parts]
        if all(tuples):
            groups += [_zipped(found[1], found[2], _COMMA) for found in tuples]
        else:
            groups.append(_ratio(group) or _pairs(parts) or _pairs([part.strip() for part in _TO.split(group)]))
    same = all(group.keys() == groups[0].keys() for group in groups)
    return groups if same and 1 < len(groups[0]) <= _MOST_PARTS else []


def in_order(answer: str, gold: str, names: tuple[str, ...]) -> tuple[str, str] | None:
    """The values of an answer in the order of their names, and the gold, both as tuples or ratios; `None` if the answer
    has no names."""
    if _HAS_NAMES.search(gold):
        return None
    groups = read_named(answer)
    if not groups and gold[:1] == "(" and _is_one_by_one(answer):
        return "", gold  # x=3 or y=-1
    if not groups or not names:
        return None
    if groups[0].keys() != set(names):
        return "", gold
    rows = [[group[name] for name in names] for group in groups]
    if len(rows) == 1 and ":" in gold:
        return ":".join(rows[0]), gold
    if len(rows) > 1 and gold[0] != "(":
        return None
    is_tuple = len(rows) > 1 or (gold[0] == "(" and len(split_outside(_COMMA, gold)) == 1)
    return ", ".join(f"({', '.join(row)})" for row in rows), gold if is_tuple else f"({gold})"


def names_in_order(answer: str, problem: str) -> tuple[str, ...]:
    """The names in an answer in normal form, in the order in which the problem asks for them; empty if it does not.

    Names that stand together in the problem, the last time that they do: nouns with a few words between them, symbols
    as a tuple or in a sentence that asks.
    """
    groups = read_named(answer)
    if not groups:
        return ()
    names = tuple(groups[0])
    if (found := _order(names, problem)) or not all(len(name) == 1 for name in names):
        return found
    asked = [tuple(re.findall("[a-z]", letters)) for letters in _LETTERS.findall(_TYPESET.sub("", problem))]
    return next((letters for letters in reversed(asked) if len(letters) == len(names)), ())


@lru_cache(maxsize=4096)
def _order(names: tuple[str, ...], problem: str) -> tuple[str, ...]:
    patterns = [_pattern(name) for name in names]
    if None in patterns:
        return ()
    text = re.sub(r" +", " ", _TYPESET.sub(" ", _DRAWING.sub(" ", problem)))
    found = sorted((hit.start(), hit.end(), i) for i, pattern in enumerate(patterns) for hit in pattern.finditer(text))
    for k in range(len(found) - len(names), -1, -1):
        row = found[k : k + len(names)]
        if len({i for *_, i in row}) == len(names) and _together(text, row, all(map(_WORDS.fullmatch, names))):
            return tuple(names[i] for *_, i in row)
    return ()


def _together(text: str, row: list[tuple[int, int, int]], nouns: bool) -> bool:
    gaps = [text[one[1] : other[0]] for one, other in zip(row, row[1:], strict=False)]
    if nouns:
        return all(len(gap) <= _MOST_BETWEEN and not _STOP.search(gap) for gap in gaps)
    begin, end = row[0][0], row[-1][1]
    if not all(map(_BETWEEN.fullmatch, gaps)) and not all(len(text[a:b]) > 2 for a, b, _ in row):
        return False
    if any(len(gap) > _MOST_BETWEEN or _STOP.search(gap) for gap in gaps):
        return False
    is_tuple = text[:begin].rstrip().endswith("(") and text[end:].lstrip().startswith(")")
    start = max((stop.end() for stop in _STOP.finditer(text, 0, begin)), default=0)
    stop = _STOP.search(text, end) or re.search(r"$", text)
    return is_tuple or bool(ASKS.search(text, start, stop.end()))


def _pattern(name: str) -> re.Pattern[str] | None:
    """What finds a name in a problem: the noun of "toy helicopters" in any number, PQT for [PQT]."""
    if _WORDS.fullmatch(name):
        noun = re.split("[ -]", name.lower())[-1]
        stem = re.sub(r"(?:ies|y|es|s)$", "", noun)
        return re.compile(rf"(?i)\b{stem}(?:ies|y|es|e|s)?\b") if len(stem) > 2 else None
    core = re.sub(r"\\(?:triangle|angle)|[\[\]|{}$ ]", "", name)
    spaced = " ?".join(map(re.escape, core))
    return re.compile(rf"(?<![A-Za-z\\\d]){spaced}(?![A-Za-z\d(^_'])") if core else None


def _zipped(names: str, values: str, separator: re.Pattern[str]) -> dict[str, str]:
    keys, items = ([part.strip() for part in split_outside(separator, text)] for text in (names, values))
    found = dict(zip(keys, items, strict=False))
    return found if len(keys) == len(items) == len(found) and all(map(_is_name, keys)) else {}


def _ratio(text: str) -> dict[str, str]:
    """[PQT]:[PTR] = 3:5."""
    names, equals, values = text.partition("=")
    return _zipped(names, values, _COLON) if equals and ":" in names and "=" not in values else {}


def _pairs(parts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in map(in_figures, parts):
        pair = _VALUE.fullmatch(part) or _COUNT.fullmatch(part)
        quantity = read_quantity(part)
        if not pair or not _is_name(pair["name"]) or pair["name"] in found or (quantity and quantity.powers):
            return {}
        found[pair["name"]] = pair["value"]
    return found


def _is_one_by_one(text: str) -> bool:
    parts = [part.strip() for group in split_outside(_OR, text) for part in split_outside(_AND, group)]
    pairs = [_VALUE.fullmatch(part) for part in parts]
    return len(parts) > 1 and all(pair and is_label(pair["name"]) and "(" not in pair["value"] for pair in pairs)


def _is_name(text: str) -> bool:
    return is_label(text) or bool(_WORDS.fullmatch(text) and not _NO_NAME.search(text))
