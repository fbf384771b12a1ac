"""What math-verify makes of one formula: parsed, as a number, equal to another. Runs in a worker."""

import re
from fractions import Fraction

from math_verify import LatexExtractionConfig, LatexNormalizationConfig, parse, verify
from sympy import Expr, Float, I, ceiling, floor


# units are handled here, since math-verify takes the t of `\sin t` for tonnes
_NORMAL = LatexNormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
)
# without an anchor, math-verify would pick a number out of a text that it cannot read
_READING = (
    LatexExtractionConfig(normalization_config=_NORMAL, boxed_match_priority=0, try_extract_without_anchor=False),
)
# math-verify reads E alone as e, and E with an index as an error
_ENERGY = re.compile(r"(?<![A-Za-z\\])(?<!\\mathcal\{)E(?=_)")
_MOST_SYMBOLS = 8
PERCENT = re.compile(r"(?:\s*\\?%|\s*\bpercent)\s*$")
INEQUALITY = re.compile(r"[<>]|\\(?:leq?|geq?|lt|gt)(?![A-Za-z])")


def with_percent(answer: str, gold: str) -> bool:
    bare, bare_gold = PERCENT.sub("", answer), PERCENT.sub("", gold)
    if same(bare, bare_gold):
        return True
    if (bare != answer) == (bare_gold != gold):
        return False
    # 50 % is ½, but 5000 % is not 50
    value = value_of(parsed_as(answer if bare == answer else gold))
    if value is None or abs(value) > 1:
        return False
    return same(answer, f"({bare_gold})/100") if bare == answer else same(f"({bare})/100", gold)


def same(answer: str, gold: str) -> bool:
    numbers = decimal_of(answer), decimal_of(gold)
    if None not in numbers and numbers[0] == numbers[1]:
        return True
    if not _same_letters(answer, gold):
        return False
    found, right = parsed_as(answer), parsed_as(gold)
    if all("\\sqrt" in text for text in (answer, gold)) and _same_if_positive(found, right):
        return True
    if verify(right, found, timeout_seconds=None):
        one, other = value_of(found), value_of(right)
        # math-verify rounds to six places, which makes all tiny numbers equal
        return None in (one, other) or bool(one == other or (other != 0 and abs(one / other - 1) < 1e-4))
    # an inequality equals its interval, and either may be the gold
    is_range = INEQUALITY.search(answer) and not INEQUALITY.search(gold)
    return bool(is_range and verify(found, right, timeout_seconds=None))


def _same_if_positive(found: list, right: list) -> bool:
    """Whether formulas with roots are equal where all symbols are positive, as r is in √(ar²) = r√a. Not x, y and z,
    which may be any number."""
    one, other = (next((p for p in parsed if isinstance(p, Expr)), None) for parsed in (found, right))
    if one is None or other is None or one.free_symbols != other.free_symbols or one.has(floor, ceiling):
        return False
    symbols = sorted(one.free_symbols, key=str)
    if not 0 < len(symbols) <= _MOST_SYMBOLS or {symbol.name for symbol in symbols} & set("xyz"):
        return False
    for start in (3, 5):
        values = {symbol: Float(f"{start}.{7 + 4 * i}", 20) for i, symbol in enumerate(symbols)}
        a, b = (value_of([formula.xreplace(values)]) for formula in (one, other))
        if None in (a, b) or not abs(a - b) <= abs(b) * Float("1e-14"):
            return False
    return True


def _same_letters(answer: str, gold: str) -> bool:
    """False if a variable of one differs from one of the other only in case, which math-verify ignores."""
    letters, right = (set(re.findall(r"\\[A-Za-z]+|[A-Za-z]", text)) for text in (answer, gold))
    only, only_right = letters - right, right - letters
    return not {letter.lower() for letter in only} & {letter.lower() for letter in only_right}


def decimal_of(text: str) -> Fraction | None:
    return Fraction(text) if re.fullmatch(r"-?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})", text) else None


def value_of(parsed: list) -> Expr | None:
    """The value of an answer that is one real number, to 20 digits, since a float makes 1/2006! zero."""
    for expression in parsed:
        if isinstance(expression, Expr) and expression.is_number and expression.is_real:
            value = expression.evalf(20)
            return value if value.is_Float or value.is_Rational else None
    return None


def parsed_as(answer: str) -> list:
    answer = _ENERGY.sub(r"\\mathcal{E}", answer)
    parsed = parse(f"\\boxed{{{answer}}}", extraction_config=_READING, parsing_timeout=None)
    # the i of √3 i is a symbol, that of i √3 is the imaginary unit
    return [p.xreplace({s: I for s in p.free_symbols if s.name == "i"}) if isinstance(p, Expr) else p for p in parsed]
