"""Solutions with an integer parameter: π/4 + kπ for all integers k, whatever the letter."""

import math
import re
from dataclasses import dataclass

from sympy import Expr, Symbol, ilcm, nsimplify

from .forms import split_outside, without_label
from .values import parsed_as, value_of


_WHO = r"(?:all |any |every |each |some |an? )?"
_INTEGERS = r"(?P<domain{0}>\\mathbb ?\{{? ?[ZNRQC] ?\}}?(?: ?[\^_] ?\{{? ?[+0*-] ?\}}?)?|[ZNRℤℕ](?![A-Za-z]))"
_CLAUSE = re.compile(
    r"[ ,;:|(]*(?:\\(?:mid|vert|quad|forall)(?![A-Za-z])|\b(?:where|for|with|and)\b)*[ (]*"
    rf"(?:(?:\\forall|{_WHO}(?:integers? )?) ?(?P<letter1>[a-zA-Z]) ?\\in(?![A-Za-z]) ?{_INTEGERS.format(1)}|"
    rf"(?P<letter2>[a-z]) (?:is |are )?{_WHO}integers?|{_WHO}integers? (?P<letter3>[a-z]))[ )]*$"
)
_PARTS = re.compile(r" ?(?:[,;]|\bor\b|\band\b|\\(?:lor|vee|cup)(?![A-Za-z])) ?")
_LONE = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_USUAL = set("klmnpjt")
_MOST = 200  # solutions in a period
_LONGEST = 300  # characters


@dataclass
class Family:
    """Formulas with a letter for all integers. `domain`: where the letter is from, if that is said."""

    parts: list[str]
    letter: str
    domain: str = ""


def read_family(text: str, *, bare: bool = False) -> Family | None:
    """A family that says that its letter is an integer, or is periodic: 2π + kπ or 30° + 360° k. If `bare`, a formula
    with one letter is enough."""
    if len(text) > _LONGEST:
        return None
    if text.startswith("\\{") and text.endswith("\\}"):
        text = text[2:-2].strip()
    found = _CLAUSE.search(text)
    body = text[: found.start()].rstrip(" ,;(") if found else text
    parts = [without_label(part.strip()) for part in split_outside(_PARTS, body)]
    letters = set(_LONE.findall(_COMMAND.sub(" ", " ".join(parts)))) - {"e", "i"}
    if len(letters) != 1 or not all(parts):
        return None
    letter = letters.pop()
    if not found:
        is_periodic = letter in _USUAL and all(bare or "\\pi" in part or "\\circ" in part for part in parts)
        return Family(parts, letter) if is_periodic and not any(re.search(r"[<>=]", part) for part in parts) else None
    named = found["letter1"] or found["letter2"] or found["letter3"]
    domain = re.sub(r"\\mathbb|[ {}]", "", found["domain1"] or "Z").replace("ℤ", "Z")
    return Family(parts, letter, domain) if named == letter else None


def same_family(one: Family, other: Family) -> bool:
    """Whether both have the same elements. Without a domain the formulas must be the same, but for the letter."""
    if (one.domain or other.domain) != (other.domain or one.domain):
        return False
    if any(("\\circ" in part) != ("\\circ" in other.parts[0]) for part in one.parts + other.parts):
        return False
    read = [_lines(family) for family in (one, other)]
    if None in read or not all(read):
        return False
    if "Z" not in (one.domain, other.domain):
        ordered = [sorted((float(start), float(step)) for start, step in lines) for lines in read]
        return len(ordered[0]) == len(ordered[1]) and all(
            _near(x, y) for a, b in zip(*ordered, strict=True) for x, y in zip(a, b, strict=True)
        )
    base = read[0][0][1]
    ratios = [nsimplify(step / base, rational=False) for lines in read for _, step in lines]
    if any(not ratio.is_Rational or ratio == 0 for ratio in ratios):
        return False
    shared = ilcm(*(abs(ratio.p) for ratio in ratios))
    period = abs(float(base)) * shared
    elements = [_elements(lines, period) for lines in read]
    if None in elements:
        return False
    return all(any(_near_modulo(x, y, period) for y in b) for a, b in (elements, elements[::-1]) for x in a)


def _lines(family: Family) -> list[tuple[Expr, Expr]] | None:
    """Start and step of each formula, if it is linear in the letter."""
    lines = []
    for text in family.parts:
        for sign in "+-"[: 1 + ("\\pm" in text)]:
            part = re.sub(r"\^ ?\{? ?\\circ ?\}?", "", text.replace("\\pm", sign, 1))
            parsed = [p for p in parsed_as(part) if isinstance(p, Expr)]
            if not parsed:
                return None
            formula = parsed[0].expand()
            letter = next((s for s in formula.free_symbols if s.name == family.letter), Symbol(family.letter))
            halves = [formula]
            if "(-1)^" in part.replace(" ", ""):  # of even and of odd letters
                whole = Symbol("whole", integer=True)
                halves = [formula.subs(letter, 2 * whole + odd).expand().subs(whole, letter) for odd in (0, 1)]
            for half in halves:
                start, step = half.coeff(letter, 0), half.coeff(letter, 1)
                is_linear = (half - start - step * letter).expand() == 0
                if not is_linear or value_of([start]) is None or value_of([step]) is None or step == 0:
                    return None
                lines.append((start, step))
    return lines


def _elements(lines: list[tuple[Expr, Expr]], period: float) -> list[float] | None:
    counts = [round(period / abs(float(step))) for _, step in lines]
    if sum(counts) > _MOST:
        return None
    return [
        (float(start) + i * float(step)) % period
        for (start, step), count in zip(lines, counts, strict=True)
        for i in range(count)
    ]


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


def _near_modulo(a: float, b: float, period: float) -> bool:
    distance = abs(a - b) % period
    return min(distance, period - distance) < 1e-9 * max(1.0, period)
