"""Whether an answer is right. Runs in a worker (see `worker.py`), since it may take unlimited time."""

import math
import re
from collections.abc import Iterable

from math_verify import verify
from sympy import Abs, Basic, Derivative, Expr, Float, Integral, Limit, Product, Sum, ceiling, floor, nan, zoo
from sympy.core.function import AppliedUndef

from .families import both_families
from .normal import joined, normal, split_outside, squeezed
from .read import BASED, DECIMAL, INEQUALITY, PERCENT, Answer, Kind, is_label, parsed_as, read, without_label
from .rules import Outcome, Rules
from .sets import both_sets
from .unfinished import has_operator, sides_of, unevaluated
from .units import agree, quantities, ratio, read_quantity, without_units
from .wording import reworded


_INTEGERS = re.compile(
    r"^(?:for )?(?:all |any |every )?(?:the )?(?:positive |natural )?(?:integers?|numbers) (?:(?:with|such that) )?"
    r"(?=[a-zA-Z] ?(?:[<>]|\\[lgn]))|^[a-zA-Z] ?\\in ?\\mathbb ?\{? ?[ZN] ?\}?,? ?(?:and )?(?=[a-z])|"
    r",? ?(?:where |with )?[a-zA-Z] ?(?:\\in ?\\mathbb ?\{? ?[ZN] ?\}?(?:_\{?[^{}]*\}?)?|(?:is )?an integer)$"
)
_CONSTANT = re.compile(r"(?<![A-Za-z\\])[Cc](?!os|ot|sc|m\b)")
_LETTERS = re.compile(r"[A-Za-z]")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_CLOCK = re.compile(r"([01]?\d|2[0-3]) ?: ?(\d{2})(?: ?: ?(\d{2}))?\s*([ap])?\.?m?\.?", re.IGNORECASE)
_RATIO = re.compile(r"-?\d+(?:\s*:\s*\d+)+")
_SPELLED = re.compile(r"[A-Za-z -]+")
_TOKEN = re.compile(r"[A-Za-z]+|\d*\.?\d+|[^\s.,;:'\"*$\\]")
_SIDES = re.compile(r"(?<![<>!:\\])=|\\(?:approx|simeq)(?![A-Za-z])")
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq)(?![A-Za-z])")
_MARKS = ("'", "\\overline", "dots", "^T", "\\equiv", "\\neq")  # math-verify ignores these
# math-verify reads these as 0, so they are equal only if written alike
_ZEROS = re.compile(r"\\frac\{(?:d|\\partial)[^{}]*(?:\{[^{}]*\}[^{}]*)?\}\{(?:d|\\partial) ?\\?[A-Za-z]")
_OPEN = (AppliedUndef, Derivative, Integral, Limit, Product, Sum, floor, ceiling)  # have no value at a place
_SEPARATED = re.compile(r",|\b(?:and|or)\b")


def judged(answer: str, gold: str, rules: Rules) -> Outcome:
    """Whether an answer is right, or contains unfinished work, right or not, which strict rules refuse."""
    answer, gold, rules = reworded(normal(answer), normal(gold), rules)
    golds = [f"{gold}\\unit{{{unit}}}" for unit in rules.units] or [gold, *_equal_golds(answer, gold)]
    return _best(_judged(_as_asked(answer, gold, rules), gold, rules) for gold in golds)


def _best(outcomes: Iterable[Outcome]) -> Outcome:
    return min(outcomes, key=list(Outcome).index, default=Outcome.WRONG)


def readable(gold: str) -> bool:
    """Whether a gold is a formula, a quantity, or words."""
    answer = read(normal(gold))
    is_known = answer.kind is not Kind.FORMULA or read_quantity(answer.text) or answer.tree is not None
    return answer.text != "" and bool(is_known or any(p.fullmatch(answer.text) for p in (_CLOCK, _RATIO)))


