"""Rollout logs as an HTML page, in a terminal, in a notebook and in trackers. Imports `observe` and `support`, and no
torch; `trackers`, which belongs to a trainer, and `on_hub`, which imports `hub`, are imported by their names alone."""

from .notebook import show_credit
from .page import build_page


__all__ = ["build_page", "show_credit"]
