"""Derives from the problem by which rules an answer is judged, and whether it copies the problem."""

import re
from collections import Counter
from functools import lru_cache

from .asked import ASKS, SENTENCE, units_for
from .forms import BASED, without_label
from .naming import names_in_order
from .plain import plain, squeezed
from .rules import Rules
from .units import ratio, read_quantity, without_units
from .wording import choice


_LONGEST_PROBLEM = 50_000  # characters, from the end
_END = r"(?:[a-z]+est|least|most|first|last|left|right|top|bottom|best|worst)"
_ORDER = re.compile(
    rf"(?i)\b{_END} to (?:the )?{_END}\b|"
    r"\b(?:in|into)\s+(?:(?!any\b|no\b|either\b|random\b|arbitrary\b)[a-z-]+\s+){0,3}order\b"
    r"(?!\s+(?:to\b|that\b|of\s+operations|for\b))|\border(?:ed)?\s+from\b"
)
_ANY_ORDER = re.compile(r"(?i)\b(?:in )?(?:any|no particular|either) order\b|\border (?:does not|doesn't) matter")
_RESPECTIVELY = re.compile(r"(?i)\brespectively\b")
_GREATEST = "(?:great|larg|bigg|tall|high|old|long|heavi|wid|strong)est|most"
_LEAST = "(?:small|short|low|young|light|narrow|weak)est|least|fewest"
_FALLS = re.compile(
    rf"(?i)\b(?P<falls>(?:{_GREATEST}) to (?:the )?(?:{_LEAST})|de(?:creas|scend)ing order)\b|"
    rf"\b(?:(?:{_LEAST}) to (?:the )?(?:{_GREATEST})|(?:increas|ascend)ing order)\b"
)
_CHAIN = re.compile(r"[<>]|\\[lg]t(?![A-Za-z])")
_NAMED = re.compile(r"[=:]|[A-Za-z]{3}")
_MATH = re.compile(r"\$([^$]{1,300})\$|\\\(([^$]{1,300}?)\\\)|\\\[([^$]{1,300}?)\\\]")
_REWRITE = re.compile(
    r"(?i)\b(?:write|express|convert|change|turn|reduce|simplify|rewrite|represent|translate|round|rationali[sz]e|compute|"
    r"evaluate|calculate)\b"
)
_EXPAND = re.compile(r"(?i)\b(?:expand|multiply out)\b|\bwithout (?:parentheses|brackets)\b")
_FACTOR = re.compile(r"(?i)(?<!common )(?<!the )\bfactor(?:i[sz]e)?\b(?! of| is)(?=[^.?]*[$\\x(])")
_SUM_IN_BRACKETS = re.compile(r"\([^(),=]*[^(),=^{*/+-][+-][^(),=]*\)")
_SYMBOL = re.compile(r"\\[A-Za-z]+|\d+(?:\.\d+)?|\.\d+|[^\s{}$&()\\.,;:?*]|[()]|\\.")
_VARIABLES = ("abc", "xyz", "pqr", "mn", "uvw")
_LIST = re.compile(r"(?i)\bcommas?\b|\bsemicolons?\b|\blist\b")
_TUPLE = re.compile(
    r"(?i)\b(?:pairs?|points?|coordinates?|tr[iu]ples?|quadruples?|\w*tuples?|vectors?|vert(?:ex|ices)|cent(?:er|re)|interval|"
    r"ordered|intersect\w*|domain|range)\b|\([a-z](?:, ?[a-z])+\)"
)
_BASE_WORDS = dict(zip("two three four five six seven eight nine ten eleven twelve".split(), range(2, 13), strict=True))
_BASE_WORDS |= {"sixteen": 16, "binary": 2, "ternary": 3, "octal": 8, "decimal": 10, "hexadecimal": 16}
_A_BASE = re.compile(
    rf"(?i)(?:\bbase[- ]\$?|_\{{?)(?P<number>\d{{1,2}})(?!\d)|\b(?:base[- ])?(?P<word>{'|'.join(_BASE_WORDS)})\b"
)
_IN_BASE = re.compile(
    rf"(?i)(?:\b(?P<to>in|to|into|using|as) (?:an? )?)?(?:\bbase[- ]\$?(?P<number>\d{{1,2}})(?!\d)\$?|"
    rf"\b(?:base[- ])?(?P<word>{'|'.join(_BASE_WORDS)})\b)"
    r"(?(to)| (?:representation|expansion|form|notation|expression|equivalent|numeral)\b)"
)
_INTEGERS = re.compile(r"(?i)\bintegers?\b|\bnatural|\\mathbb ?\{? ?[ZN]|\bwhole number")
_CONSTANT = re.compile(
    r"(?i)\bdifferential\b|\bantiderivative|\bintegra|\\int(?![a-z])|\bgeneral solution|"
    r"\b(?:arbitrary|integration) constant|\bconstant of integration"
)
_RADIANS = re.compile(r"(?i)\b(?:in|to|into|of) radians?\b|\bradian measure|\bhow many radians")
_DEGREE = re.compile(r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![a-z]))")
_UNBRACED = re.compile(r"\^\{(\w)\}")
_UNIT_SIGN = re.compile(r"[A-Za-zµΩ€£¢°$]{1,3}")
_POWER = re.compile(r"\w\^\w")
_LED = re.compile(r"((?:^|[({=,$])\s*-(?:[^{}()=,$+]|\{[^{}]*\})*)\+")
_SILENT = {"(", ")", "\\cdot", "\\times", "*", "\\quad"}
_OPERATION = re.compile(r"[+*/^!=<>-]|\\(?:frac|sqrt|binom|cdot|times|log|ln|sin|cos|tan|sum|int|prod|lim|le|ge|lt|gt)")
_PLAIN = re.compile(r"-?(?:\d+(?:\.\d+)?|\.\d+)")
_NUMERIC = re.compile(r"[-\d.,/\\{}frac_%\s]+|\d+_\{?\d+\}?")


