"""What would each algorithm do? The effective credit of every algorithm on the same responses."""

from typing import TYPE_CHECKING, Any


_HOMES = {
    "Explained": "credits",
    "explain": "credits",
    "read_rollouts": "rollouts",
    "markdown_table": "table",
}

if TYPE_CHECKING:
    from .credits import Explained, explain
    from .rollouts import read_rollouts
    from .table import markdown_table

__all__ = ["Explained", "explain", "markdown_table", "read_rollouts"]


def __getattr__(name: str) -> Any:  # reading a file needs no torch
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
