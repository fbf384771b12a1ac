"""Whether two bare answers are equal. Runs in a worker (see `worker.py`), since it may take unlimited time."""

import math
import re
from dataclasses import replace
from fractions import Fraction

from math_verify import LatexExtractionConfig, LatexNormalizationConfig, parse, verify
from sympy import Expr, I

from .forms import split_outside, upwards, without_label
from .intervals import as_intervals
from .plain import joined, plain, squeezed
from .units import FUNCTIONS, Quantity, ratio, read_quantity, without_units


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
_MARKS = ("'", "\\overline", "...", "dots", "^T")  # math-verify ignores these
_PERCENT = re.compile(r"(?:\s*\\?%|\s*\bpercent)\s*$")
INEQUALITY = re.compile(r"[<>]|\\(?:leq?|geq?|lt|gt)(?![A-Za-z])")
_BASED = re.compile(r"([0-9A-Za-z]+)_\{?(\d{1,2})\}?")
_CLOCK = re.compile(r"(\d{1,2}) ?: ?(\d{2})(?: ?: ?(\d{2}))?\s*([ap])?\.?m?\.?", re.IGNORECASE)
_RATIO = re.compile(r"-?\d+(?:\s*:\s*\d+)+")
_LETTER = re.compile(r"(\()?([A-Za-z])(\))?[.:]?")
_CHOICE = re.compile(r"\(?([A-Z])[).:] *\S.*")
# math-verify reads these as 0, so they are equal only if written alike
_DERIVATIVE = re.compile(r"\\frac\{(?:d|\\partial)[^{}]*(?:\{[^{}]*\}[^{}]*)?\}\{(?:d|\\partial) ?\\?[A-Za-z]")
_MORE_CHOICES = re.compile(r"(?<![A-Za-z])[A-Z](?![A-Za-z])")
_SYMBOL = re.compile(r"\\?[A-Za-z]+(?:_\w|_\{\w+\})?'?(?:\([A-Za-z, ]*\))?|[A-Za-z](?:, ?[A-Za-z])*")
_SYMBOL_LIST = re.compile(r"[A-Za-z](?:_\w|_\{\w+\})?(?:,[A-Za-z](?:_\w|_\{\w+\})?)+")
_NUMBERS = re.compile(r"-?\d+(?:\.\d+)?(?:,\s?-?\d+(?:\.\d+)?)+")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_CLAIM = re.compile(r"(?:\(\d\) ?)?([A-Z]\w*) is an? (knight|knave)\b[,;.]?(?: and)?\s*")
_COMMA = re.compile(r",")
_TOKEN = re.compile(r"[A-Za-z]+|\d*\.?\d+|[^\s.,;:'\"*$\\]")


def equal(answer: str, gold: str) -> bool:
    """Whether `answer` is right, evaluated or not. Both are bare: without a box or dollars around them.

    This is stricter than math-verify: tiny numbers differ, 5000 % is not 50, cents are not dollars, and words are
    compared instead of being multiplied letter by letter.
    """
    answer, gold, size = measured(plain(answer), plain(gold))
    if not answer or not gold or size is None:
        return False
    if size != 1:
        return converted(without_label(answer), gold, size)
    return equal_plain(answer, gold) or ("=" not in gold and equal_plain(without_label(answer), gold))


def measured(answer: str, gold: str) -> tuple[str, str, float | None]:
    """Both without their units, and how many units of the gold one of the answer is; `None` if they contradict."""
    found, right = _with_one_unit(answer), _with_one_unit(gold)
    return found.number, right.number, ratio(found, right)


def _with_one_unit(text: str) -> Quantity:
    """A quantity, or a list of quantities with the same unit."""
    if "\\unit" not in text:
        return Quantity(text, {"percent": 1} if _PERCENT.search(text) else {})
    quantities = [read_quantity(part) for part in split_outside(_COMMA, text)]
    named = [quantity for quantity in quantities if quantity]
    if not named or any((q.powers, q.size, q.nouns) != (named[0].powers, named[0].size, named[0].nouns) for q in named):
        return Quantity(text)
    return replace(named[0], number=without_units(text))


