"""The cost of a run before it starts: tokens, FLOPs, memory, seconds. Imports `..comparison` and `..evaluation`."""

from .estimate import Assumed, Plan, make_plan
from .rates import Rates, read_rates
from .shapes import manual_shape, read_shape
from .text import as_json, as_text


__all__ = ["Assumed", "Plan", "Rates", "as_json", "as_text", "make_plan", "manual_shape", "read_rates", "read_shape"]