def _judged(answer: str, gold: str, rules: Rules) -> Outcome:
    one, other = quantities(answer, gold)
    answer, gold, size = one.number, other.number, ratio(one, other)
    if not answer or not gold or not agree(one, other):
        return Outcome.WRONG
    if squeezed(answer) == squeezed(gold):
        return _outcome(size == 1)
    if rules.untupled and read(answer).kind is Kind.TUPLE and read(gold).kind is Kind.LIST:
        return Outcome.WRONG
    bare = without_label(answer)
    if compared := both_families(bare, gold) or both_sets(bare, gold):
        is_open = not compared.done or unevaluated(*compared.numbers)
        return _outcome(size == 1 and compared.equal, rules.strict and is_open)
    outcomes = []
    for value in _claims(answer, gold, rules):
        # degrees in radians have a π
        if rules.strict and unevaluated(value, f"{gold}\\pi" if size != 1 and "\\pi" in value else gold):
            outcomes.append(Outcome.UNEVALUATED)
        elif size == 1:
            outcomes.append(_outcome(same(value, gold, rules)))
        else:
            scaled = (read(value).number or nan) * size
            outcomes.append(_outcome(_same_expression(scaled, read(gold).number, "1e-6")))
    return _best(outcomes)


def _outcome(is_equal: bool, is_unfinished: bool = False) -> Outcome:
    return Outcome.UNEVALUATED if is_unfinished else Outcome.RIGHT if is_equal else Outcome.WRONG


def _equal_golds(answer: str, gold: str) -> list[str]:
    """The sides of a gold that gives a value in several ways: 0.56 = 56%. Percents need a percent sign."""
    sides = sides_of(gold)
    values = sides[1:] if is_label(sides[0]) else sides
    if len(values) < 2 or any(_LETTERS.search(_COMMAND.sub("", side)) for side in values):
        return []
    fitting = [side for side in values if PERCENT.search(side) or not PERCENT.search(answer)]
    return [side for side in fitting if not unevaluated(side, values[-1])]


def _as_asked(answer: str, gold: str, rules: Rules) -> str:
    """The answer without a base or a domain, or with brackets, where the problem allows it."""
    based = BASED.fullmatch(answer)
    if based and rules.base == int(based[2]) and gold == based[1]:
        return based[1]
    if rules.integers and not _INTEGERS.search(gold):
        answer = _INTEGERS.sub("", answer)
    letters, right = (set(_CONSTANT.findall(text)) for text in (answer, gold))
    if rules.constant and len(letters) == len(right) == 1:
        answer = _CONSTANT.sub(right.pop(), answer)
    is_list = rules.listed and read(gold).kind is Kind.TUPLE and read(answer).kind is Kind.LIST
    return f"({answer})" if is_list and gold[0] == "(" and gold[-1] == ")" else answer


def _claims(answer: str, gold: str, rules: Rules) -> list[str]:
    """The values that an answer gives, without names: the last of several equal sides, and the exact one before a
    rounded one. Empty if sides contradict each other."""
    if "=" in gold or " is " in gold:
        return [answer]
    answer = without_label(answer)
    sides = [side.strip() for side in split_outside(_SIDES, answer)]
    if len(sides) < 2 or not all(sides) or INEQUALITY.search(answer) or len(read(answer).parts) > 1:
        return [answer]
    if is_label(sides[-1]):
        return [sides[0]] if len(sides) == 2 and not is_label(sides[0]) else [answer]  # 5 = x
    is_name = is_label(sides[0]) or rules.named
    is_name |= len(sides) > 2 and not (sides[0][0].isdigit() or _LETTERS.search(_COMMAND.sub("", "".join(sides[1:]))))
    exact, *rounded = _APPROXIMATELY.split(answer)
    sides = [side.strip() for side in split_outside(_SIDES, exact)]
    done = [side for side in sides[is_name:-1] if not has_operator(side) and not (is_label(side) and len(side) > 1)]
    trees = [read(without_units(side).strip()).tree for side in (*done, sides[-1])]
    if len(rounded) > 1 or not all(_same_expression(tree, trees[-1], "1e-9") for tree in trees[:-1]):
        return []
    values = [sides[-1], *map(str.strip, rounded)]
    return values if not rounded or _rounds_to(*values) else []


def _rounds_to(exact: str, rounded: str, least: int = 0) -> bool:
    """Whether a decimal of some places, at least `least`, is the other number, rounded to these places."""
    rounded = joined(without_units(rounded).strip())
    value, places = read(exact).number, len(rounded.partition(".")[2])
    if value is None or not DECIMAL.fullmatch(rounded) or places < least:
        return False
    return abs(value - read(rounded).number) <= Float(f"0.6e-{places}")


