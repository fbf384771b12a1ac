"""Whether two bare answers are equal. Runs in a worker (see `worker.py`), since it may take unlimited time."""

import math
import re
from dataclasses import replace
from fractions import Fraction

from .families import Family, read_family, same_family
from .forms import BASED, split_outside, upwards, without_label
from .intervals import as_intervals
from .plain import joined, plain, squeezed
from .sets import SET_SIGN, RealSet, read_set
from .units import FUNCTIONS, Quantity, ratio, read_quantity, without_units
from .values import INEQUALITY, PERCENT, decimal_of, parsed_as, same, value_of, with_percent


_MARKS = ("'", "\\overline", "...", "dots", "^T")  # math-verify ignores these
_CLOCK = re.compile(r"(\d{1,2}) ?: ?(\d{2})(?: ?: ?(\d{2}))?\s*([ap])?\.?m?\.?", re.IGNORECASE)
_RATIO = re.compile(r"-?\d+(?:\s*:\s*\d+)+")
_LETTER = re.compile(r"(\()?([A-Za-z])(\))?[.:]?")
_CHOICE = re.compile(r"\(?([A-Z])[).:] *\S.*")
# math-verify reads these as 0, so they are equal only if written alike
_DERIVATIVE = re.compile(r"\\frac\{(?:d|\\partial)[^{}]*(?:\{[^{}]*\}[^{}]*)?\}\{(?:d|\\partial) ?\\?[A-Za-z]")
_SYMBOL = re.compile(r"\\?[A-Za-z]+(?:_\w|_\{\w+\})?'?(?:\([A-Za-z, ]*\))?|[A-Za-z](?:, ?[A-Za-z])*")
_SYMBOL_LIST = re.compile(r"[A-Za-z](?:_\w|_\{\w+\})?(?:,[A-Za-z](?:_\w|_\{\w+\})?)+")
_NUMBERS = re.compile(r"-?\d+(?:\.\d+)?(?:,\s?-?\d+(?:\.\d+)?)+")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_CLAIM = re.compile(r"(?:\(\d\) ?)?([A-Z]\w*) is an? (knight|knave)\b[,;.]?(?: and)?\s*")
_COMMA = re.compile(r",")
_SEPARATOR = re.compile(r"[,;]|\band\b|\bor\b")
_TOKEN = re.compile(r"[A-Za-z]+|\d*\.?\d+|[^\s.,;:'\"*$\\]")


def equal(answer: str, gold: str) -> bool:
    """Whether `answer` is right, evaluated or not. Both are in normal form.

    This is stricter than math-verify: tiny numbers differ, 5000 % is not 50, cents are not dollars, and words are
    compared instead of being multiplied letter by letter.
    """
    answer, gold, size = measured(answer, gold)
    if not answer or not gold or size is None:
        return False
    if size != 1:
        return converted(without_label(answer), gold, size)
    bare = without_label(answer)
    if "=" not in gold and BASED.fullmatch(bare):
        return equal_plain(bare, gold)
    return equal_plain(answer, gold) or ("=" not in gold and equal_plain(bare, gold))


def measured(answer: str, gold: str) -> tuple[str, str, float | None]:
    """Both without their units, and how many units of the gold one of the answer is; `None` if they contradict."""
    found, right = _with_one_unit(answer), _with_one_unit(gold)
    return found.number, right.number, ratio(found, right)


def _with_one_unit(text: str) -> Quantity:
    """A quantity, or a list of quantities with the same unit."""
    if "\\unit" not in text:
        return Quantity(text, {"percent": 1} if PERCENT.search(text) else {})
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
    answer, gold = without_braces(answer), without_braces(gold)
    if sets := both_sets(answer, gold):
        return sets[0].equals(sets[1])
    if families := both_families(answer, gold):
        return same_family(*families)
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
    return with_percent(joined(answer), joined(gold)) if found is None else found


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


def both_sets(answer: str, gold: str) -> tuple[RealSet, RealSet] | None:
    """Both as sets of real numbers, if one is written as a set or with inequalities and the other as a set or list."""
    if not (SET_SIGN.search(answer) or SET_SIGN.search(gold)):
        return None
    right = read_set(gold)
    found = read_set(answer) if right else None
    return (found, right) if found and right else None


