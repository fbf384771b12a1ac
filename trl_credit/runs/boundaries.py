"""Moves checkpoints to the boundaries between generation batches, where a resumed run equals an uninterrupted one.

A generation batch feeds `steps_per_generation · num_iterations` micro-batches. A checkpoint does not hold the rest of
an unfinished one: TRL generates it again after a resume.
"""

from typing import Any

from transformers import TrainerControl, TrainerState

from ..config import CreditConfig


class CheckpointBoundaries:
    """Delays checkpoints from the middle of a generation batch to its end. If the best checkpoint is kept, evaluations
    are delayed as well, so that a checkpoint stays where it was evaluated.

    Args:
        config ([`CreditConfig`]):
            Batch sizes, and whether the best checkpoint is kept.

    Attributes:
        every: Micro-batches of a generation batch on each process.
        done: Micro-batches since the last boundary, at the end of the last optimizer step.
    """

    def __init__(self, config: CreditConfig) -> None:
        self.every = config.steps_per_generation * config.num_iterations
        self._keeps_best = config.load_best_model_at_end or config.save_strategy == "best"
        self.begin()

    def begin(self) -> None:
        """Starts at a boundary, with no delayed checkpoint: an earlier training may have been interrupted."""
        self.done, self._save, self._evaluate = 0, False, False

    def after_update(self, step: int, *, control: TrainerControl) -> None:
        """Delays a checkpoint that is due to the next boundary, unless training ends here.

        Args:
            step (`int`):
                Micro-batches so far.
        """
        self.done = step % self.every
        inside = self.done > 0 and not control.should_training_stop
        control.should_save, self._save = _delayed(control.should_save or self._save, inside)
        if self._keeps_best:
            control.should_evaluate, self._evaluate = _delayed(control.should_evaluate or self._evaluate, inside)

    def position(self, state: TrainerState, window: int, kept: Any) -> int:
        """Micro-batches between the last boundary and a checkpoint.

        Args:
            window (`int`):
                Gradient accumulation steps.
            kept (`list` or `None`):
                `[done, every]` as stored in the checkpoint. Without them the number of optimizer steps gives the
                position, or 0 if neither the accumulation window nor the generation batch divides the other.
        """
        if kept is not None and kept[1] == self.every:
            return int(kept[0])
        fits = self.every % window == 0 or window % self.every == 0
        return state.global_step * window % self.every if fits else 0


def _delayed(due: bool, inside: bool) -> tuple[bool, bool]:
    """Whether to act now, and whether to act at the next boundary."""
    return due and not inside, due and inside
