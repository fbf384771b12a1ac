"""What a problem asks for: units, nouns to count, and values with names in its order, as 7 goats and 4 helicopters."""

import re
from functools import lru_cache
from itertools import pairwise

from .normal import normal, split_outside
from .numerals import in_figures
from .read import is_label
from .units import NAME, UNIT, read_unit, unit_name


ASKS = re.compile(
    r"(?i)\?|\b(?:find|what|which|compute|determine|give|list|enter|express|write|state|calculate|evaluate|answer|report|"
    r"provide|name|solve|separate|convert|how (?:many|much|long|far))\b"
)
SENTENCE = re.compile(r"(?<=[.?!])\s+|\n\s*\n")
_TYPESET = re.compile(r"(?:\\(?:(?:text|mbox|mathrm|textrm|rm)(?![a-z])|\W)|[{}$~\s])+")
_UNIT = rf"(?:(?i:square|sq|cubic) )?{NAME}(?: ?\^ ?-?\d| squared| cubed)?"
_NAMED = re.compile(rf"(?<![A-Za-z\\]){_UNIT}(?:(?: per (?:an? )?| ?/ ?| ?\\cdot ){_UNIT})*")
_ASKED = re.compile(r"(?i)\b(?:how many|number of|in|into|to)(?: of)?(?: (?:more|full|whole|total))? ?\(?$")
_ONE = re.compile(r"(?i)(?:[\d)-]|\\pi|\b(?:per|an?|each|one|every)) ?$")
_MOST = 8  # units or nouns
_OR = re.compile(r" ?[,;]? ?\bor\b ?")
_AND = re.compile(r" ?(?:[,;] ?(?:and\b)?|\b(?:and|to)\b) ?")
_SEPARATOR = re.compile(r" ?[,:] ?")
_PAIRS = re.compile(r"\(([^()=]+)\) ?= ?\(([^()=]+)\)|([^=<>]+?) ?(?:=|\bis\b) ?([^=<>]+)|([^=:<>]+?) ?: ?([^=:<>]+)")
_WORDS = re.compile(r"[A-Z]{2}|[A-Za-z]{3,20}(?:[ -][A-Za-z]{2,20}){0,4}")
_COUNT = re.compile(rf"^(-?\d{{1,12}}(?:\.\d{{1,9}})?) ?(?:\\unit\{{)?({_WORDS.pattern})\}}?$")
_HAS_NAMES = re.compile(r"[=<>]|(?<![\\A-Za-z])[A-Za-z]{3}")
_LETTERS = re.compile(r"\( ?[a-z](?: ?, ?[a-z])+ ?\)")
_BESIDE = re.compile(r" ?(?:[,:/]|\)? ?,? ?\b(?:and|to)\b)? ?(?:the )?")  # between symbols in a row
_NEAR = re.compile(r"(?:[^.?!;]|[.?!;](?! )){0,60}")  # between two names of a sentence
_LONGEST_PART, _MOST_NAMES = 200, 12


def units_for(answer: str, gold: str, problem: str) -> tuple[str, ...]:
    """The units that a gold without one may have, if the answer has a unit: those that the problem asks for, else those
    that it names, and only what measures the same as the answer's. Answer and gold are in normal form."""
    units = UNIT.findall(answer)
    if not units or "\\unit" in gold or gold.endswith("%"):
        return ()
    quantity = read_unit(units[0])
    powers, asks = quantity.powers, r"(?i)\b(?:how m\w+|number of)\s(?:\S+\s){0,2}"
    if not powers:  # how many more fish
        is_asked = all(re.search(rf"{asks}{noun}(?:ies|y|es|e|s)?\b", problem) for noun in quantity.nouns)
        return (units[0],) if is_asked else ()
    asked, named = _units_of(problem)
    fitting = [unit for unit in asked if read_unit(unit).powers.keys() == powers.keys()]
    return tuple(fitting or [unit for unit in named if read_unit(unit).powers == powers][:_MOST])


