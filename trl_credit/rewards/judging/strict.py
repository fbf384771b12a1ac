"""Whether an answer is a value, or contains unfinished work. docs/answers.md has the policy as a table."""

import re

from .arithmetic import arithmetic
from .cancel import cancels
from .forms import is_label, split_outside, without_label
from .plain import joined


# operators that an answer may have only if its gold has them
_UNDONE = {
    name: re.compile(pattern)
    for name, pattern in {
        "integral": r"\\o?i{1,4}nt(?![A-Za-z])|∫|\bintegral\b",
        "sum": r"\\sum(?![A-Za-z])|∑|\bsum\b",
        "product": r"\\prod(?![A-Za-z])|∏",
        "limit": r"\\lim(?:sup|inf)?(?![A-Za-z])|\blim\b",
        "derivative": r"\\frac\s*\{\s*(?:d|\\partial)[^{}]*(?:\{[^{}]*\}[^{}]*)?\}\s*\{\s*(?:d|\\partial) ?\\?[A-Za-z]|"
        r"\\(?:partial|nabla)(?![A-Za-z])|(?<![A-Za-z])d/d[a-z]",
        "divisor": r"(?i)(?<![a-z])(?:gcd|lcm|gcf|hcf)(?![a-z])",
        "remainder": r"(?i)(?<![a-z])[bp]?mod(?:ulo)?(?![a-z])|\\[bp]mod|\d ?\\?% ?\d",
        "determinant": r"(?i)(?<![a-z])det(?![a-z])|\{vmatrix\}",
        "rounding": r"\\[lr](?:floor|ceil)(?![A-Za-z])|(?i:(?<![a-z])(?:floor|ceil|round|trunc)(?![a-z]))|[⌊⌈]",
        "extreme": r"(?i)(?<![a-z])(?:max|min|sup|inf|argmax|argmin)(?![a-z])",
        "intersection": r"\\(?:cap|bigcap|bigcup|triangle|oplus)(?![A-Za-z])|∩",
        "part": r"\\(?:Re|Im|arg)(?![A-Za-z])|(?<![A-Za-z])(?:Re|Im)\s*\(",
        "code": r"(?<![A-Za-z])(?:pow|abs|int|len|range|comb|perm|math)\s*[(.]|//",
    }.items()
}
_FAMILIES = {
    "trigonometric": re.compile(
        r"(?<!arc)(?<![A-Za-z])\\?(?:sin|cos|tan|cot|sec|csc|cis)(?!h)(?![a-z])(?!\s*\^\s*\{?\s*-)"
    ),
    "inverse": re.compile(
        r"(?:arc|\ba)(?:sin|cos|tan|cot|sec|csc)(?!h)|(?:sin|cos|tan|cot|sec|csc)\s*\^\s*\{?\s*-\s*1"
    ),
    "logarithm": re.compile(r"(?<![A-Za-z])\\?(?:log|ln|lg)(?![a-z])|ar?c?(?:sin|cos|tan)h"),
    "hyperbolic": re.compile(r"(?<![A-Za-z]|r)\\?(?:sin|cos|tan|cot)h(?![a-z])"),
    "root": re.compile(r"\\sqrt|√|\bsqrt\b|\^\s*\{?\s*\(?-?(?:\d+ ?/ ?\d|\\frac|\.5|0\.\d)"),
    "pi": re.compile(r"\\pi(?![A-Za-z])|π"),
}
_EXPONENTIAL = re.compile(r"(?<![A-Za-z\\])e\s*\^|\\exp|\bexp\b")
# forms of a gold that may replace a family
_INSTEAD = {
    "trigonometric": _EXPONENTIAL,
    "hyperbolic": _EXPONENTIAL,
    "logarithm": re.compile(r"ar?c?(?:sin|cos|tan)h"),
}
_FUNCTIONS = ("trigonometric", "inverse", "logarithm", "hyperbolic")
_MATRIX = re.compile(r"\\begin\s*\{[pbBv]?(?:small)?matrix\}|\\begin\s*\{array\}")
_MATRIX_WORK = re.compile(
    r"\\end\{[a-zA-Z]+\}\s*(?:\\right\s*\S\s*|\)\s*)?(?:[*+^-]|\\cdot|\\times|\\begin|\()|[+-]\s*\\begin"
)
_INTERVAL = re.compile(r"(?:x ?\\in ?)?[\[(][^\[\]()]*,[^\[\]()]*[\])]|\\\{[^{}]*\\\}")
_RELATION = re.compile(r"[<>]=?|\\(?:leq?|geq?|lt|gt|leqslant|geqslant)(?![A-Za-z])")
_EQUALS = re.compile(r"(?<![<>!:\\])=")
_AND = re.compile(
    r",|;|\\(?:quad|lor|land|vee|wedge|cup)(?![A-Za-z])|\\text\s*\{[^{}]*\}|\b(?:and|or|with|where|for)\b|\\\\|&"
)
_LONE = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_VARIABLE = re.compile(r"(?<![\\A-Za-z])(?![ei](?![A-Za-z]))[A-Za-z](?![A-Za-z])")
_COMMAND = re.compile(r"\\(?:begin|end)\{[A-Za-z]+\}|\\[A-Za-z]+")
_GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|theta|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|psi|omega)(?![A-Za-z])"
)
_ZEROTH = re.compile(r"[A-Za-z)]\s*\^\s*(?:0|\{\s*0\s*\})(?!\d)")
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])|\\[a-z]+")
_BASED = r"(?<![A-Za-z\d^\\])\d+_(?:\d|\{\d+\})"
_BASED_WORK = re.compile(rf"{_BASED} ?\)? ?(?:\\cdot|\\times|[*+/(-]) ?\(? ?{_BASED}")
_LONG_NUMBER = re.compile(r"\d(?:[,\s]?\d){3,}")


