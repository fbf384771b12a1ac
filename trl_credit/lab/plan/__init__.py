"""The size of a run before it starts: tokens and memory. May import `..evaluation`."""

from .estimate import Assumed, Plan, make_plan
from .shapes import manual_shape, read_shape
from .text import as_json, as_text


__all__ = ["Assumed", "Plan", "as_json", "as_text", "make_plan", "manual_shape", "read_shape"]