@lru_cache(maxsize=1024)
def _units_of(problem: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The units that the problem asks for, and all that it names."""
    asked, named = {}, {}
    for sentence in SENTENCE.split(problem.replace("\\$", " dollars ")):
        sentence = re.sub(r" ?(?:\^ ?\\circ(?![a-z])|°) ?", " degrees ", _TYPESET.sub(" ", sentence))
        for match in _NAMED.finditer(sentence):
            unit, before = unit_name(match.group()), sentence[max(0, match.start() - 40) : match.start()]
            if _ASKED.search(before):
                asked[unit] = True
            elif len(unit) > 3 or _ONE.search(before):
                named |= dict.fromkeys([unit, *re.split(" per | ?/ ?", unit)])
    return tuple(asked), tuple(named)


def in_order(answer: str, gold: str, problem: str) -> tuple[str, str] | None:
    """The values of an answer in the order in which the problem has their names, and the gold, both as tuples or
    ratios; sets if the problem has other names, or a solution lacks some. `None` if there are no names."""
    groups = [] if _HAS_NAMES.search(gold) else _read(answer)
    if sum(map(len, groups)) < 2 or len(groups[0]) > _MOST_NAMES:
        return None
    is_tuple = gold[0] == "(" and len(split_outside(_SEPARATOR, gold)) == 1
    is_open = len(groups[0]) == 1 or any(group.keys() != groups[0].keys() for group in groups)  # x = 3 or y = -1
    names = () if is_open else _order(tuple(groups[0]), problem)
    if not (is_tuple if is_open else names):
        return None
    is_ordered = groups[0].keys() == set(names)
    rows = [[group[name] for name in (names if is_ordered else group)] for group in groups]
    if ":" in gold and is_ordered:
        return ":".join(rows[0]), gold
    values = ", ".join(f"({', '.join(row)})" if is_ordered else f"\\{{{', '.join(row)}\\}}" for row in rows)
    return values, gold if is_tuple or len(rows) > 1 else f"({gold})"


def _read(text: str) -> list[dict[str, str]]:
    """Values by name, a group for each solution: "or", or a name that comes again, begins one."""
    groups: list[dict[str, str]] = []
    for solution in split_outside(_OR, text):
        groups.append({})
        for part in split_outside(_AND, solution):
            pairs = _pairs(part.strip())
            if not pairs:
                return []
            groups += [{}] if pairs.keys() & groups[-1].keys() else []
            groups[-1] |= pairs
    return groups


def _pairs(text: str) -> dict[str, str]:
    """Values by name in x = 2, in 7 goats, in (x, y) = (1, 2) or in a : b = 3 : 5."""
    text = _COUNT.sub(r"\2=\1", in_figures(text)) if len(text) <= _LONGEST_PART else ""
    match = _PAIRS.fullmatch(text)
    names, values = (split_outside(_SEPARATOR, side) for side in match.groups() if side) if match else ([], [])
    are_names = all(is_label(name) or _WORDS.fullmatch(name) for name in names)
    return dict(zip(names, values, strict=True)) if are_names and len(set(names)) == len(names) == len(values) else {}


@lru_cache(maxsize=4096)
def _order(names: tuple[str, ...], problem: str) -> tuple[str, ...]:
    """Names in the order in which they stand together in the problem, the last time that they do: nouns with a few
    words between them, symbols in a row where it asks. Else the letters of its last tuple of as many."""
    gap = _NEAR if all(len(name) > 2 for name in names) else _BESIDE
    asking = problem if gap is _NEAR else " ".join(filter(ASKS.search, SENTENCE.split(problem)))
    whole, text = (_TYPESET.sub(" ", normal(part)) for part in (problem, asking))
    places = sorted((match.span(), name) for name in names for match in _pattern(name, names).finditer(text))
    for i in range(len(places) - len(names), -1, -1):
        row = places[i : i + len(names)]
        gaps = (text[end:start] for ((_, end), _), ((start, _), _) in pairwise(row))
        if {name for _, name in row} == set(names) and all(map(gap.fullmatch, gaps)):
            return tuple(name for _, name in row)
    tuples = [tuple(re.findall("[a-z]", letters)) for letters in reversed(_LETTERS.findall(whole))]
    return next((letters for letters in tuples if len(letters) == len(names) == len("".join(names))), ())


def _pattern(name: str, names: tuple[str, ...]) -> re.Pattern[str]:
    """What finds a name in a problem: the noun of "toy helicopters" in any number, red of red marbles, PQT of [PQT]."""
    core = " ?".join(map(re.escape, re.sub(r"\\(?:triangle|angle)|[\[\]|{}$ ]", "", name)))
    if _WORDS.fullmatch(name):
        own = [word for word in name.split() if all(word not in other.split() for other in names if other != name)]
        core = rf"(?i:{re.sub('(?:ies|y|es|s)$', '', (own or [name])[-1])}(?:ies|y|es|e|s)?)"
    return re.compile(rf"(?<![A-Za-z\\\d]){core}(?![A-Za-z\d(^_'])")
