"""Rollout logs as an HTML page, in a terminal and in a notebook. Imports `observe` and `support`, and no torch."""

from .notebook import show_credit
from .page import build_page


__all__ = ["build_page", "show_credit"]