def rules_for(answer: str, gold: str, problem: str, *, strict: bool = True) -> Rules:
    """The rules by which an answer is read: `ordered` needs a list as the gold, and `products` only letters."""
    problem, letters = problem[-_LONGEST_PROBLEM:], gold.strip()
    listed = gold.strip("$ ").startswith(("(", "\\left")) and bool(_LIST.search(problem))
    named = re.search("[,:]", gold) and _NAMED.search(answer)
    common = Rules(
        strict=strict,
        listed=listed,
        names=names_in_order(plain(answer), problem) if named else (),
        falls=_direction(problem) if "," in gold and _CHAIN.search(answer) else "",
        named="=" in answer and "=" not in gold and _names(answer, problem),
        units=units_for(plain(answer), plain(gold), problem) if problem and _UNIT_SIGN.search(answer) else (),
        integers=_INTEGERS.search(problem) is not None,
        constant=_CONSTANT.search(problem) is not None,
        base=_asked_base(problem) if re.search("_|base|0[xXbo]", answer + gold) else 0,
    )
    if not strict:
        return common
    return common._replace(
        untupled="," in gold and bool(problem) and not _TUPLE.search(problem),
        ordered="," in gold and _asks_order(problem),
        products=letters.isalpha() and len(letters) > 1 and _is_product(letters, problem),
    )


def _asked_base(problem: str) -> int:
    """The base in which a problem asks for a number, or the only one that it names; 0 without either."""
    named = {_base(found) for found in _A_BASE.finditer(problem)}
    asked = _IN_BASE.search(problem)
    return _base(asked) if asked else named.pop() if len(named) == 1 else 0


@lru_cache(maxsize=4096)
def _direction(problem: str) -> str:
    """`>` where a problem asks for a list from the greatest to the least, `<` from the least, else the empty text."""
    found = _FALLS.search(problem)
    return (">" if found["falls"] else "<") if found else ""


def _base(found: re.Match[str]) -> int:
    number, word = found["number"], (found["word"] or "").lower()
    return int(number) if number else _BASE_WORDS[word]


@lru_cache(maxsize=4096)
def _asks_order(problem: str) -> bool:
    """Whether the order of several answers counts: "respectively" in a sentence that asks, "least to greatest"."""
    if _ANY_ORDER.search(problem):
        return False
    if _ORDER.search(problem):
        return True
    return any(_RESPECTIVELY.search(part) and ASKS.search(part) for part in SENTENCE.split(problem))