def converted(answer: str, gold: str, size: float) -> bool:
    """Whether numbers are equal if one unit of the answer is `size` units of the gold."""
    value, right = value_of(parsed_as(joined(answer))), value_of(parsed_as(joined(gold)))
    return None not in (value, right) and math.isclose(float(value) * size, float(right), rel_tol=1e-6)


def equal_plain(answer: str, gold: str) -> bool:
    """`equal` for texts in normal form."""
    if squeezed(answer) == squeezed(gold):
        return True
    if "<" in gold + answer or ">" in gold + answer or "\\g" in gold + answer:
        answer, gold = upwards(answer), upwards(gold)
    if INEQUALITY.search(answer) and not INEQUALITY.search(gold):
        answer = as_intervals(answer)
    if answer.count("=") == gold.count("=") == 1:
        sides, right = (sorted(squeezed(side.strip()) for side in text.split("=")) for text in (answer, gold))
        if sides == right:
            return True
    if any(answer.count(mark) != gold.count(mark) for mark in _MARKS):
        return False
    if any(re.search(r"(?<![_^\d])\d+ \d", text) for text in (answer, gold)):  # two numbers
        return False
    if any(map(_DERIVATIVE.search, (answer, gold))) or ("\\lim" in answer and "\\lim" in gold):
        return False
    if {"%", "^\\circ"} <= {sign for text in (answer, gold) for sign in ("%", "^\\circ") if sign in text}:
        return False
    verdicts = (compare(answer, gold) for compare in _COMPARE)
    found = next((verdict for verdict in verdicts if verdict is not None), None)
    return _with_percent(joined(answer), joined(gold)) if found is None else found


def readable(gold: str) -> bool:
    """Whether a gold is a formula, a quantity, or words."""
    text = plain(gold)
    if not text:
        return False
    if _prose(text) or read_quantity(text) or any(p.fullmatch(text) for p in (_LETTER, _NUMBERS, _CLOCK, _RATIO)):
        return True
    return bool(_SYMBOL_LIST.fullmatch(squeezed(text))) or any(not isinstance(p, str) for p in parsed_as(joined(text)))


def _prose(text: str) -> list[str]:
    """The words of a text; there are none in a formula or in a number with its unit."""
    if read_quantity(text):
        return []
    text = re.sub(r"\\(?:begin|end)\{[^{}]*\}", " ", text)
    return [word.lower() for word in _WORD.findall(text) if word.lower() not in FUNCTIONS]


# Comparisons of one kind of answer each. `None`: the pair is not of that kind.


def same_claims(answer: str, gold: str) -> bool | None:
    """Compares who is a knight and who is a knave, in any order."""
    if "kn" not in gold or _CLAIM.sub("", gold).strip():
        return None
    return not _CLAIM.sub("", answer).strip() and sorted(_CLAIM.findall(answer)) == sorted(_CLAIM.findall(gold))


def _words(answer: str, gold: str) -> bool | None:
    words, right = _prose(answer), _prose(gold)
    if words and right and list(map(caseless, _TOKEN.findall(answer))) == list(map(caseless, _TOKEN.findall(gold))):
        return True
    # math-verify would multiply the letters of words, which commutes
    one_word = len(words) == len(right) == 1 and words != right and len(words[0]) >= 4
    return False if one_word or len(right) >= 2 else None


def caseless(word: str) -> str:
    """Even, EVEN and even are the same word, but mgH is not mgh."""
    return word.lower() if word in (word.lower(), word.upper(), word.capitalize()) else word


def _letters(answer: str, gold: str) -> bool | None:
    """Compares choices, (B) or B or (B) 12, and variables."""
    letter, right = _LETTER.fullmatch(answer), _LETTER.fullmatch(gold)
    if right and (choice := _CHOICE.fullmatch(answer)):
        return choice[1] == right[2] and not _MORE_CHOICES.search(answer, 2)
    if not letter or not right:
        return None
    is_choice = letter[0] != letter[2] or right[0] != right[2]
    return letter[2] == right[2] or (is_choice and letter[2].lower() == right[2].lower())


def _brackets(answer: str, gold: str) -> bool | None:
    """A set is not a pair or an interval."""
    kinds = ["set" if t.startswith("\\{") else "pair" if t[0] in "([" and "," in t else "" for t in (answer, gold)]
    return False if "" not in kinds and kinds[0] != kinds[1] and "\\cup" not in answer + gold else None