def unevaluated(answer: str, gold: str) -> bool:
    """Whether an answer contains unfinished work that its gold does not contain. Both are in normal form, without
    labels."""
    if re.fullmatch(r"-?\d+", answer) or answer == gold:
        return False
    if _has_more_operators(answer, gold) or _unsolved(answer, gold):
        return True
    values = ", ".join(without_label(part.strip()) for part in split_outside(_AND, answer))
    if _could_be_simpler(values, gold) or _cancels(values, gold) or _arithmetic(joined(values), joined(gold)):
        return True
    return cancels(values, gold)


def sides_of(text: str) -> list[str]:
    """The sides of an equation or of a chain of them."""
    return [side.strip() for side in split_outside(_EQUALS, text)]


def _has_more_operators(answer: str, gold: str) -> bool:
    if any(operator.search(answer) and not operator.search(gold) for operator in _UNDONE.values()):
        return True
    if _BASED_WORK.search(answer) and not _BASED_WORK.search(gold):
        return True
    if "\\cup" in answer and "\\cup" not in gold and _INTERVAL.fullmatch(gold):
        return True
    if "\\begin" not in answer:
        return False
    more = len(_MATRIX.findall(answer)) > max(1, len(_MATRIX.findall(gold)))
    return more or bool(_MATRIX_WORK.search(answer) and not _MATRIX_WORK.search(gold))


def _could_be_simpler(answer: str, gold: str) -> bool:
    """Whether the answer has a function, a root or pi although the gold has none."""
    for name, family in _FAMILIES.items():
        if not family.search(answer) or family.search(gold):
            continue
        if name in _INSTEAD and _INSTEAD[name].search(gold):
            continue
        richer = _EXPONENTIAL.search(gold) or any(_FAMILIES[other].search(gold) for other in _FUNCTIONS)
        if name in _FUNCTIONS or not richer:
            return True
    return bool(re.search(r"(?<![A-Za-z\\])e\s*\^\s*(?:i|\{[^{}]*(?<![A-Za-z])i)", answer)) and not _LETTER.search(gold)


def _unsolved(answer: str, gold: str) -> bool:
    """Whether the answer has equations or inequalities that do not say what x is."""
    if "=" not in gold and "=" in answer and any(map(_is_unsolved_equation, split_outside(_AND, answer))):
        return True
    if _is_solved(gold) and "=" in answer and not _RELATION.search(answer):
        return not all(map(_is_solved, filter(None, map(str.strip, split_outside(_AND, answer)))))
    if not _RELATION.search(answer):
        return False
    if _RELATION.search(gold) and any(map(_is_unsolved_inequality, split_outside(_AND, gold))):
        return False
    return any(map(_is_unsolved_inequality, split_outside(_AND, answer)))


def _is_solved(text: str) -> bool:
    """Whether one side is a letter and the other a number: x = 12."""
    sides = sides_of(text)
    named = [side for side in sides if _LETTER.fullmatch(side)]
    return (
        len(named) == 1
        and len(sides) > 1
        and not any(_VARIABLE.search(_COMMAND.sub("", side)) for side in sides if side not in named)
    )


def _is_unsolved_equation(text: str) -> bool:
    """False for `\\sum_{i=1}^n` and for 2 + 3 = 5, which are not equations to solve."""
    sides = sides_of(text)
    if len(sides) < 2 or is_label(sides[0]) or is_label(sides[-1]):
        return False
    # without letters there is nothing to solve
    return bool(re.search(r"[A-Za-z]", _COMMAND.sub("", sides[0]))) and not has_operator(sides[0])


def has_operator(text: str) -> bool:
    """Whether a text has an operation that is not carried out, such as gcd(84, 126)."""
    return any(operator.search(text) for operator in _UNDONE.values())


def _is_unsolved_inequality(text: str) -> bool:
    if not _RELATION.search(text):
        return False
    named = [is_label(side) and bool(_LETTER.search(side)) for side in map(str.strip, _RELATION.split(text))]
    return len(named) > 3 or not (named[1] if len(named) == 3 else any(named))


def _cancels(answer: str, gold: str) -> bool:
    """Whether letters that are not in the gold are in the answer twice: 42 + x - x."""
    lone = [*_LONE.findall(_COMMAND.sub(" ", answer)), *_GREEK.findall(answer)]
    if (not lone and not _ZEROTH.search(answer)) or _RELATION.search(answer) or "\\in" in answer:
        return False
    right = _COMMAND.sub(" ", gold) + "".join(_GREEK.findall(gold))
    return bool(_ZEROTH.search(answer)) or any(lone.count(x) > 1 and x not in right for x in set(lone) - {"d", "m"})


def _arithmetic(answer: str, gold: str) -> bool:
    found, right = arithmetic(answer), arithmetic(gold)
    if found.plain and not right.plain:
        return True
    return found.closed and not (right.closed or right.plain or _LONG_NUMBER.search(gold))
