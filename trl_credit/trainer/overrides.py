"""Methods of TRL that a subclass overrides: whose they are, and whether those that carry credit ran all the same."""

from typing import Any

import trl
from transformers import TrainerCallback
from trl import GRPOTrainer

from .refusals import TESTED_TRL_MINORS


OF_LOSS = ("compute_loss", "_compute_loss")
_PACKAGES = ("transformers", "trl", "trl_credit")
# further ways out, besides the call of super()
_INSTEAD = {
    "_compute_loss": ", or write the idea as a `credit` function or method",
    "_generate_and_score_completions": ", or generate in a rollout_func",
}


def override_of(trainer: GRPOTrainer, name: str) -> str | None:
    """ "Class.method" if a subclass, a mixin or the instance overrides a method of the package, else `None`."""
    kind = type(trainer).__name__
    owner = next(one for one in type(trainer).__mro__ if name in vars(one))
    if name in vars(trainer):
        return f"{kind}.{name} (set on the instance)"
    if owner.__module__.partition(".")[0] in _PACKAGES:
        return None
    return f"{kind}.{name}" + f" (of {owner.__name__})" * (owner is not type(trainer))


class Overrides(TrainerCallback):
    """Refuses a training step in which an override left out what carries credit. Not its source decides, but what ran.

    Args:
        trainer (`GRPOTrainer`):
            Its methods call `enter` when they run.
    """

    def __init__(self, trainer: GRPOTrainer) -> None:
        self._trainer = trainer
        self._ran: set[str] = set()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._ran.clear()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.require("training_step")

    def enter(self, name: str, *inside: str) -> None:
        """Notes that a method runs, and that those have not run which it calls."""
        self._ran.add(name)
        self._ran.difference_update(inside)

    def require(self, *names: str) -> None:
        """Checks that methods of the package have run in this training step.

        Raises:
            TypeError: one has not. The message names the override and the ways out.
        """
        for name in names:
            if name in self._ran:
                continue
            known = {one: override_of(self._trainer, one) for one in (OF_LOSS if name in OF_LOSS else (name,))}
            labels = {one: label for one, label in known.items() if label} or {name: type(self._trainer).__name__}
            what = f"{' or '.join(labels.values())} did not call super() in this training step, which would leave out"
            fix = f"call super().{list(labels)[-1]} and add to what it returns, or train with trl.GRPOTrainer"
            raise TypeError(f"{what} the credit of {self._trainer.algorithm_name}: {fix}{_INSTEAD.get(name, '')}.")

    def check_forward(self, calls: int) -> None:
        """Checks how often the package's forward pass ran in one loss.

        Raises:
            TypeError: an override of it did not call it once.
            RuntimeError: the installed TRL did not.
        """
        if calls == 1:
            return
        name = "_get_per_token_logps_and_entropies"
        if (override := override_of(self._trainer, name)) is not None:
            what = f"{override} called super() {calls} times in one loss, not once, and credit is written there"
            raise TypeError(f"{what}: call super().{name} and change what it returns, or train with trl.GRPOTrainer.")
        what = f"computed log-probabilities {calls} times in one loss, not once, so credit was lost"
        raise RuntimeError(f"TRL {trl.__version__} {what}. Install trl {' or '.join(TESTED_TRL_MINORS)}.")