def same(answer: str, gold: str, rules: Rules) -> bool:
    """Whether two values are equal. Each comparison serves one kind of answer, and says `None` to others."""
    if squeezed(answer) == squeezed(gold):
        return True
    a, b = read(answer), read(gold)
    return next(verdict for compare in _COMPARISONS if (verdict := compare(a, b, rules)) is not None)


def _texts(a: Answer, b: Answer, rules: Rules) -> bool | None:
    """Compares words, and letters that have an order: HHT. A product of letters has none."""
    if Kind.LIST in (a.kind, b.kind) or "=" in b.text:
        return None
    tokens, right = ([_caseless(token) for token in _TOKEN.findall(answer.text)] for answer in (a, b))
    letters = [_SPELLED.fullmatch(answer.text) is not None for answer in (a, b)]
    if all(letters) and max(map(len, tokens + right)) > 1:
        is_product = len(tokens) == len(right) == 1 and (rules.products or not (rules.strict or len(tokens[0]) > 3))
        return tokens == right or (is_product and sorted(tokens[0]) == sorted(right[0]))
    # math-verify would multiply the letters of words, which commutes
    one_word = len(a.words) == len(b.words) == 1 and a.words != b.words and len(a.words[0]) >= 4
    return False if one_word or len(b.words) >= 2 else None


def _choices(a: Answer, b: Answer, rules: Rules) -> bool | None:
    """Compares choices, (B) or B or b), and variables, whose case counts."""
    if not a.kind is b.kind is Kind.LETTER:
        return None
    one, other = (answer.text.strip("().:") for answer in (a, b))
    return one == other or (len(a.text + b.text) > 2 and one.lower() == other.lower())


def _elements(a: Answer, b: Answer, rules: Rules) -> bool | None:
    """Compares lists, sets, tuples and vectors by their elements. A list is no tuple, and a set is neither."""
    if a.kind is Kind.SET and b.kind is not Kind.SET:
        a = read(", ".join(a.elements))
    vectors = a.along_axes(len(b.elements)), b.along_axes(len(a.elements))
    parts, right, kinds = vectors[0] or a.elements, vectors[1] or b.elements, {a.kind, b.kind}
    if kinds == {Kind.MATRIX} or not (kinds & {Kind.LIST, Kind.TUPLE, Kind.SET} or len(parts) == len(right) > 1):
        return None
    if Kind.LIST in kinds and not _SEPARATED.search(joined(a.text) + joined(b.text)):
        return True if sorted(parts) == sorted(right) else None  # 100,200 may be one number or two
    if a.kind is Kind.TUPLE and b.kind is Kind.MATRIX and len(right) == 1 < len(parts):
        right = read(right[0]).elements  # a row
    names = [] if "=" in b.text else [part.split("=")[0].split("_")[0].strip() for part in parts if "=" in part]
    brackets = [answer.text[0] + answer.text[-1] for answer in (a, b)]
    if Kind.MATRIX in kinds or any(vectors):
        fits = not kinds & {Kind.LIST, Kind.SET} and (Kind.TUPLE not in kinds or bool({*brackets} & {"()", "[]"}))
    elif b.kind is Kind.TUPLE and a.kind is Kind.LIST:  # x = 1, y = 2
        fits = len(set(names)) == len(parts) and (sorted(names) == names or not all(map(str.isalpha, names)))
    elif Kind.TUPLE in kinds:
        fits = brackets[0] == (brackets[1] if b.kind is not Kind.LIST else "()")
    else:
        fits = len(set(names)) < 2 or all(map(str.isalpha, names))
    if not fits or len(parts) != len(right):
        return False
    parts = parts if "=" in b.text or " is " in b.text else list(map(without_label, parts))
    if kinds & {Kind.TUPLE, Kind.MATRIX} or rules.ordered:
        return all(same(part, other, rules) for part, other in zip(parts, right, strict=True))
    for part in parts:
        match = next((other for other in right if same(part, other, rules)), None)
        if match is None:
            return False
        right.remove(match)
    return True


def _clocks(a: Answer, b: Answer, rules: Rules) -> bool | None:
    matches = [_CLOCK.fullmatch(answer.text) for answer in (a, b)]
    if not all(matches):
        return None
    hours, times, halves = [int(match[1]) for match in matches], [match.groups("00")[1:3] for match in matches], []
    for hour, match in zip(hours, matches, strict=True):  # 15:45 is 3:45 PM
        halves.append(match[4].lower() if match[4] else "" if 0 < hour <= 12 else "ap"[hour >= 12])
    is_half = halves[0] == halves[1] or ("" in halves and hours[0] == hours[1])
    return is_half and hours[0] % 12 == hours[1] % 12 and times[0] == times[1]


