"""What a problem asks for: an order, a base, a unit, names; and whether an answer copies the problem."""

import re
from collections import Counter
from functools import lru_cache

from .asked import ASKS, SENTENCE, units_for
from .equal import judged
from .normal import normal, squeezed
from .numerals import in_figures
from .read import BASED, Kind, read, without_label
from .rules import Outcome, Rules
from .units import without_units


_LONGEST_PROBLEM, _LONGEST_NAME = 50_000, 200  # characters; of a problem those at its end
_ORDER = re.compile(
    r"(?i)\b(?P<rises>(?=(?:small|short|low|young|light)est|least|fewest|increas|ascend))?(?:[a-z]+(?:ing|cal) order\b|"
    r"(?:\w+st|left|top) to (?:the )?(?:\w+st|right|bottom)\b)|\bin order\b(?! to| that| for| of op)"
)
_LIST = re.compile(r"(?i)\b(?:commas?|semicolons?|list)\b")
_TUPLE = re.compile(
    r"(?i)\b(?:pairs?|points?|coordinates?|\w*[ui]ples?|vectors?|vert(?:ex|ices)|cent(?:er|re)|interval|ordered|"
    r"intersect\w*|domain|range)\b|\([a-z](?:, ?[a-z])+\)"
)
_INTEGERS = re.compile(r"(?i)\b(?:integers?|natural|whole number)|\\mathbb ?\{? ?[ZN]")
_CONSTANT = re.compile(r"(?i)\bdifferential\b|\bantiderivative|\bintegra|\\int(?![a-z])|\bgeneral solution")
_NAMED_BASES = {"binary": "2", "ternary": "3", "octal": "8", "decimal": "10", "hexadecimal": "16"}
_BASE = re.compile(
    r"(?i)(?P<asked>\b(?:in|to|into|using|as) (?:an? )?)?\b"
    rf"(?:base[- ]\$?(?P<number>\d\d?|[a-z]+)|(?P<name>{'|'.join(_NAMED_BASES)}))\b"
    r"\$?(?P<form> (?:representation|expansion|form|notation|expression|equivalent|numeral)\b)?"
)
_MATH = re.compile(r"\$[^$]{1,300}\$|\\\([^$]{1,300}?\\\)|\\\[[^$]{1,300}?\\\]")
_ALONE, _ENDS = r"(?<![A-Za-z\d_\\^*/=+-])(?<![*/=+-] )", r"(?![A-Za-z\d_]| ?[*/=^+-])"
_SUM = re.compile(r"[a-z]{1,2}(?:(?:[+-]|\\cdot )[a-z]{1,2}){0,9}")
_ASKED_SUM = re.compile(rf"{_ALONE}[a-z](?: ?\+ ?[a-z])+{_ENDS}|\bsum of [a-z](?:(?:, ?(?:and )?| and )[a-z])+\b")
_REWRITE = re.compile(r"(?i)\b(?:(?:re)?write|express|convert|reduce|simplify|compute|evaluate|calculate)\b")
_EXPAND = re.compile(r"(?i)\b(?:expand|multiply out)\b|\bwithout (?:parentheses|brackets)\b")
_FACTOR = re.compile(r"(?i)(?<!common )(?<!the )\bfactor(?:i[sz]e)?\b(?! of| is)(?=[^.?]*[$\\x(])")
_SUM_IN_BRACKETS = re.compile(r"\([^(),=]*[^(),=^{*/+-][+-][^(),=]*\)")
_NUMERIC = re.compile(r"[-\d.,/\\{}frac_%\s]+|\d+_\{?\d+\}?")
_OPERATION = re.compile(r"[+*/^!=<>-]|\\[a-z]{2}")
_SILENT = re.compile(r"(?:\^ ?\{? ?\\circ|\\(?:cdot|times|quad))(?![A-Za-z])")
_SYMBOL = re.compile(r"\\[A-Za-z]+|\d+(?:\.\d+)?|\.\d+|[^\s{}$&()+\\.,;:?*]|\\.")
_normal = lru_cache(maxsize=1024)(normal)


def decide(answer: str, gold: str, problem: str = "", strict: bool = False) -> Outcome:
    """What becomes of an answer: it may be right, a copy of the problem, unfinished work, or wrong."""
    problem = problem[-_LONGEST_PROBLEM:]
    outcome = judged(answer, gold, rules_for(answer, gold, problem, strict=strict))
    is_copy = outcome is Outcome.RIGHT and strict and restated(answer, gold, problem)
    return Outcome.RESTATED if is_copy else outcome


