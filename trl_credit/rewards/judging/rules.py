"""How strictly an answer is read."""

from typing import NamedTuple


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
        names (`tuple[str, ...]`): names of values in the answer, in the order in which the problem asks for them.
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
    names: tuple[str, ...] = ()
    falls: str = ""