def both_families(answer: str, gold: str) -> tuple[Family, Family] | None:
    """Both as families of solutions, if one says so."""
    found, right = read_family(answer), read_family(gold)
    if right and right.domain:
        found = found or read_family(answer, bare=True)
    elif found and found.domain:
        right = right or read_family(gold, bare=True)
    return (found, right) if found and right else None


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
    if right and _CHOICE.fullmatch(answer):  # `reworded` has left a text or a second choice
        return False
    if not letter or not right:
        return None
    is_choice = letter[0] != letter[2] or right[0] != right[2]
    return letter[2] == right[2] or (is_choice and letter[2].lower() == right[2].lower())


def kind(text: str) -> str:
    """`set`, `pair` (any tuple, or an interval), `list` or the empty text."""
    if text.startswith("\\{"):
        return "set"
    parts = split_outside(_SEPARATOR, text)
    if len(parts) > 1:
        return "" if "=" in text else "list"
    return "pair" if text[0] in "([" and "," in text else ""


def _brackets(answer: str, gold: str) -> bool | None:
    """A list is no pair and no interval, and a set is neither."""
    kinds = kind(answer), kind(gold)
    if kinds == ("list", "pair") or (kinds == ("pair", "list") and (answer[0] == "[" or answer[-1] == "]")):
        return False
    return False if set(kinds) == {"set", "pair"} and "\\cup" not in answer + gold else None


def without_braces(text: str) -> str:
    """A set of tuples without its braces."""
    inner = text[2:-2].strip()
    whole = text.startswith("\\{") and text.endswith("\\}") and "\\}" not in inner
    return inner if whole and inner.startswith("(") and inner.endswith(")") else text


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
    if halves.count("") == 1 and (max(parts)[0] > 12 or min(parts)[0] == 0):  # 15:45 is 3:45 PM
        one, other = (
            (h % 12 + 12 * (p == "p") if p else h, *rest) for (h, *rest), p in zip(parts, halves, strict=True)
        )
        return one == other
    return parts[0] == parts[1] and (halves[0] == halves[1] or "" in halves)


def _ratios(answer: str, gold: str) -> bool | None:
    if not _RATIO.fullmatch(gold) or not _RATIO.fullmatch(answer):
        return None
    a, b = ([int(part) for part in text.split(":")] for text in (answer, gold))
    return len(a) == len(b) and all(x * b[0] == y * a[0] for x, y in zip(a, b, strict=True)) and any(a) == any(b)


def _based(answer: str, gold: str) -> bool | None:
    """Compares numbers with a base, 52_8, by value. A base that the answer lacks is the gold's."""
    value, right = based_value(answer), based_value(gold)
    if right is None or not (BASED.fullmatch(answer) or BASED.fullmatch(gold)):
        return None
    if (found := BASED.fullmatch(gold)) and answer.upper() == found[1].upper():
        return True
    return value == right if value is not None or BASED.fullmatch(answer) else None


def based_value(text: str) -> Fraction | None:
    """The value of a number with a base, or of a whole decimal number."""
    found = BASED.fullmatch(text)
    digits, base = found.groups() if found else (joined(text), "10")
    whole, _, part = digits.partition(".")
    is_number = re.fullmatch(r"-?[0-9A-Za-z]{1,300}", whole) and (base == "16" or re.search(r"\d|[A-F]", digits))
    if not is_number or len(part) > 300 or not 2 <= int(base) <= 36 or (part and not found):
        return None
    try:
        return Fraction(int(whole + part, int(base)), int(base) ** len(part))
    except ValueError:  # a digit too large for its base: a variable with an index
        return None


def same_number(one: str, other: str) -> bool:
    """Whether two sides of an equation are equal, in whatever base."""
    if BASED.fullmatch(one) or BASED.fullmatch(other):
        return based_value(one) == based_value(other) is not None
    return same(joined(one), joined(other))


def _equations(answer: str, gold: str) -> bool | None:
    """An equation equals a value if it gives the value of one symbol: x = 5 or 5 = x, not x + y = 5."""
    for equation, value in ((answer, gold), (gold, answer)):
        if equation.count("=") == 1 and "=" not in value and not re.search(r"[<>!\\]=|:=|,", equation):
            left, right = (side.strip() for side in equation.split("="))
            if _SYMBOL.fullmatch(left):
                return None
            if _SYMBOL.fullmatch(right):
                return with_percent(joined(left), joined(value))
            is_sum = not re.search(r"[A-Za-z]", left) and equation is answer  # 2 + 3 = 5
            return (
                is_sum
                and same_number(left, right)
                and (
                    equal_plain(right, value) if BASED.fullmatch(right) else with_percent(joined(right), joined(value))
                )
            )
    return None


_COMPARE = (same_claims, _words, _letters, _brackets, _lists, _clocks, _ratios, _based, _equations)
