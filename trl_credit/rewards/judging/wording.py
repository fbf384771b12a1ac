"""Undoes what wording and notation add to an answer, where the gold shows what is meant: numbers in words, articles,
the text of a choice, dates, ratios in words, vectors and matrices in another notation."""

import re

from .equations import same_notation
from .forms import split_outside, without_label
from .naming import in_order
from .plain import plain
from .rules import Rules
from .units import FUNCTIONS


_UNITS = "zero one two three four five six seven eight nine".split()
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_VALUES = {word: i for i, word in enumerate(_UNITS + _TEENS)} | {word: 10 * i for i, word in enumerate(_TENS, 2)}
_FIRST = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
_FIRST |= {"twelve": "twelfth"} | {word: f"{word[:-1]}ieth" for word in _TENS}
_ORDINALS = {_FIRST.get(word, f"{word}th"): value for word, value in _VALUES.items() if value}
_ANY = "|".join([*_VALUES, "hundred", "thousand"])
_SMALL = rf"(?:(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_UNITS[1:])}))?|{'|'.join(_UNITS + _TEENS)})"
_UNDER = rf"(?:(?:{'|'.join(_UNITS[1:])}) hundred(?:(?: and)? {_SMALL})?|{_SMALL})"
_CARDINAL = re.compile(
    rf"(?P<sign>(?:minus|negative) )?(?P<words>{_UNDER} thousand(?:,? (?:and )?{_UNDER})?|{_UNDER})"
    r"(?P<noun>(?: [a-z]{3,20}){0,3})"
)
_NO_NOUN = re.compile(rf"\b(?:{_ANY}|{'|'.join(_ORDINALS)}|hal(?:f|ves)|quarters?|point|dozen|score)s?\b")
_PLACE = r"(?: (?:place|position|day|term|row|floor|grade|person|one))?"
_ORDINAL = re.compile(
    rf"(?:the )?(?:(?P<number>\d{{1,9}}) ?(?:\^ ?\{{? ?)?(?:st|nd|rd|th)(?: ?\}})?|"
    rf"(?:(?P<ten>{'|'.join(_TENS)})[ -])?(?P<word>{'|'.join(_ORDINALS)})){_PLACE}"
)
_TO = re.compile(r"\d{1,9}(?: (?:is )?to \d{1,9})+")
_MONTHS = "January February March April May June July August September October November December".split()
_MONTH = "|".join(rf"{name[:3]}(?:{name[3:]}|t)?" if len(name) > 3 else name for name in _MONTHS)
_DATE = re.compile(
    rf"(?i)(?:the )?(?:(?P<month>{_MONTH})\.? (?P<day>\d{{1,2}})(?: ?(?:st|nd|rd|th))?|(?P<day2>\d{{1,2}})"
    rf"(?: ?(?:st|nd|rd|th))?(?: of)? (?P<month2>{_MONTH})\.?)(?P<year>,? \d{{4}})?"
)
_YES = re.compile(r"(?i)(?P<word>yes|no|true|false)(?P<rest>\W.*)?", re.DOTALL)
_WAVERS = re.compile(
    r"(?i)\b(?:yes|no|true|false|or|but|maybe|however|unless|depends|if|wait|actually|both|sometimes)\b"
)
_LETTER = re.compile(r"\(?([A-Z])[).]?")
_CHOICE = re.compile(r"\(?([A-Z])[).:] *(?!or\b|and\b|[,/&|])(?P<text>\S.*)", re.DOTALL)
_MORE = re.compile(r"\([A-Za-z]\)(?!\^)|(?<![A-Za-z])(?!A [a-z]{3})[A-Z](?![A-Za-z])")
_PROSE = re.compile(r"[A-Za-z][A-Za-z -]*")
_ARTICLE = re.compile(r"(?i)(?:an?|the) (?=[a-z]{3})")
_CHAIN = re.compile(r" ?(?:<|>|\\[lg]t(?![A-Za-z])) ?")
_CONDITION = re.compile(
    r",? for (?:all|every|any|each)(?P<what>(?: (?:real|rational|integer)s?(?: numbers?)?)? \(?[a-z](?:, ?[a-z])*\)?"
    r"(?: ?\\in ?\\mathbb ?\{? ?[A-Z] ?\}?)?)(?= ?(?:,|;|and\b|or\b|$))"
)
_JOIN = re.compile(r" ?(?:[,;] ?(?:and|or)?|\band\b|\bor\b) ?")
_FUNCTION = re.compile(r"(?P<head>[A-Za-z]\([a-z](?:, ?[a-z])*\)) ?(?:=|\\equiv) ?(?P<value>[^=<>]+)")
_MATRIX = re.compile(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}", re.DOTALL)
_NESTED = re.compile(r"\[ ?(\[[^\[\]]+\](?: ?, ?\[[^\[\]]+\])*) ?\]")
_ANGLED = re.compile(r"<([^<>=]+)>")
_HAT = re.compile(r"\\(?:math(?:bf|rm)|bm|hat|vec|widehat)(?![A-Za-z])|\\(?=[ij]math)|(?<=\\[ij])math")
_BRACED = re.compile(r"\{+ *\\?([ij])(?:math)? *\}+|\{+ *(k) *\}+")
_COMPONENT = re.compile(
    r"(?P<value>[+-]?(?:[\d.*/]|\\(?:frac|sqrt|cdot)|\{[^{}ijk]*\}|\([^()ijk]*\))*)"
    r"(?P<axis>[ijk])(?=[+-]|$)"
)
_COMMA = re.compile(r",")