def _ratios(a: Answer, b: Answer, rules: Rules) -> bool | None:
    if not _RATIO.fullmatch(a.text) or not _RATIO.fullmatch(b.text):
        return None
    rows = [list(map(int, answer.text.split(":"))) for answer in (a, b)]
    one, other = ([number // (math.gcd(*row) or 1) for number in row] for row in rows)
    return one == other


def _based(a: Answer, b: Answer, rules: Rules) -> bool | None:
    """Compares numbers with a base, 52_8, by value. A base that the answer lacks is the gold's."""
    digits = BASED.fullmatch(b.text)
    if digits and a.text.upper() == digits[1].upper():
        return True
    if not BASED.fullmatch(a.text) and (not digits or a.in_base is None):
        return None
    return a.in_base == b.in_base is not None


def _formulas(a: Answer, b: Answer, rules: Rules) -> bool:
    """Compares numbers, expressions, equations and relations."""
    if any(a.text.count(mark) != b.text.count(mark) for mark in _MARKS):
        return False
    if any(re.search(r"(?<![_^\d])\d+ \d", answer.text) or _ZEROS.search(answer.text) for answer in (a, b)):
        return False
    if "\\lim" in a.text and "\\lim" in b.text:
        return False
    texts = [joined(answer.text) for answer in (a, b)]
    bare = [PERCENT.sub("", text) for text in texts]
    if _same_formula(*bare) or (bare[0] == texts[0]) == (bare[1] == texts[1]):
        return _same_formula(*bare)
    # 50 % is ½, but 5000 % is not 50
    parts = [f"({x})/100" if x != text else x for x, text in zip(bare, texts, strict=True)]
    value = read(parts[0]).number
    return value is not None and abs(value) <= 1 and _same_formula(*parts)


_COMPARISONS = (_texts, _choices, _elements, _clocks, _ratios, _based, _formulas)


def _caseless(word: str) -> str:
    """Even, EVEN and even are the same word, but mgH is not mgh."""
    return word.lower() if word in (word.lower(), word.upper(), word.capitalize()) else word


def _same_formula(answer: str, gold: str) -> bool:
    # math-verify ignores the case of variables
    letters, right = (set(re.findall(r"\\[A-Za-z]+|[A-Za-z]", text)) for text in (answer, gold))
    if {letter.lower() for letter in letters - right} & {letter.lower() for letter in right - letters}:
        return False
    one, other = read(answer).tree, read(gold).tree
    if isinstance(one, Expr) and isinstance(other, Expr) and not (one.has(*_OPEN) or other.has(*_OPEN)):
        pairs = ((answer, gold), (gold, answer))
        return _same_expression(one, other) or any(_rounds_to(x, y, least=6) for x, y in pairs)
    return bool(verify(parsed_as(gold), parsed_as(answer), timeout_seconds=None))


def _same_expression(one: Basic | None, other: Basic | None, tolerance: str = "1e-12") -> bool:
    """Whether two expressions have equal values, where letters have some numbers as values.

    These are positive, as r is in √(ar²) = r√a, but not those of x, y and z, nor beside an absolute value.
    """
    if not isinstance(one, Expr) or not isinstance(other, Expr) or one in (zoo, nan):
        return False
    if one == other:
        return True
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    has_signs = one.has(Abs) or other.has(Abs)
    is_exact = not symbols and not one.has(Float) and not other.has(Float)
    for start in (0, 1, 3) if symbols else (1,):  # x^2023 + 1 is x^2023 where x is large
        values = {symbol: Float(f"{start}.{7 + 4 * i}", 20) for i, symbol in enumerate(symbols)}
        for symbol in symbols[start % 2 :: 2] if start < 3 else ():  # one negative and one positive, then the other
            values[symbol] *= -1 if symbol.name in "xyz" or has_signs else 1
        a, b = (formula.xreplace(values) for formula in (one, other))
        difference, size = (a - b).evalf(20), abs(b.evalf(20))
        limit = min(size, 1) * Float("1e-40") if is_exact else size * Float(tolerance)
        if not difference.is_number or not size.is_finite or not abs(difference) <= limit:
            return False
    return True
