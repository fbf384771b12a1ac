"""Equations in one notation: derivatives, and terms with the factor 0."""

import re

from .plain import squeezed


_NAME = r"[A-Za-z](?![A-Za-z])"
_FRACTION = re.compile(
    rf"\\frac ?\{{ ?d(?: ?\^ ?\{{? ?(?P<order>[23]) ?\}}?)? ?(?P<name>{_NAME}) ?\}} ?"
    rf"\{{ ?d ?(?P<by>{_NAME})(?: ?\^ ?\{{? ?(?P<order2>[23]) ?\}}?)? ?\}}"
)
_SLASH = re.compile(rf"(?<![A-Za-z\\])(?P<order>)d(?P<name>{_NAME}) ?/ ?d(?P<by>{_NAME})(?P<order2>)")
_DOT = re.compile(rf"\\(?P<dots>d{{1,2}})ot(?![A-Za-z]) ?(?:\{{ ?(?P<name>{_NAME}) ?\}}|(?P<bare>{_NAME}))")
_PRIMES = re.compile(r"(?<![A-Za-z\\])(?P<name>[A-Za-z])(?P<primes>'{1,3}|\^ ?\{ ?(?:\\prime ?){2,3}\})")
_ZERO_TERM = re.compile(r"(?:(?<![\^_{(\d.])|(?<==))(?P<sign>^|=|[+-]) ?0 ?(?:\\cdot ?)?[A-Za-z](?![\w^(])")


def same_notation(answer: str, gold: str) -> tuple[str, str]:
    """Two equations in normal form. Derivatives get a symbol of their own, since math-verify reads them as 0."""
    if answer.count("=") != 1 or gold.count("=") != 1 or squeezed(answer) == squeezed(gold):
        return answer, gold
    if not _ZERO_TERM.search(gold.replace(" ", "")):
        answer = _without_zeros(answer)
    (found, names), (right, right_names) = _with_symbols(answer), _with_symbols(gold)
    return (found, right) if names and names == right_names else (answer, gold)


def _without_zeros(text: str) -> str:
    """2x + 0y = 5 as 2x = 5, but 0x = 5 as it is."""
    left, _, right = text.partition("=")
    sides = [_ZERO_TERM.sub("", side.replace(" ", "")) if "0" in side else side.strip() for side in (left, right)]
    return "=".join(side.removeprefix("+") for side in sides) if all(sides) else text


def _with_symbols(text: str) -> tuple[str, set[str]]:
    """The text with a symbol for each derivative by one variable, and the functions that have one."""
    by = {found["by"] for pattern in (_FRACTION, _SLASH) for found in pattern.finditer(text)}
    if len(by) > 1 or "\\partial" in text:
        return text, set()
    names: set[str] = set()

    def symbol(name: str, order: int) -> str:
        names.add(name)
        return f" {name}_{{{90 + order}}} "

    for pattern in (_FRACTION, _SLASH):
        text = pattern.sub(
            lambda f: symbol(f["name"], int(f["order"] or 1)) if f["order"] == f["order2"] else f.group(), text
        )
    text = _DOT.sub(lambda f: symbol(f["name"] or f["bare"], len(f["dots"])), text)
    text = _PRIMES.sub(lambda f: symbol(f["name"], len(re.findall("'|prime", f["primes"]))), text)
    for name in names:
        text = re.sub(rf"(?<![A-Za-z\\]){name}(_\{{9\d\}} )? ?\([a-z]\)", rf"{name}\1", text)
    return text, names
