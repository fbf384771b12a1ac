"""Where a run may be interrupted without a trace: between two generation batches.

A generation batch feeds `steps_per_generation · num_iterations` micro-batches. What is left of one is not in a
checkpoint: TRL generates it anew after a resume. So checkpoints are taken where nothing is left.
"""

import math
from typing import Any

from transformers import TrainerControl, TrainerState

from ..config import CreditConfig


class Borders:
    """Moves checkpoints from the middle of a generation batch to its end.

    Args:
        config ([`CreditConfig`]):
            Its sizes of batches, and when it saves and evaluates. `save_steps` is rounded up to a multiple of a
            generation batch's optimizer steps, and so is `eval_steps` where the best checkpoint is kept, of which it
            stays a multiple.

    Attributes:
        every: Micro-batches of a generation batch on each process.
        updates: Optimizer steps from one border that a checkpoint can be taken at to the next.
        done: Micro-batches since a border, at the end of the last optimizer step.
        rounded: What was rounded, in words, or "".
    """

    def __init__(self, config: CreditConfig) -> None:
        window = config.gradient_accumulation_steps
        self.every = config.steps_per_generation * config.num_iterations
        self.updates = math.lcm(self.every, window) // window
        self.done = 0
        self._keeps_best = config.load_best_model_at_end or config.save_strategy == "best"
        self._save = self._evaluate = False
        evaluated = self._round(config, "eval_steps", config.eval_strategy, self.updates) if self._keeps_best else ""
        # what is kept as the best must have been evaluated, and so saved where it was
        together = config.load_best_model_at_end and config.eval_strategy == "steps" and config.eval_steps >= 1
        saved = self._round(config, "save_steps", config.save_strategy, config.eval_steps if together else self.updates)
        self.rounded = ", ".join(filter(None, (saved, evaluated)))

    def begin(self) -> None:
        """Forgets what was due when training was interrupted."""
        self.done, self._save, self._evaluate = 0, False, False

    @staticmethod
    def _round(config: CreditConfig, name: str, strategy: str, unit: float) -> str:
        before = getattr(config, name)
        # below 1 it is a share of all steps, which nobody knows yet: such checkpoints are moved one by one
        if strategy != "steps" or before is None or before < 1 or before % unit == 0:
            return ""
        setattr(config, name, math.ceil(before / unit) * int(unit))
        return f"{name} {before:g} → {getattr(config, name)}"

    def after_update(self, step: int, *, control: TrainerControl) -> None:
        """Puts a checkpoint that is due off to the next border, unless training ends here.

        Args:
            step (`int`):
                Micro-batches so far.
        """
        self.done = step % self.every
        inside = self.done > 0 and not control.should_training_stop
        control.should_save, self._save = _moved(control.should_save, self._save, inside)
        if self._keeps_best:  # the best checkpoint is the one that was evaluated
            control.should_evaluate, self._evaluate = _moved(control.should_evaluate, self._evaluate, inside)

    def position(self, state: TrainerState, window: int, kept: Any) -> int:
        """Micro-batches since a border at which a checkpoint was written.

        Args:
            window (`int`):
                Gradient accumulation steps.
            kept (`list` or `None`):
                `[done, every]` as the checkpoint has it. `None`: it follows from the optimizer steps, except where
                windows do not fit into generation batches.
        """
        if isinstance(kept, list) and len(kept) == 2 and kept[1] == self.every:
            return int(kept[0])
        fits = self.every % window == 0 or window % self.every == 0
        return state.global_step * window % self.every if fits else 0


def _moved(due: bool, waiting: bool, inside: bool) -> tuple[bool, bool]:
    due = due or waiting
    return (False, due) if inside else (due, False)