def reworded(answer: str, gold: str, rules: Rules) -> tuple[str, str, Rules]:
    """Answer and gold, both in normal form, in one wording and notation, and the rules by which they are judged."""
    if letter := choice(answer, gold):
        return letter, gold, rules
    values = in_order(answer, gold, rules.names)
    if values is not None:
        return values, gold, rules._replace(ordered=values[0] != "(", untupled=False)
    if rules.falls and _PROSE_LIST.fullmatch(gold):
        answer = _as_list(answer, rules.falls)
    if functions := _functions(answer, gold):
        return *functions, rules
    if vectors := _vectors(answer, gold):
        return *vectors, rules._replace(untupled=False)
    if "=" in gold and "=" in answer:
        return *same_notation(answer, gold), rules
    return _in_figures(_bare(answer, gold)), _in_figures(_bare(gold, gold)), rules


_PROSE_LIST = re.compile(r"[A-Za-z\d.]+(?:, ?[A-Za-z\d.]+)+")


def choice(answer: str, gold: str) -> str | None:
    """The letter of an answer that is a choice with its text, where the gold is a letter."""
    right = _LETTER.fullmatch(gold)
    found = _CHOICE.fullmatch(answer) if right else None
    return found[1] if found and not _MORE.search(found["text"]) else None


def _bare(text: str, gold: str) -> str:
    """A word without its article, and yes or no without its reasons."""
    yes = _YES.fullmatch(text) if _YES.fullmatch(gold) else None
    if yes:
        return text if _WAVERS.search(yes["rest"] or "") else yes["word"]
    words = without_label(text) if _PROSE.fullmatch(text) else ""
    if not words or not _PROSE.fullmatch(gold) or len(gold) < 3 or FUNCTIONS & set(words.lower().split()):
        return text
    return _ARTICLE.sub("", words, count=1) if _ARTICLE.match(words) else text


def _in_figures(text: str) -> str:
    """Numbers, ordinals, ratios and dates in words, in figures."""
    if text.isdigit():
        return text
    low = text.lower()
    if found := _ORDINAL.fullmatch(low):
        return found["number"] or str(_VALUES.get(found["ten"], 0) + _ORDINALS[found["word"]])
    if _TO.fullmatch(text):
        return re.sub(r" (?:is )?to ", ":", text)
    if found := _DATE.fullmatch(text):
        month = next(name for name in _MONTHS if name.startswith((found["month"] or found["month2"])[:3].capitalize()))
        year = (found["year"] or "").strip(", ")
        return f"{month} {int(found['day'] or found['day2'])} {year}".strip()
    found = _CARDINAL.fullmatch(low)
    if not found or _NO_NOUN.search(found["noun"]):
        return text
    total = value = 0
    for word in re.findall("[a-z]+", found["words"]):
        value = value * 100 if word == "hundred" else value + _VALUES.get(word, 0)
        total, value = (total + value * 1000, 0) if word == "thousand" else (total, value)
    number = f"{'-' if found['sign'] else ''}{total + value}"
    if not found["noun"]:
        return number
    counted = plain(f"{number}\\text{{{found['noun']}}}")
    return counted if counted != f"{number}{found['noun']}" else text


