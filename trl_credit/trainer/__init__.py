"""The trainer: the only place that names anything private of TRL."""

from .credit_trainer import CreditTrainer
from .refusals import TESTED_TRL_MINORS


__all__ = ["TESTED_TRL_MINORS", "CreditTrainer"]
