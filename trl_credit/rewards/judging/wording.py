"""Undoes what wording and notation add to an answer, where the gold shows what is meant: numbers in words, articles,
the text of a choice, dates, ratios in words, vectors and matrices in another notation."""

import re

from .equations import same_notation
from .forms import DOUBT, split_outside, without_label
from .naming import in_order
from .numerals import NO_NOUN, in_figures
from .rules import Rules
from .units import FUNCTIONS, NO_UNITS, known_unit


_YES = re.compile(r"(?i)(?P<word>yes|no|true|false)(?P<rest>(?: ?[^\w ]| (?:because|since|as)\b).*)?", re.DOTALL)
_WAVERS = re.compile(
    r"(?i)\b(?:yes|no(?! (?!wait)[a-z])|true|false|or|but|maybe|however|unless|depends|if|wait|actually|both|"
    r"sometimes)\b"
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
_VALUE = (
    r"(?P<value>(?:[-+ \d.^_(){}/!*]|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|"
    r"\\(?:frac|sqrt|cdot|times|binom|pi)(?![A-Za-z]))+)"
)
_COUNTED = re.compile(
    rf"{_VALUE}(?<=[\w)}}!]) (?P<words>(?:[A-Za-z]{{3,20}} ){{0,2}}(?:[A-Za-z]{{2,20}}s|people|children))"
)
_NUMBERED = re.compile(
    rf"(?:(?:[Ii]n )?(?:[Tt]he )?(?P<year>[Yy]ear)|[Tt]he (?P<words>[a-z]{{3,20}})) {_VALUE}(?<=[\w)}}!])"
)
_NO_NOUN = re.compile(
    r"(?i)\b(?:pairs?|percents?|dozens?|scores?|quarters?|\w*dths?|(?:ten|hundred|thousand|million|billion)s|"
    r"perhaps|maybe|always|sometimes|guess|roughly|nearly|almost|fewer|under|over|before|after|other|next|previous|"
    r"reciprocal|inverse|cubes?|roots?|complement|factorials?|powers?|multiples?|logs?|logarithm|absolute|integral|"
    r"wrong|last)\b"
)
_LONGEST_SUM = 200  # characters of a sum of unit vectors


def reworded(answer: str, gold: str, rules: Rules) -> tuple[str, str, Rules]:
    """Answer and gold, both in normal form, in one wording and notation, and the rules by which they are judged."""
    if letter := choice(answer, gold):
        return letter, gold, rules
    values = in_order(answer, gold, rules.names)
    if values is not None:
        return *values, rules._replace(untupled=False)
    if rules.falls and "," in gold and gold[0] not in "([" and not _CHAIN.search(gold):
        answer = _as_list(answer, rules.falls)
    if functions := _functions(answer, gold):
        return *functions, rules
    named = answer.partition("=")[2].strip() if rules.named else answer
    if vectors := _vectors(without_label(_HAT.sub("", named).strip()), _HAT.sub("", gold).strip()):
        return *vectors, rules._replace(untupled=False)
    if "=" in gold and "=" in answer:
        return *same_notation(answer, gold), rules
    unlabelled, gold = without_label(answer), in_figures(_bare(gold, gold))
    figures = in_figures(unlabelled)
    if figures == unlabelled or (":" in figures and ":" not in gold):  # 3 to 8 is no fraction
        figures = _bare(answer, gold)
    if not rules.units and "\\unit" not in gold and not re.search(r"(?<!\\)\b[A-Za-z]{3}", gold):
        figures = _without_noun(figures)
    return figures, gold, rules


def choice(answer: str, gold: str) -> str | None:
    """The letter of an answer that is a choice with its text, where the gold is a letter."""
    right = _LETTER.fullmatch(gold)
    found = _CHOICE.fullmatch(answer) if right else None
    return found[1] if found and not _MORE.search(found["text"]) else None


def _bare(text: str, gold: str) -> str:
    """A word without its article, and yes or no without its reasons."""
    yes = _YES.fullmatch(text) if _YES.fullmatch(gold) else None
    if yes:
        same = yes["word"].lower() == gold.lower()
        return text if _WAVERS.search(yes["rest"] or "") else gold if same else yes["word"]
    words = without_label(text) if _PROSE.fullmatch(text) else ""
    if not words or not _PROSE.fullmatch(gold) or len(gold) < 3 or FUNCTIONS & set(words.lower().split()):
        return text
    return _ARTICLE.sub("", words, count=1) if _ARTICLE.match(words) else text


def _without_noun(text: str) -> str:
    """3n planes, 11 more CDs and the year 2444 as the value alone."""
    found = _COUNTED.fullmatch(text) or _NUMBERED.fullmatch(text)
    if not found:
        return text
    words = (found["words"] or "").removeprefix("more ")
    low = words.lower().split()
    is_unit = any(known_unit(word) or word in NO_UNITS for word in low)
    doubtful = DOUBT.search(words) or NO_NOUN.search(words.lower().replace("points", "")) or _NO_NOUN.search(words)
    return text if is_unit or doubtful else found["value"].strip()


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
    size = next((len(parts) for name, parts in map(_components, (gold, answer)) if parts and name != "axes"), 3)
    (found, parts), (right, values) = _components(answer, size), _components(gold, size)
    if not parts or not values or found == right != "axes" or {found, right} in ({"row", "column"}, {"()", "[]"}):
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
    if (kind := text[:1] + text[-1:]) in ("()", "[]") and len(parts := split_outside(_COMMA, text[1:-1])) > 1:
        return kind, [part.strip() for part in parts]
    if len(text) > _LONGEST_SUM:
        return "", []
    bare = _BRACED.sub(r"\1\2", _HAT.sub("", text)).replace(" ", "")
    found = list(_COMPONENT.finditer(bare))
    axes = {part["axis"]: part["value"] for part in found}
    whole = "".join(part.group() for part in found) == bare
    fits = size == 3 or (size == 2 and "k" not in axes)
    if not whole or not fits or len(axes) != len(found) or not axes.keys() & set("jk"):
        return "", []
    values = [axes.get(axis, "0").removeprefix("+") for axis in "ijk"[:size]]
    return "axes", [f"{value}1" if value in ("", "-") else value for value in values]
