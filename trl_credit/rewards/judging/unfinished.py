"""Whether an answer is a value, or contains unfinished work. docs/answers.md has the policy as a table."""

import re
from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache

from sympy import Abs, Add, Basic, Mul, Pow, exp, factorial, preorder_traversal

from .normal import joined, split_outside
from .read import is_label, read, without_label


# operators that an answer may have only if its gold has them
_FAMILIES = (
    r"i{0,3}o?int|integral|∫ sum|∑ prod|∏ lim(?:sup|inf)? gcd|lcm|gcf|hcf [bp]?mod(?:ulo)?|\d\s?(?:\\?%|//)\s?\d "
    r"det|vmatrix [lr]?(?:floor|ceil)|round|trunc|⌊|⌈ (?:arg)?(?:max|min)|sup|inf (?:big)?cap|bigcup|triangle|oplus|∩ "
    r"(?-i:Re|Im)|arg partial|nabla|d/d[a-z]|\\frac\s*\{\s*d[^{}]*(?:\{[^{}]*\}[^{}]*)?\}\s*\{\s*d\s?\\?[a-z]+ "
    r"(?:eval|pow|abs|len|range|comb|perm)(?=\()"
).split()
_OPERATORS = [re.compile(rf"(?<![a-z])(?:{family})(?![a-z])", re.IGNORECASE) for family in _FAMILIES]
_OPERATORS += [re.compile(r"\\end\{[a-z]+\}\s*\)?\s*(?:[*+^-]|\\cdot|\\times|\\begin|\()|[+-]\s*\\begin")]
_FUNCTIONS = [
    re.compile(r"(?<![A-Za-z])(?:arc|a)?(?:sin|cos|tan|cot|sec|csc|cis)h?(?![a-z])|e ?\^|exp(?![a-z])|[\d{] ?e(?!\w)"),
    re.compile(r"(?<![A-Za-z])(?:log|ln|lg)(?![a-z])|ar?c?(?:sin|cos|tan)h"),
]
_ROOT = re.compile(r"sqrt|√|\^\s*\{?\s*\(?-?(?:\d+ ?/ ?\d|\\frac|\.5|0\.\d)")
_PI = re.compile(r"\\pi(?![A-Za-z])")
_EQUALS = re.compile(r"(?<![<>!:\\])=")
_RELATION = re.compile(r"[<>]=?|\\(?:leq?|geq?|lt|gt|leqslant|geqslant)(?![A-Za-z])")
_AND = re.compile(r",|;|\\(?:lor|land|cup)(?![A-Za-z])|\b(?:and|or|with|where|for)\b|\\\\|&|(?<=\d) ?: ?(?=[1-9])")
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])|\\(?:alpha|beta|gamma|theta|lambda|phi|omega)(?![A-Za-z])")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}(?:\{[^{}]*\})?")
_OPERATION = re.compile(r"[+*^!|(/\\]|(?<=.)-|\d[A-Za-z ]+\d|(?<![\d:])0 ?[a-z]")
# work that is lost when a formula is parsed
_LOST = re.compile(
    r"[\d)] ?\( ?-?[\d.]+ ?\)|\( ?-?[\d.]+ ?\) ?\d|"  # (17)(23)
    r"[-+] ?[-+]|- ?\( ?- ?[\d.]+ ?\)|"  # -(-42)
    r"\\div(?![a-z])|(?:/|\\frac ?\{[^{}]*\}) ?\{? ?1(?![\d.])|\\frac ?\{(\d+)\} ?\{\1\}|"  # 42/1, 5/5
    r"(?<![\w.}])1 ?(?:\*|\\cdot|\\times)(?! ?10)|(?:\*|\\cdot|\\times) ?\(? ?-? ?1(?![\d.])|"  # 1·x
    r"(?<!10)\^ ?(?:[01](?![\d.])|\{ ?[01] ?\})|(?<![\w.])(?:1|\( ?1 ?\)) ?\^|(?<!\d)[01]!|"  # e^0
    r"\\binom ?\{[^{}]*\} ?\{ ?[01] ?\}"
)
_CLOSED = re.compile(r"\\binom ?\{ ?(\d+) ?\} ?\{ ?\d+ ?\}|\{? ?(\d+) ?\\choose ?\d+ ?\}?|\\Gamma ?\(? ?(\d+) ?\)?")
# i, capitals and words: the parser takes R for r, and words for products of letters
_NAME = re.compile(
    r"(?<![\\A-Za-z])(?:i|(?!sqrt|a?r?c?(?:sin|cos|tan))[A-Za-z]{4,40})(?![A-Za-z])|(?<!\\)[A-Z](?:_\w+|_\{\w+\})?"
)
_SCIENTIFIC = re.compile(r"(?<=\d) ?(?:\\times|\\cdot|\*) ?10 ?\^ ?(?:\d|\{ ?-?\d+ ?\})")
_I = "z_{105}"  # the imaginary unit, which the parser would compute with
_QUOTIENT = re.compile(r"/|\\frac")


