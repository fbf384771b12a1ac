"""The model card, the recipe and pushes to the Hub. May import the subpackages up to `observe`; sees the
trainer through a protocol."""

from .card import TrainingData, write_model_card
from .files import publishable
from .push import PushCallback, PushError, PushInterrupted, Repository, push, without_waiting


__all__ = ["PushCallback", "PushError", "PushInterrupted", "Repository", "TrainingData", "publishable", "push"]
__all__ += ["without_waiting", "write_model_card"]
