"""What a run costs before it is started: tokens, operations, memory, and seconds where rates were measured."""

from .estimate import Assumed, Plan, make_plan
from .rates import Rates, read_rates
from .shapes import read_shape, said_shape
from .text import as_json, as_text


__all__ = ["Assumed", "Plan", "Rates", "as_json", "as_text", "make_plan", "read_rates", "read_shape", "said_shape"]
