"""Methods of TRL that a subclass overrides: whose they are, and whether those that carry credit ran all the same."""

from typing import Any

import trl
from transformers import TrainerCallback

from .refusals import TESTED_TRL_MINORS


OF_LOSS = ("compute_loss", "_compute_loss")


def override_of(trainer: trl.GRPOTrainer, name: str) -> str | None:
    """ "Class.method" if a subclass, a mixin or the instance overrides a method of the package, else `None`."""
    owner = next(one for one in type(trainer).__mro__ if name in vars(one))
    if name in vars(trainer):
        where = " (set on the instance)"
    elif owner.__module__.partition(".")[0] in ("transformers", "trl", "trl_credit"):
        return None
    else:
        where = f" (of {owner.__name__})" * (owner is not type(trainer))
    return f"{type(trainer).__name__}.{name}{where}"


class Overrides(TrainerCallback):
    """Refuses a training step in which an override left out what carries credit. Not its source decides, but what ran.

    Args:
        trainer (`GRPOTrainer`):
            Gets this callback. Its methods add their names to `ran`.
    """

    def __init__(self, trainer: trl.GRPOTrainer) -> None:
        self._trainer = trainer
        self.ran: set[str] = set()  # methods of the package that have run in this step
        trainer.add_callback(self)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ran.clear()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name in ("training_step", "_prepare_inputs", "_compute_loss"):
            self.require(name)

    def require(self, name: str) -> None:
        """Checks that a method of the package has run in this step.

        Raises:
            TypeError: it has not. The message names the override and the ways out.
        """
        if name not in self.ran:
            labels = [override_of(self._trainer, one) for one in (OF_LOSS if name in OF_LOSS else (name,))]
            who = " or ".join(filter(None, labels)) or f"{type(self._trainer).__name__}.{name}"
            what = f"{who} did not call super() in this training step, which would leave out the credit of"
            fix = f"call super().{name} and add to what it returns, or train with trl.GRPOTrainer, or write a `credit`"
            raise TypeError(f"{what} {self._trainer.algorithm_name}: {fix} function.")

    def check_forward(self, calls: int) -> None:
        """Checks that the package's forward pass, which writes credit, ran once in a loss.

        Raises:
            RuntimeError: it did not, by an override or by the installed TRL.
        """
        if calls != 1:
            override = override_of(self._trainer, "_get_per_token_logps_and_entropies")
            what = f"computed log-probabilities {calls} times in one loss, not once, by super(), so credit was lost"
            fix = f"install trl {' or '.join(TESTED_TRL_MINORS)}" if override is None else "call super() there, once"
            raise RuntimeError(f"{override or f'TRL {trl.__version__}'} {what}: {fix}.")
