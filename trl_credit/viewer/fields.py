"""What the page's script takes from a shard besides columns, checked, so that it need not."""

import math
from collections.abc import Callable
from typing import Any


Check = Callable[[Any], Any]


def taken(entry: dict[str, Any], fields: dict[str, Check], *, where: str) -> dict[str, Any]:
    """The fields of an entry, as their checks return them; `None` where one is missing.

    Raises:
        ValueError: one holds something else; the message names it.
    """
    found = {}
    for name, check in fields.items():
        value = entry.get(name)
        try:
            found[name] = None if value is None else check(value)
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{name} of {where} must be {error}, got {value!r:.60}: the log is damaged") from None
    return found


def _number(value: Any) -> float | None:
    if type(value) not in (int, float):
        raise TypeError("a number")
    return value if abs(value) < 1e300 and math.isfinite(value) else None


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > 2**53:
        raise TypeError("a whole number")
    return value


def _of(kind: type, said: str) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(said)
        return value

    return check


def _numbers(value: Any) -> list[float | None]:
    if type(value) is not list:
        raise TypeError("a list of numbers")
    return [None if one is None else _number(one) for one in value]


def _whole_numbers(value: Any) -> list[int]:
    if type(value) is not list:
        raise TypeError("a list of whole numbers")
    return [_whole(one) for one in value]


def _named_numbers(value: Any) -> dict[str, float | None]:
    if type(value) is not dict:
        raise TypeError("numbers by name")
    return {str(name): None if one is None else _number(one) for name, one in value.items()}


def _settings(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise TypeError("settings by name")
    return {str(name): one if type(one) in (str, bool) else str(one) for name, one in value.items()}


_TEXT = _of(str, "a text")
_FLAG = _of(bool, "true or false")

HEADER: dict[str, Check] = {
    "step": _whole,
    "algorithm": _TEXT,
    "model": _TEXT,
    "settings": _settings,
    "trace_decay": _number,
    "clip": _numbers,
    "beta": _number,
    "temperature": _number,
}
RESPONSE: dict[str, Check] = {
    "group": _whole,
    "index": _whole,
    "reward": _number,
    "rewards": _named_numbers,
    "truncated": _FLAG,
    "segment_values": _numbers,
    "nodes": _whole_numbers,
    "segment_nodes": _whole_numbers,
}
NODE: dict[str, Check] = {
    "id": _whole,
    "parent": _whole,
    "text": _TEXT,
    "tokens": _whole,
    "value": _number,
    "advantage": _number,
    "reward": _number,
    "trained": _FLAG,
}