def _is_product(letters: str, problem: str) -> bool:
    """Whether lower-case letters in a row are a product: each is a variable in a formula of the problem or, if the
    problem is unknown, all are common names of variables."""
    if letters != letters.lower() or len(set(letters)) < len(letters):
        return False
    if not problem:
        return any(set(letters) <= set(names) for names in _VARIABLES)
    formulas = " ".join(filter(None, (part for found in _MATH.findall(problem) for part in found)))
    return all(re.search(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", formulas) for letter in letters)


def _names(answer: str, problem: str) -> bool:
    """Whether the left side of an answer is in the problem, and the problem does not already state this equation."""
    name, _, value = squeezed(plain(answer)).partition("=")
    if len(name) < 3 or not value:
        return False
    name, asked = _UNBRACED.sub(r"^\1", name), _UNBRACED.sub(r"^\1", _squeezed(problem))
    if _POWER.fullmatch(name):  # x^2 is asked for only if it stands alone
        return (
            re.search(rf"(?:\$|\\\() ?{re.escape(name)} ?[.,?]? ?(?:\$|\\\))", _UNBRACED.sub(r"^\1", problem))
            is not None
        )
    return name in asked and f"{name}={value}" not in asked


@lru_cache(maxsize=1024)
def _squeezed(problem: str) -> str:
    return squeezed(plain(problem)).replace("$", "")


def restated(answer: str, gold: str, problem: str) -> bool:
    """Whether an answer that equals its gold is written differently, and stands in the problem: it was copied.

    The order of its terms and factors does not count, nor do multiplication signs and brackets. A number alone is a
    copy only if the problem asks to write it in another way.
    """
    whole, gold = plain(answer), plain(gold)
    if choice(whole, gold):  # the problem has the text of each choice
        return False
    if _converts_back(whole, gold, problem):
        return True
    whole, gold = without_units(whole), without_units(gold)
    answer, label_free = without_label(whole), without_label(gold)
    if BASED.fullmatch(label_free):  # 2014_{10} = 2677_9
        answer = answer.rpartition("=")[2].strip()
    if squeezed(whole) == squeezed(gold) or squeezed(answer) == squeezed(label_free):
        return False
    if asked := _IN_BASE.search(problem):
        (digits, base), (right, gold_base) = _digits(answer), _digits(label_free)
        if int(gold_base or 10) == _base(asked) and (gold_base or base) and base != gold_base:
            return int(base or 10) != _base(asked) and digits.upper() != right.upper()
    symbols, gold = _symbols(answer), label_free
    if Counter(symbols) == Counter(_symbols(gold)) or all(map(_PLAIN.fullmatch, (answer, gold))):
        return False
    problem = problem[-_LONGEST_PROBLEM:]
    symbols = symbols[:-2] if symbols[-2:] == ["_", "10"] else symbols  # base ten
    last = answer if "=" in gold else answer.rpartition("=")[2]
    for factored, expanded, task in ((last, gold, _EXPAND), (gold, last, _FACTOR)):
        if _SUM_IN_BRACKETS.search(factored) and not _SUM_IN_BRACKETS.search(expanded) and task.search(problem):
            return True
    is_number = _NUMERIC.fullmatch(answer)
    if not (_REWRITE.search(problem) if is_number else _OPERATION.search(answer)):
        return False
    given = _given(problem)
    return _stands_in(symbols, given) or (whole != answer and _stands_in(_symbols(whole), given))


def _digits(text: str) -> tuple[str, str]:
    """The digits of a number, and its base if it has one."""
    found = BASED.fullmatch(text)
    return found.groups() if found else (text, "")


def _converts_back(answer: str, gold: str, problem: str) -> bool:
    """Whether the answer has another unit than the gold, and its number is in a problem that says to convert it."""
    units = units_for(answer, gold, problem)
    if units:
        gold = f"{gold}\\unit{{{units[0]}}}"
    found, right = read_quantity(answer), read_quantity(gold)
    if not found or not right or ratio(found, right) in (1, None) or not (units or _REWRITE.search(problem)):
        return False
    if {*units} & {"radian", "radians"} and _RADIANS.search(problem):
        return True
    given = _DEGREE.sub(" ", plain(problem[-_LONGEST_PROBLEM:]))
    return _stands_in(_symbols(without_label(found.number)), tuple(_symbols(given)))


@lru_cache(maxsize=1024)
def _given(problem: str) -> tuple[str, ...]:
    return tuple(_symbols(plain(problem)))


def _symbols(text: str) -> list[str]:
    text = _LED.sub(r"\1 ", text)  # -1 + x as x - 1
    return [symbol for symbol in _SYMBOL.findall(text) if symbol not in _SILENT]


def _stands_in(symbols: list[str], given: tuple[str, ...]) -> bool:
    """Whether some stretch of the given symbols has the same symbols in any order, and is not part of a power, a
    factorial or an index."""
    missing, size = Counter(symbols), len(symbols)
    off = size  # how many symbols the stretch lacks
    for i, symbol in enumerate(given if size else ()):
        off -= missing[symbol] > 0
        missing[symbol] -= 1
        if i >= size:
            out = given[i - size]
            missing[out] += 1
            off += missing[out] > 0
        before, after = given[i - size : i - size + 1] if i >= size else (), given[i + 1 : i + 2]
        if off == 0 and after not in (("^",), ("!",), ("_",)) and before not in (("^",), ("_",)):
            return True
    return False