class _Kind(IntEnum):
    """What a formula is made of: the highest kind of its parts. Work has the kind of what is left to compute."""

    NUMBER = 0  # 3, -0.5, 3/4
    CLOSED = 1  # powers, factorials and binomials of numbers
    COMPLEX = 2  # numbers with i
    OTHER = 3  # letters, functions, roots, pi


def unevaluated(answer: str, gold: str) -> bool:
    """Whether an answer contains unfinished work that its gold does not contain. Both are in normal form, without
    labels."""
    value, right = map(_values, (answer, gold))
    if _is_unsolved(answer, gold) or _has_more(value, gold):
        return True
    known = _work(right)
    # a whole number of four digits is short for a quotient, 7!/2
    digits = 5 if _QUOTIENT.search(value) and not _QUOTIENT.search(right) else 4
    if _Kind.NUMBER in known or re.search(rf"\d{{{digits}}}", right):
        known |= {_Kind.CLOSED}
    return not _work(value) <= known


def _values(text: str) -> str:
    """A list of values as formulas with commas, without labels."""
    return joined(", ".join(without_label(part.strip()) for part in split_outside(_AND, text)))


def sides_of(text: str) -> list[str]:
    """The sides of an equation or of a chain of them."""
    return [side.strip() for side in split_outside(_EQUALS, text)]


def has_operator(text: str) -> bool:
    """Whether a text has an operation that is not carried out, such as gcd(84, 126)."""
    return any(operator.search(text) for operator in _OPERATORS)


def _is_unsolved(answer: str, gold: str) -> bool:
    """Whether the answer has equations or inequalities that do not say what x is, unlike the gold."""
    value = without_label(gold)
    if "=" in value or any(map(_is_open, split_outside(_AND, value))) or (value != gold and _LETTER.search(value)):
        return False
    return any(map(_is_open, split_outside(_AND, answer)))


def _is_open(text: str) -> bool:
    """Whether an equation or inequality does not give a letter. 2 + 3 = 5 is not to be solved."""
    is_relation = _RELATION.search(text)
    sides = [side.strip() for side in split_outside(_RELATION if is_relation else _EQUALS, text)]
    is_solved = any(map(is_label, sides if is_relation else (sides[0], sides[-1])))
    return not is_solved and (is_relation or (len(sides) > 1 and _LETTER.search(sides[0])))


def _has_more(answer: str, gold: str) -> bool:
    """Whether the answer has an operator, a function, a root or pi that the gold does without, or twice a letter that
    the gold does without: 42 + x - x."""
    families = [*_OPERATORS, *_FUNCTIONS]
    if not any(function.search(gold) for function in _FUNCTIONS):
        families += [_ROOT, _PI]
    letters = Counter(_LETTER.findall(answer))
    is_twice = any(count > 1 and letter not in _LETTER.findall(gold) for letter, count in letters.items())
    return is_twice or any(family.search(answer) and not family.search(gold) for family in families)