def _lists(answer: str, gold: str) -> bool | None:
    """Compares numbers or symbols with commas, in any order: 100,200 may be one number or two."""
    if _SYMBOL_LIST.fullmatch(squeezed(answer)) and _SYMBOL_LIST.fullmatch(squeezed(gold)):
        return sorted(squeezed(answer).split(",")) == sorted(squeezed(gold).split(","))
    both = (answer, gold)
    if not any(map(_NUMBERS.fullmatch, both)) or any(not _NUMBERS.fullmatch(t) and decimal_of(t) is None for t in both):
        return None
    a, b = (sorted(map(Fraction, text.replace(" ", "").split(","))) for text in both)
    if a == b:
        return True
    # to math-verify 2,2,3 and 2,3,3 are one set
    return False if all("," in joined(t) for t in both if _NUMBERS.fullmatch(t)) else None


def _clocks(answer: str, gold: str) -> bool | None:
    time, right = _CLOCK.fullmatch(answer), _CLOCK.fullmatch(gold)
    if not time or not right:
        return None
    parts = [(int(t[1]), int(t[2]), int(t[3] or 0)) for t in (time, right)]
    halves = [(t[4] or "").lower() for t in (time, right)]
    return parts[0] == parts[1] and (halves[0] == halves[1] or "" in halves)


def _ratios(answer: str, gold: str) -> bool | None:
    if not _RATIO.fullmatch(gold) or not _RATIO.fullmatch(answer):
        return None
    a, b = ([int(part) for part in text.split(":")] for text in (answer, gold))
    return len(a) == len(b) and all(x * b[0] == y * a[0] for x, y in zip(a, b, strict=True)) and any(a) == any(b)


def _based(answer: str, gold: str) -> bool | None:
    """Compares numbers with a base, 52_8, by value."""
    if not (_BASED.fullmatch(answer) or _BASED.fullmatch(gold)):
        return None
    value, right = _based_value(answer), _based_value(gold)
    if right is None:
        return None
    if (found := _BASED.fullmatch(gold)) and answer == found[1]:  # the problem said in which base
        return True
    return value == right if value is not None or _BASED.fullmatch(answer) else None


def _based_value(text: str) -> int | None:
    found = _BASED.fullmatch(text)
    digits, base = found.groups() if found else (joined(text), "10")
    if len(digits) > 300 or not 2 <= int(base) <= 36 or not re.fullmatch(r"[0-9A-Za-z]+", digits):
        return None
    try:
        return int(digits, int(base))
    except ValueError:  # a digit too large for its base: a variable with an index
        return None


def _equations(answer: str, gold: str) -> bool | None:
    """An equation equals a value if it gives the value of one symbol: x = 5 or 5 = x, not x + y = 5."""
    for equation, value in ((answer, gold), (gold, answer)):
        if equation.count("=") == 1 and "=" not in value and not re.search(r"[<>!\\]=|:=|,", equation):
            left, right = (side.strip() for side in equation.split("="))
            if _SYMBOL.fullmatch(left):
                return None
            if _SYMBOL.fullmatch(right):
                return _with_percent(joined(left), joined(value))
            is_sum = not re.search(r"[A-Za-z]", left) and equation is answer  # 2 + 3 = 5
            return is_sum and same(joined(left), joined(right)) and _with_percent(joined(right), joined(value))
    return None


def _with_percent(answer: str, gold: str) -> bool:
    bare, bare_gold = _PERCENT.sub("", answer), _PERCENT.sub("", gold)
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
    if verify(right, found, timeout_seconds=None):
        one, other = value_of(found), value_of(right)
        # math-verify rounds to six places, which makes all tiny numbers equal
        return None in (one, other) or bool(one == other or (other != 0 and abs(one / other - 1) < 1e-4))
    # an inequality equals its interval, and either may be the gold
    is_range = INEQUALITY.search(answer) and not INEQUALITY.search(gold)
    return bool(is_range and verify(found, right, timeout_seconds=None))


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


_COMPARE = (same_claims, _words, _letters, _brackets, _lists, _clocks, _ratios, _based, _equations)
