"""The credit that each algorithm would give to the same responses. May import the subpackages below `lab`."""

from .credits import Explained, explain
from .rollouts import read_rollouts
from .table import markdown_table


__all__ = ["Explained", "explain", "markdown_table", "read_rollouts"]
