"""How strictly an answer is read, and what becomes of it."""

from enum import StrEnum, auto
from typing import NamedTuple


class Outcome(StrEnum):
    """What became of an answer; all but the first count as wrong. Values are names of metrics and replies of workers.

    Attributes:
        RIGHT: It equals its gold.
        UNEVALUATED: Strict rules refuse it, right or not: it still has to be worked out.
        WRONG: It does not equal its gold.
        RESTATED: It equals its gold, and is a copy of the problem.
        TIMED_OUT: It took too long.
        OVER_BUDGET: It took longer than the first share of its time, and too many others did before.
        FAILED: The parser raised an error, or its process died.
    """

    RIGHT = auto()
    UNEVALUATED = auto()
    WRONG = auto()
    RESTATED = auto()
    TIMED_OUT = auto()
    OVER_BUDGET = auto()
    FAILED = auto()


class Rules(NamedTuple):
    """How strictly an answer is read.

    Args:
        strict (`bool`): an answer must be a value, and letters and words have an order.
        ordered (`bool`): lists have an order too.
        products (`bool`): small letters in a row are a product: `ab` is `ba`.
        named (`bool`): the left side of the first equals sign was asked for: m + n = 42.
        listed (`bool`): a tuple may be written as a list, without its brackets.
        untupled (`bool`): a list may not be written as a tuple.
        units (`tuple[str, ...]`): the units of which the gold has one, if it is written without.
        integers (`bool`): the problem speaks of integers, so an answer may too.
        constant (`bool`): the answer has a constant of integration, C or c.
        base (`int`): the base in which a number was asked for; 0 if none was.
        problem (`str`): the problem, which has the order of values with names.
        falls (`str`): `>` if a list from the greatest to the least was asked for, `<` if from the least.
    """

    strict: bool = False
    ordered: bool = False
    products: bool = False
    named: bool = False
    listed: bool = False
    untupled: bool = False
    units: tuple[str, ...] = ()
    integers: bool = False
    constant: bool = False
    base: int = 0
    problem: str = ""
    falls: str = ""