def _as_list(text: str, falls: str) -> str:
    """Cara > Ann > Bea as a list, turned round if the problem asks for the other order."""
    signs = {sign.strip().replace("\\gt", ">").replace("\\lt", "<") for sign in _CHAIN.findall(text)}
    if len(signs) != 1:
        return text
    parts = _CHAIN.split(text)
    return ", ".join(parts if signs == {falls} else reversed(parts))


def _functions(answer: str, gold: str) -> tuple[str, str] | None:
    """Values of one function: f(x) = x for all x, and f(x) = -x, as x, -x."""
    conditions = {found["what"] for found in _CONDITION.finditer(answer)}
    if len(conditions) > 1:  # pieces of one function
        return None
    sides = []
    for text in (_CONDITION.sub("", answer), gold.replace("$", "")):
        parts = [_FUNCTION.fullmatch(part.strip()) for part in split_outside(_JOIN, text)]
        if not all(parts):
            return None
        sides.append(parts)
    heads = {part["head"].replace(" ", "") for parts in sides for part in parts}
    if len(heads) > 1 or (len(sides[1]) < 2 and not conditions):
        return None
    return tuple(", ".join(part["value"] for part in parts) for parts in sides)


def _vectors(answer: str, gold: str) -> tuple[str, str] | None:
    """Matrices as such, and vectors as tuples, if the two are written in different ways."""
    nested = [_NESTED.fullmatch(text) for text in (answer, gold)]
    if any(nested) and any("{pmatrix}" in text for text in (answer, gold)):
        return tuple(_from_nested(n[1]) if n else text for n, text in zip(nested, (answer, gold), strict=True))
    size = next((len(parts) for name, parts in map(_components, (gold, answer)) if parts and name != "axes"), 0)
    (found, parts), (right, values) = _components(answer, size), _components(gold, size)
    if not parts or not values or found == right or {found, right} == {"row", "column"}:
        return None
    return tuple(f"({', '.join(part)})" for part in (parts, values))


def _from_nested(text: str) -> str:
    rows = " \\\\ ".join(re.findall(r"\[([^\[\]]+)\]", text)).replace(",", " & ")
    return f"\\begin{{pmatrix}} {rows} \\end{{pmatrix}}"


def _components(text: str, size: int = 3) -> tuple[str, list[str]]:
    """How a vector is written, and its components."""
    if found := _MATRIX.fullmatch(text):
        rows = [row.strip() for row in found[1].split("\\\\")]
        if "&" not in found[1]:
            return "column", rows
        return ("row", [part.strip() for part in rows[0].split("&")]) if len(rows) == 1 else ("", [])
    if found := _ANGLED.fullmatch(text):
        return "angled", [part.strip() for part in split_outside(_COMMA, found[1])]
    if text[:1] == "(" and text[-1:] == ")" and len(parts := split_outside(_COMMA, text[1:-1])) > 1:
        return "tuple", [part.strip() for part in parts]
    bare = _BRACED.sub(r"\1\2", _HAT.sub("", text)).replace(" ", "")
    found = list(_COMPONENT.finditer(bare))
    axes = {part["axis"]: part["value"] for part in found}
    whole = "".join(part.group() for part in found) == bare
    fits = size == 3 or (size == 2 and "k" not in axes)
    if not whole or not fits or len(axes) != len(found) or not axes.keys() & set("jk"):
        return "", []
    values = [axes.get(axis, "0").removeprefix("+") for axis in "ijk"[:size]]
    return "axes", [f"{value}1" if value in ("", "-") else value for value in values]
