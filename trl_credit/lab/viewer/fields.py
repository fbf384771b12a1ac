"""Checks the fields of a shard, besides columns, that the page's script reads."""

import math
from types import NoneType
from typing import Any


# name → types of the value, or of the entries of a list or a mapping
Fields = dict[str, tuple[type, ...]]
_NUMBER, _COUNT = (float, int, NoneType), (int, NoneType)

HEADER: Fields = {
    **{"step": _COUNT, "algorithm": (str,), "model": (str, NoneType), "clip": _NUMBER},
    **dict.fromkeys(("trace_decay", "beta", "temperature"), _NUMBER),
}
RESPONSE: Fields = {
    **dict.fromkeys(("group", "index", "nodes", "segment_nodes"), _COUNT),
    **dict.fromkeys(("reward", "rewards", "segment_values"), _NUMBER),
    "truncated": (bool, NoneType),
}
NODE: Fields = {
    **dict.fromkeys(("id", "parent", "tokens"), _COUNT),
    **dict.fromkeys(("value", "advantage", "reward"), _NUMBER),
    **{"trained": (bool, NoneType), "text": (str, NoneType)},
}
_LISTS = ("clip", "nodes", "segment_nodes", "segment_values")


def checked(entry: dict[str, Any], fields: Fields, *, where: str) -> dict[str, Any]:
    """The fields of an entry; `None` for a missing field and for a number that is not finite.

    Raises:
        ValueError: a field has another type; the message names it.
    """
    return {name: _checked(entry.get(name), name, kinds, where) for name, kinds in fields.items()}


def _checked(value: Any, name: str, kinds: tuple[type, ...], where: str) -> Any:
    if value is not None and name in _LISTS and type(value) is list:
        return [_checked(x, "", kinds, f"{name} of {where}") for x in value]
    if name == "rewards" and type(value) is dict:
        return {str(key): _checked(x, "", kinds, f"{name} of {where}") for key, x in value.items()}
    if value is not None and (type(value) not in kinds or name in (*_LISTS, "rewards")):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{name or 'an entry'} of {where} must be of type {expected}: the log is damaged")
    return None if isinstance(value, float) and not math.isfinite(value) else value
