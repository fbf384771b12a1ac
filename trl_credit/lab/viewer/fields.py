"""Checks the fields of a shard, besides columns, that the page's script reads."""

from inspect import formatannotation
from typing import Any, get_args, get_origin


Fields = dict[type, tuple[str, ...]]  # names by type

HEADER: Fields = {
    int: ("step",),
    float: ("trace_decay", "beta", "temperature"),
    str: ("algorithm", "model"),
    list[float]: ("clip",),
    dict: ("settings",),
}
RESPONSE: Fields = {
    int: ("group", "index"),
    float: ("reward",),
    bool: ("truncated",),
    list[float]: ("segment_values",),
    list[int]: ("nodes", "segment_nodes"),
    dict[str, float]: ("rewards",),
}
NODE: Fields = {
    int: ("id", "parent", "tokens"),
    float: ("value", "advantage", "reward"),
    bool: ("trained",),
    str: ("text",),
}


def checked(entry: dict[str, Any], fields: Fields, *, where: str) -> dict[str, Any]:
    """The fields of an entry; `None` for a missing field and for a number that is not finite.

    Raises:
        ValueError: a field has another type; the message names it.
    """
    found = {}
    for kind, names in fields.items():
        for name in names:
            value = entry.get(name)
            try:
                found[name] = None if value is None else _checked(value, kind)
            except TypeError:
                expected = formatannotation(kind)
                raise ValueError(
                    f"{name} of {where} must be of type {expected}, got {value!r:.60}: the log is damaged"
                ) from None
    return found


def _checked(value: Any, kind: type) -> Any:
    if kind is float and type(value) in (int, type(None)):
        value = float("nan") if value is None else value
    elif type(value) is not (get_origin(kind) or kind) or (kind is int and abs(value) > 2**53):
        raise TypeError
    if kind is float:
        return value if abs(value) < 1e300 else None
    if kind is dict:  # settings, which the page shows as text
        return {str(name): x if type(x) in (str, bool) else str(x) for name, x in value.items()}
    if get_origin(kind) is list:
        return [_checked(x, get_args(kind)[0]) for x in value]
    if get_origin(kind) is dict:
        return {str(name): _checked(x, get_args(kind)[1]) for name, x in value.items()}
    return value
