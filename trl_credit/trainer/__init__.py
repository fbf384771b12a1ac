"""The trainers. Private methods of TRL are overridden only here and in `runs`."""

from .credit_trainer import CreditTrainer
from .refusals import TESTED_TRL_MINORS


__all__ = ["TESTED_TRL_MINORS", "CreditTrainer"]
