"""Reads an answer in normal form once: what kind of thing it is, its parts, its tree and its value."""

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import cached_property, lru_cache

from math_verify import LatexExtractionConfig, LatexNormalizationConfig, parse
from sympy import Basic, Expr, Float, I, Integer

from .normal import joined, split_outside
from .units import FUNCTIONS, read_quantity


# units are handled here, since math-verify takes the t of `\sin t` for tonnes
_NORMAL = LatexNormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
)
# without an anchor, math-verify would pick a number out of a text that it cannot read
_READING = (
    LatexExtractionConfig(normalization_config=_NORMAL, boxed_match_priority=0, try_extract_without_anchor=False),
)
# math-verify takes R for r, also where a formula has both
_PRODUCT = re.compile(r"(?<![A-Za-z\\])(?<!mathbb\{)(?<!mathbb \{)[A-Za-z]{1,3}(?![A-Za-z])")
# math-verify reads E alone as e, and E with an index as an error
_ENERGY = re.compile(r"(?<![A-Za-z\\])(?<!\\mathcal\{)E(?=_)")
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?) ?\^ ?(?:\{ ?\\circ ?\}|\\circ(?![a-z]))")
PERCENT = re.compile(r"(?:\s*\\?%|\s*\bpercent)\s*$")
INEQUALITY = re.compile(r"[<>]|\\(?:leq?|geq?|lt|gt)(?![A-Za-z])")
BASED = re.compile(r"(-?[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)?)_\{?(\d{1,2})\}?")
DECIMAL = re.compile(r"-?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})")
_SEPARATOR = re.compile(r" ?(?:[,;] ?(?:and\b|or\b)?|\band\b|\bor\b) ?")
_LETTER = re.compile(r"\(?[A-Za-z]\)?[.:]?")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")

DOUBT = re.compile(
    r"(?i)\b(?:not|nor?|or|either|neither|unless|wrong|in?correct|false|than|least|most|twice|half|double|between|except|"
    r"about|times|minus|plus|negative|opposite|square|sum)\b"
)
_WORDS = r"(?:[A-Za-z]{2,20}[ -]){0,6}[A-Za-z]{2,20}"
_SAYS = re.compile(rf"(?P<label>{_WORDS}) ?(?:=|:|\bis:?) ?(?P<value>[^ ].*)", re.DOTALL)
_NAME = r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_\w|_\{[^{}]*\})?"
_POINTS = r"(?:[A-Z](?:_\d|')?){1,4}"
_LABEL = re.compile(
    # f(2), P(A \cap B), x_1(t), f^{-1}(3); not x(x + 1)
    rf"{_NAME}(?:\^\{{?-1\}}?)?'{{0,3}} ?\(-?[^()=+*/^-]*\)|[fghFPEp] ?\([^()=]*\)|"
    rf"\( ?{_NAME}(?:, ?{_NAME}){{0,5}} ?\)|"
    # \sin\theta, \cos \angle A, \sin^2 x, \tan(\alpha + \beta)
    rf"\\[a-z]{{3}}(?:\^\{{?\d\}}?)? ?(?:{_NAME}|\\angle ?{_POINTS}|\([^()=]*\)|\{{[^{{}}=]*\}})|"
    # \angle ABC, m\angle ABC, |AB|, \overline{AB}, [ABC], area of a triangle
    rf"m? ?\\(?:angle|triangle|square) ?{_POINTS}|\\(?:over[a-z]+|vec|bar|(?:wide)?hat)\{{ ?\\?\w+ ?\}}|"
    rf"(?:\||\\lvert ?|\[)(?:\\triangle ?)?{_POINTS}(?:\||\\rvert ?|\])|{_NAME}"
)
_MATRIX = re.compile(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}", re.DOTALL)
_COMPONENT = re.compile(
    r"(?P<value>[+-]?(?:[\d.*/]|\\(?:frac|sqrt|cdot)|\{[^{}ijk]*\}|\([^()ijk]*\))*)(?P<axis>[ijk])(?=[+-]|$)"
)
_LONGEST_SUM = 200  # characters of a sum of unit vectors
_POINT = re.compile(r"(?:(?:[Tt]he )?[Pp]oint )?(?:[A-Z]'? ?)?(?=\([^()]*,)")
_LEAD = re.compile(
    r"^(?:\\(?:therefore|implies|Rightarrow|approx)(?![A-Za-z]) ?|: ?)*"
    r"(?:(?:[Tt]he )?(?:year|number|value|integer|polynomial|function|equation) (?![a-zA-Z]{2}| )|"
    r"(?i:(?:(?:the|my|final|correct) ){0,2}(?:answer|option|choice|letter):? (?=\(?[a-z]\)?\.?$)))?"
)
_SIDES = re.compile(r" ?(?:(?<![<>!:\\]):?=|\\(?:approx|simeq|thickapprox)(?![A-Za-z])) ?")


class Kind(Enum):
    LETTER = "a choice or a variable"
    LIST = "values with commas"
    TUPLE = "values in brackets, or an interval"
    MATRIX = "rows of values"
    SET = "values in braces"
    TEXT = "words"
    FORMULA = "a number, an expression, an equation or a relation"