def rules_for(answer: str, gold: str, problem: str, *, strict: bool = True) -> Rules:
    """The rules by which an answer is read: `ordered` needs a list as the gold, and `products` only letters."""
    is_list = "," in gold
    order = _ORDER.search(problem) if is_list else None
    respectively = any("respectively" in part and ASKS.search(part) for part in SENTENCE.split(problem))
    return Rules(
        strict=strict,
        problem=problem,
        listed=gold.strip("$ ").startswith(("(", "\\left")) and bool(_LIST.search(problem)),
        untupled=strict and is_list and bool(problem) and not _TUPLE.search(problem),
        ordered=strict and is_list and (order is not None or respectively),
        falls="" if order is None else ">" if order["rises"] is None else "<",
        products=_is_product(gold.strip(), problem),
        named="=" in answer and "=" not in gold and _names(answer, problem),
        units=units_for(in_figures(normal(answer)), normal(gold), problem) if problem else (),
        integers=_INTEGERS.search(problem) is not None,
        constant=_CONSTANT.search(problem) is not None,
        base=_asked_base(problem),
    )


def _asked_base(problem: str) -> int:
    """The base in which a problem asks for a number, or else the last that it names; 0 without either."""
    bases = sorted(_BASE.finditer(problem), key=lambda base: bool(base["asked"] or base["form"]))
    name = (bases[-1]["number"] or bases[-1]["name"]).lower() if bases else ""
    base = _NAMED_BASES.get(name) or in_figures(name)
    return int(base) if base.isdigit() else 0


def _is_product(letters: str, problem: str) -> bool:
    """Whether lower-case letters in a row are a product: each is a variable in a formula of the problem or, if the
    problem is unknown, all are common names of variables."""
    if not (letters.isalpha() and letters.islower() and 1 < len(letters) == len(set(letters))):
        return False
    if not problem:
        return any(set(letters) <= set(names) for names in ("abc", "xyz", "pqr", "mn", "uvw"))
    formulas = " ".join(_MATH.findall(problem))
    return all(re.search(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", formulas) for letter in letters)


def _names(answer: str, problem: str) -> bool:
    """Whether the left side of an answer was asked for: it stands in the problem, alone and not as a side of an
    equation. Without a problem, a sum, difference or product of letters was asked for."""
    name = re.sub("[{}]", "", squeezed(normal(answer.partition("=")[0])))
    letters = sorted(re.findall("[a-z]", name)) if _SUM.fullmatch(name) else []
    if not problem:
        return len(set(letters)) > 1
    text = _normal(problem).replace("$", "")
    if "+" in name and letters in [sorted(re.findall(r"\b[a-z]\b", part)) for part in _ASKED_SUM.findall(text)]:
        return True
    spaced = "[{} ]*".join(map(re.escape, name))
    return 2 < len(name) < _LONGEST_NAME and re.search(_ALONE + spaced + _ENDS, text) is not None


def restated(answer: str, gold: str, problem: str) -> bool:
    """Whether an answer that equals its gold is written differently, and stands in the problem: it was copied.

    The order of its terms and factors does not count, nor do multiplication signs and brackets. A number alone is a
    copy only if the problem asks to write it in another way.
    """
    whole, right = normal(answer), normal(gold)
    if read(right).kind is Kind.LETTER:  # the problem has the text of each choice
        return False
    answer, gold = without_label(without_units(whole)), without_label(without_units(right))
    answer = answer if "=" in gold else answer.rpartition("=")[2].strip()
    bases = [int(match[2]) if (match := BASED.fullmatch(text)) else 10 for text in (answer, gold)]
    if bases[0] != bases[1] == _asked_base(problem):
        return answer.partition("_")[0].upper() != gold.partition("_")[0].upper()
    for factored, expanded, task in ((answer, gold, _EXPAND), (gold, answer, _FACTOR)):
        if _SUM_IN_BRACKETS.search(factored) and not _SUM_IN_BRACKETS.search(expanded) and task.search(problem):
            return True
    symbols = _symbols(answer)
    if Counter(symbols) == Counter(_symbols(gold)):
        return False
    is_rewritten = _REWRITE.search(problem) or units_for(whole, right, problem)
    applies = is_rewritten if _NUMERIC.fullmatch(answer) else _OPERATION.search(answer)
    return bool(applies) and _stands_in(symbols, ["", *_symbols(_normal(problem)), ""])


def _symbols(text: str) -> list[str]:
    return _SYMBOL.findall(_SILENT.sub(" ", text))


def _stands_in(symbols: list[str], problem: list[str]) -> bool:
    """Whether some stretch of the problem's symbols has the same symbols in any order, and is not part of a power, a
    factorial or an index."""
    size, sought, window = len(symbols), Counter(symbols), Counter(problem[: len(symbols)])
    for before, last, after in zip(problem, problem[size:], problem[size + 1 :], strict=False):
        window[last] += 1
        window[before] -= 1
        if window == sought and before not in {"^", "_"} and after not in {"^", "_", "!"}:
            return True
    return False
