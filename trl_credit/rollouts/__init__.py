"""Monte Carlo continuations: from the boundaries of a response (chain), and as a tree of segments; replay of rows."""

from .replay import ReplayBuffer, Row


__all__ = ["ReplayBuffer", "Row"]
