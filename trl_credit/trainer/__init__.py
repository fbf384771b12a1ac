"""The trainer: the only place that names anything private of TRL."""

from .credit_trainer import CreditTrainer


__all__ = ["CreditTrainer"]
