"""Numbers with an integer parameter: π/4 + kπ for all integers k, whatever the letter, n ≡ 1 (mod 3), all odd n."""

import re
from typing import NamedTuple

from sympy import Expr, Symbol

from .normal import split_outside
from .read import Kind, read, without_label
from .sets import Comparison


_LINK = (
    r"(?:[ ,;:|(]|\\(?:mid|vert|quad|forall)(?![A-Za-z])|"
    r"\b(?:where|for|with|and|all|any|every|each|some|an?|is|are|integers?)\b)*"
)
_CLAUSE = re.compile(rf"(?<![ ,;:|(]){_LINK}\b(?P<letter>[a-zA-Z])(?: ?\\in(?P<domain>(?![A-Za-z]).+)|{_LINK})[ )]*$")
_PARTS = re.compile(r" ?(?:[,;]|\bor\b|\band\b|\\(?:lor|vee|cup)(?![A-Za-z])) ?")
_NAMED = re.compile(r"[A-Za-z] ?=[^=]+")
_LONE = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_CLASS = re.compile(
    r"(?:(?<![A-Za-z])(?P<subject>[A-Za-z]) ?)?(?:(?:\\not ?)?(?:\\equiv(?![A-Za-z])|=) ?)?"
    r"(?P<residues>(?:\\pm ?|-)?\d{1,9}(?: ?(?:,|or|and) ?-?\d{1,9}){0,20}) ?"
    r"\(? ?(?:\\[pb]?mod|mod(?:ulo)?)(?![A-Za-z]) ?\{? ?(?P<modulus>[1-9]\d{0,2}) ?\}? ?\)?|"
    r"\b(?P<parity>odd|even)\b|(?:\bnot )?(?:\ba )?\b(?:multiples? of|divisible by) ?(?P<divisor>[1-9]\d{0,2})(?!\d)|"
    r"(?P<factor>[1-9]\d{0,2}) ?\\mid(?= ?[a-z]$)"
)
_FILLER = re.compile(
    r"\b(?:all|any|every|each|for|the|is|are|an?|that|which|positive|integers?|numbers?|or|and)\b|[ ,]"
)
_CLUE = re.compile(r"\\(?:in|pi|circ|mid)(?![A-Za-z])|mod|odd|even|integer|multiple|divisible")
_MOST = 30  # numbers of a formula that are looked for in the other family
_LONGEST = 300  # characters


class _Family(NamedTuple):
    """Formulas with a letter for all integers. `domain` is the set of that letter, if the text names it. `subject` is
    the letter of the numbers themselves: n in n ≡ 1 (mod 3)."""

    parts: list[str]
    letter: str
    domain: str = ""
    subject: str = ""


_Line = list[tuple[float, float]]  # start and step of each component of a tuple, or of a number


def both_families(answer: str, gold: str) -> Comparison | None:
    """Compares families of numbers or tuples, if one says that it is a family."""
    families = [_read(answer), _read(gold)]
    if any(family and family.domain for family in families):
        families = [family or _read(text, bare=True) for family, text in zip(families, (answer, gold), strict=True)]
    if None in families:
        return None
    numbers = tuple(", ".join(family.parts).replace(family.letter, "k") for family in families)
    return Comparison(_equal(*families), True, numbers)


def _read(text: str, *, bare: bool = False) -> _Family | None:
    """A family that says that its letter is an integer, or is periodic: 2π + kπ or 30° + 360° k. If `bare`, a formula
    with one letter is enough."""
    if len(text) > _LONGEST or not (bare or _CLUE.search(text)):
        return None
    if text.startswith("\\{") and text.endswith("\\}"):
        text = text[2:-2].strip()
    clause = _CLAUSE.search(text)
    domain = (clause["domain"] or "Z" * ("integer" in clause[0])) if clause else ""
    body = text[: clause.start()].rstrip(" ,;(") if domain else text
    if (bare or body not in ("odd", "even")) and (classes := _classes(body)):
        return classes
    parts = [part.strip() for part in split_outside(_PARTS, body)]
    # x and y together, but x or x
    is_tuple = len({part[:1] for part in parts if _NAMED.fullmatch(part)}) == len(parts) > 1 and " or " not in body
    parts = [without_label(part) for part in (sorted(parts) if is_tuple else parts)]
    letters = set(_LONE.findall(re.sub(r"\\[A-Za-z]+", " ", " ".join(parts)))) - {"e", "i"}
    form = r"[^<>=]+" if domain or bare else r"[^<>=]*\\(?:pi|circ)[^<>=]*"
    if len(letters) != 1 or not all(re.fullmatch(form, part) for part in parts):
        return None
    letter, parts = letters.pop(), [f"({', '.join(parts)})"] if is_tuple else parts
    domain = re.sub(r"\\mathbb|[ {}()]", "", domain).replace("ℤ", "Z")
    return _Family(parts, letter, domain) if letter in ({clause["letter"]} if domain else set("klmnpjt")) else None