@lru_cache(maxsize=1024)
def _work(text: str) -> frozenset[_Kind]:
    """The work in a formula, or in any of several formulas with commas between them."""
    formula = _CLOSED.sub(lambda match: f"{max(match.groups(''))}!", _ENVIRONMENT.sub(",", text))
    formula = _NAME.sub(lambda name: f"z_{{{int.from_bytes(name[0].encode(), 'big')}}}", _SCIENTIFIC.sub("", formula))
    parts = [part for part in split_outside(_AND, formula) if _OPERATION.search(part)]
    work = {kind for part in parts for node in preorder_traversal(read(part).tree) for kind in _work_at(node)}
    if _LOST.search(text):
        work.add(_Kind.NUMBER)
    return frozenset(work)


def _work_at(node: Basic | None) -> Iterator[_Kind]:
    """The work at one node of a formula, which is not evaluated."""
    if isinstance(node, Abs) and all(symbol.name == _I for symbol in node.free_symbols):
        yield _Kind.NUMBER
    if isinstance(node, (Pow, factorial)):
        kind = max(map(_kind, node.args))
        if kind in (_Kind.CLOSED, _Kind.COMPLEX) and node.args[-1] != -1:
            yield kind
    if not isinstance(node, (Add, Mul)):
        return
    if isinstance(node, Add):
        parts = [(term, True) for term in node.args]
        terms = [term for term in node.args if _kind(term) > _Kind.CLOSED]
        cancels = len(Add.make_args(Add(*(term.doit() for term in terms)))) < len(terms)
    else:
        # the parser writes -1/x as -1·1·x⁻¹
        parts = [factor for factor in _factors(node) if factor[0] not in (1, -1)]
        above, below = (set().union(*(_bases(part) for part, up in parts if up is side)) for side in (True, False))
        cancels = bool(above & below)
    if cancels:
        yield _Kind.OTHER
    complexes = [up for part, up in parts if _kind(part) is _Kind.COMPLEX]
    if len(complexes) > 1 or (False in complexes and _kind(node) is _Kind.COMPLEX):
        yield _Kind.COMPLEX
    numbers = [up for part, up in parts if _kind(part) is _Kind.NUMBER]
    is_compound = False in numbers and any(part.is_Rational and not part.is_Integer for part, _ in parts)
    if numbers.count(True) > 1 or numbers.count(False) > 1 or is_compound or (0, True) in parts:
        yield _Kind.NUMBER
    rational = [_kind(part) for part, _ in parts if _kind(part) <= _Kind.CLOSED]
    if len(rational) > 1 and _Kind.CLOSED in rational:
        yield _Kind.CLOSED


def _factors(node: Basic, up: bool = True) -> list[tuple[Basic, bool]]:
    """The factors of a product, each with whether it is above the fraction bar."""
    if isinstance(node, Mul):
        return [factor for part in node.args for factor in _factors(part, up)]
    if isinstance(node, Pow) and node.exp == -1:
        return _factors(node.base, not up)
    return [(node, up)]


def _bases(node: Basic) -> set[Basic]:
    """What can be cancelled: letters, sums, and letters that all terms of a sum have. √x/x is a value."""
    if isinstance(node, Mul):
        return set().union(*map(_bases, node.args))
    if isinstance(node, Add):
        total = Add(*node.args)
        return {total, -total} | set.intersection(*map(_bases, node.args))
    if isinstance(node, (Pow, exp)):
        base, power = node.as_base_exp()
        return {base} if power.free_symbols else _bases(base) if power.is_Integer else {node}
    return {node} if _kind(node) > _Kind.CLOSED else set()


@lru_cache(maxsize=4096)
def _kind(node: Basic) -> _Kind:
    if node.is_Rational or node.is_Float:
        return _Kind.NUMBER
    if node.is_Symbol:
        return _Kind.COMPLEX if node.name == _I else _Kind.OTHER
    is_root = isinstance(node, Pow) and _kind(node.exp) is _Kind.NUMBER and not node.exp.is_Integer
    if is_root or not isinstance(node, (Add, Mul, Pow, factorial)):
        return _Kind.OTHER
    return max(_Kind.NUMBER if isinstance(node, (Add, Mul)) else _Kind.CLOSED, *map(_kind, node.args))