@dataclass(frozen=True)
class Answer:
    """An answer in normal form, or a part of one."""

    text: str

    @cached_property
    def kind(self) -> Kind:
        if self.text.startswith("\\{"):
            return Kind.SET
        if _MATRIX.fullmatch(self.text):
            return Kind.MATRIX
        if len(self.parts) > 1:
            return Kind.LIST
        if self.text[:1] in ("(", "[") and "," in self.text:
            return Kind.TUPLE
        if _LETTER.fullmatch(self.text):
            return Kind.LETTER
        return Kind.TEXT if self.words else Kind.FORMULA

    @cached_property
    def parts(self) -> list[str]:
        """The values between commas, "and" or "or"."""
        return [part.strip() for part in split_outside(_SEPARATOR, self.text)]

    @property
    def elements(self) -> list[str]:
        """The values of a list, set, tuple, row or column, and the rows of a matrix; ±2 are two."""
        if self.kind is Kind.MATRIX:
            rows = _MATRIX.fullmatch(self.text)[1].split("\\\\")
            return [f"[{row.replace('&', ',')}]" if "&" in row else row.strip() for row in rows]
        begin = {Kind.SET: 2, Kind.TUPLE: 1}.get(self.kind, 0)
        parts = read(self.text[begin:-begin].strip()).parts if begin else self.parts
        return [part.replace("\\pm", sign) for part in parts for sign in "+-"[: 1 + (part.count("\\pm") == 1)]]

    @cached_property
    def words(self) -> list[str]:
        """The words of a text; there are none in a formula or in a number with its unit."""
        if read_quantity(self.text):
            return []
        text = re.sub(r"\\(?:begin|end)\{[^{}]*\}", " ", self.text)
        return [word.lower() for word in _WORD.findall(text) if word.lower() not in FUNCTIONS]

    @cached_property
    def tree(self) -> Basic | None:
        """The unevaluated tree of a formula, or `None` for what cannot be parsed."""
        if DECIMAL.fullmatch(self.text):
            return Float(self.text) if "." in self.text else Integer(self.text)
        return next((parsed for parsed in parsed_as(joined(self.text)) if isinstance(parsed, Basic)), None)

    @cached_property
    def number(self) -> Expr | None:
        """The value of one real number, to 20 digits, since a float makes 1/2006! zero."""
        if not isinstance(self.tree, Expr) or not (self.tree.is_number and self.tree.is_real):
            return None
        value = self.tree.evalf(20)
        return value if value.is_Float or value.is_Rational else None

    @cached_property
    def in_base(self) -> Fraction | None:
        """The value of a number with a base, or of a whole decimal number."""
        match = BASED.fullmatch(self.text) or re.fullmatch(r"(-?\d{1,300})()", joined(self.text))
        whole, _, part = match[1].partition(".") if match else ("", "", "")
        if len(whole) > 300 or len(part) > 300 or not re.search(r"\d|[A-F]", whole):
            return None
        try:
            base = int(match[2] or 10)
            return Fraction(int(whole + part, base), base ** len(part))
        except ValueError:  # a digit or base too large: a variable with an index
            return None

    def along_axes(self, size: int) -> list[str]:
        """The components of a sum of unit vectors: i - 2j + 5k. Empty for other texts."""
        bare = self.text.replace(" ", "") if len(self.text) <= _LONGEST_SUM else ""
        parts = list(_COMPONENT.finditer(bare))
        axes = {part["axis"]: part["value"] for part in parts}
        is_whole = "".join(part.group() for part in parts) == bare and len(axes) == len(parts)
        if not is_whole or not axes.keys() & set("jk") or not (size == 3 or (size == 2 and "k" not in axes)):
            return []
        values = [axes.get(axis, "0").removeprefix("+") for axis in "ijk"[:size]]
        return [f"{value}1" if value in ("", "-") else value for value in values]


read = lru_cache(maxsize=4096)(Answer)


def is_label(text: str) -> bool:
    """Whether a text names a quantity: x, f(2), |AB|, the angle ABC, the sine of an angle."""
    return _LABEL.fullmatch(text) is not None


def without_label(text: str) -> str:
    """The value alone if a label stands before it: f(2) = 42, Total cost = 42, Option B, Answer: 42."""
    text = _LEAD.sub("", text)
    if text.endswith(")") and (point := _POINT.match(text)) and point.end():  # P(3,4)
        return text[point.end() :]
    says = _SAYS.fullmatch(text)
    if says and not DOUBT.search(says["label"]) and not re.search(r"[=<>]|\\approx|\\[lg]eq?", says["value"]):
        return says["value"].strip()
    sides = _SIDES.split(text)
    return sides[1] if len(sides) == 2 and sides[1] and is_label(sides[0]) else text


@lru_cache(maxsize=4096)
def parsed_as(text: str) -> list:
    """What math-verify's parser makes of a formula: its unevaluated tree, and the text."""
    letters = set("".join(_PRODUCT.findall(text)))
    capitals = "".join(letter for letter in letters if letter.isupper() and letter.lower() in letters)
    if capitals:
        text = _PRODUCT.sub(lambda product: re.sub(f"[{capitals}]", r"\\mathcal{\g<0>}", product[0]), text)
    text = _ENERGY.sub(r"\\mathcal{E}", text)
    if _TRIGONOMETRIC.search(text):
        text = _DEGREES.sub(r"(\1\\pi/180)", text)
    parsed = parse(f"\\boxed{{{text}}}", extraction_config=_READING, parsing_timeout=None)
    # the i of √3 i is a symbol, that of i √3 is the imaginary unit
    return [p.xreplace({s: I for s in p.free_symbols if s.name == "i"}) if isinstance(p, Expr) else p for p in parsed]