def _classes(text: str) -> _Family | None:
    """Congruences with one modulus, parity and divisibility as formulas: n ≡ 2, 4 (mod 6) as 6k + 2, 6k + 4."""
    classes = list(_CLASS.finditer(text))
    subjects = set(_FILLER.sub("", _CLASS.sub(" ", text))) | {match["subject"] for match in classes} - {None}
    moduli = {int(match["modulus"] or match["divisor"] or match["factor"] or 2) for match in classes}
    are_others = {"not" in match[0] for match in classes}
    if len(moduli) != 1 or len(are_others) > 1 or not re.fullmatch("[A-Za-z]?", "".join(subjects)):
        return None
    (modulus,), (is_other,) = moduli, are_others
    residues = {
        sign * int(number) % modulus
        for match in classes
        for number in re.findall(r"-?\d+", match["residues"] or str(int(match["parity"] == "odd")))
        for sign in ((1, -1) if "\\pm" in (match["residues"] or "") else (1,))
    }
    formulas = [f"{modulus}w+{i}" if i else f"{modulus}w" for i in range(modulus) if (i in residues) != is_other]
    return _Family(formulas, "w", "Z", "".join(subjects)) if 0 < len(formulas) <= _MOST else None


def _equal(one: _Family, other: _Family) -> bool:
    """Whether both have the same elements. Without a domain the formulas must be the same, but for the letter."""
    domains, subjects = {one.domain, other.domain} - {""}, {one.subject, other.subject} - {""}
    forms = {("\\circ" in part, len(_components(part))) for part in one.parts + other.parts}
    # n ≡ 1 (mod 2) is not 2n + 1
    if max(len(domains), len(subjects), len(forms)) > 1 or subjects & {one.letter, other.letter}:
        return False
    lines = [_lines(one), _lines(other)]
    return None not in lines and all(
        any(_has(other_line, [start + i * step for start, step in line], "Z" in domains) for other_line in b)
        for a, b in (lines, lines[::-1])
        for line in a
        for i in range(_MOST)
    )


def _has(line: _Line, values: list[float], is_endless: bool) -> bool:
    offsets = [(value - start, step) for value, (start, step) in zip(values, line, strict=True)]
    count = round(next(offset / step for offset, step in offsets if step))
    return (is_endless or count >= 0) and all(abs(offset - count * step) < 1e-8 for offset, step in offsets)


def _components(text: str) -> list[str]:
    return read(text).elements if read(text).kind is Kind.TUPLE else [text]


def _lines(family: _Family) -> list[_Line] | None:
    """A line of each formula for even and for odd letters, if it is linear in the letter."""
    lines, whole = [], Symbol("whole", integer=True)
    signed = [part.replace("\\pm", sign, 1) for part in family.parts for sign in "+-"[: 1 + ("\\pm" in part)]]
    for parts in map(_components, signed):
        trees = [read(re.sub(r"\^ ?\{? ?\\circ ?\}?", "", part)).tree for part in parts]
        if not all(isinstance(tree, Expr) for tree in trees):
            return None
        for odd in (0, 1):
            values = [tree.subs(dict.fromkeys(tree.free_symbols, 2 * whole + odd)).expand() for tree in trees]
            line = [(value.subs(whole, 0), value.diff(whole)) for value in values]
            if not all(value.is_number and value.is_real for pair in line for value in pair):
                return None
            lines.append([(float(start), float(step)) for start, step in line])
    return lines if all(any(step for _, step in line) for line in lines) else None
