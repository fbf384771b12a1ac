"""The knobs of credit assignment on top of TRL's `GRPOConfig`, and the rules between them. Imports `credit` for the
names of choices, and `support`."""

from .credit_config import CHOICES, FUNCTION_KNOBS, KNOBS, CreditConfig, active_part
from .from_trl import settings_of_preset
from .knobs import defaults


__all__ = ["CHOICES", "FUNCTION_KNOBS", "KNOBS", "CreditConfig", "active_part", "defaults", "settings_of_preset"]
