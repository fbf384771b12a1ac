"""Credit that one can look at: rollout logs as a page, in a terminal, in a notebook. Needs no torch."""

from .notebook import show_credit
from .page import build_page


__all__ = ["build_page", "show_credit"]
