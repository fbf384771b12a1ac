"""Writes what the loss saw to a log every `log_credit` optimizer steps, and in the last step of a run that is shorter.
See docs/rollout_logs.md.

Training passes over a generation batch once or several times; a pass sees every row once and may take several optimizer
steps. The shard of step k holds the rows of the first pass that step k takes part in, so its groups are complete.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback

from ..config import CreditConfig
from ..loss import keys
from ..loss.loss_pass import LossPass
from ..rollouts.sources import GenerationBatch
from ..runs.resumable import ResumableTrainer
from ..support.shown import described, report
from .captured import Row, captured
from .log_entries import Origin, origin_of, response_of, shard_of, trees_of
from .schema import remove_after, shard_path, write_shard
from .token_texts import TokenTexts


@dataclass
class _Pass:
    """A pass over a generation batch from optimizer step `first` on, logged as step `due` unless that is `None`."""

    first: int
    due: int | None
    rows: list[Row] = field(default_factory=list)


class RolloutLog(TrainerCallback):
    """The rollout log of a run.

    It cannot stop the run. After an error on one process, all processes stop logging at the next gather. Every process
    must call all methods but `lost`.

    Args:
        trainer ([`~trl_credit.runs.resumable.ResumableTrainer`]):
            Before its training begins.

    Attributes:
        is_off: Whether nothing is written.
        written: Logged steps whose shards the main process wrote since the last start or resume.
    """

    def __init__(self, trainer: ResumableTrainer) -> None:
        self._trainer, self._args = trainer, trainer.args
        self.is_off = self._args.log_credit == 0
        self._problem: str | None = None
        self._texts: TokenTexts | None = None
        self._begin(0)

    def _begin(self, step: int) -> None:
        self._pass: _Pass | None = None
        self._origin: Origin | None = None
        self._in_window = 0  # micro-batches of the current optimizer step
        self._logged = step
        self.written: list[int] = []

    def on_train_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._every = min(args.log_credit, state.max_steps)
        self._begin(state.global_step)
        if state.is_world_process_zero:
            with self._harmless():
                remove_after(args.output_dir, state.global_step)
            self._warn()

    def on_train_end(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        if self._pass is not None:
            self._close(state.global_step)

    # A micro-batch

    @property
    def is_due(self) -> bool:
        """Whether the rows of the current pass will be logged; the same on all processes."""
        return self._pass is not None and self._pass.due is not None

    def before(self) -> None:
        """Begins a pass if the last one has ended. Call it at the start of a micro-batch, before rows are sampled."""
        trainer, size = self._trainer, self._args.steps_per_generation
        if not self.is_off and (self._pass is None or trainer.micro_batches_done % size == 0):
            step, window = trainer.state.global_step + 1, self._args.gradient_accumulation_steps
            # the last step that the pass can reach; one later if the end of an epoch can cut a window
            last = step + (self._in_window + size - 1) // window + (size % window != 0 != window % size)
            due = -(-max(step, self._logged + 1) // self._every) * self._every
            self._pass = _Pass(step, due if due <= last else None)

    def sampled(self, batch: GenerationBatch, examples: Sequence[dict[str, Any]]) -> None:
        """Notes where the rows of a generation batch, sampled from `examples` of the data set, come from."""
        if self.is_off:
            return
        with self._harmless():
            self._origin = origin_of(self._trainer, batch, examples)
            batch.batch.data[keys.LOG_ROW] = self._origin.tags

    def lost(self, loss_pass: LossPass, loss: torch.Tensor) -> None:
        """Captures a micro-batch whose loss was computed. Not collective."""
        if not self.is_due or self._problem is not None:
            return
        with self._harmless():
            tags = loss_pass.inputs[keys.LOG_ROW].tolist()
            known, most = self._origin.places, self._args.log_credit_groups
            if places := [i for i, tag in enumerate(tags) if tag in known and known[tag][0] < most]:
                self._pass.rows += captured(self._args, loss_pass, loss, places)

    def after(self) -> None:
        """Ends a pass that is complete. Call it at the end of a micro-batch."""
        if self.is_off or self._pass is None:
            return
        self._in_window = 0 if self._trainer.accelerator.sync_gradients else self._in_window + 1
        if self._trainer.micro_batches_done % self._args.steps_per_generation == 0:
            self._close(self._trainer.state.global_step + 1)

    # A shard

    def _close(self, last: int) -> None:
        """Ends a pass with optimizer step `last`, and writes its shard if it is due. Collective."""
        done, self._pass = self._pass, None
        if done.due is None or not done.first <= done.due <= last:
            return
        self._logged = done.due
        mine: tuple[list, list] = ([], [])
        with self._harmless():
            if self._problem is None and self._origin is not None:
                self._texts = self._texts or TokenTexts(self._trainer.tokenizer)
                decode = partial(self._trainer.tokenizer.decode, skip_special_tokens=False)
                prompts = {ids: decode([*ids]) for ids in {tuple(row.prompt_ids) for row in done.rows}}
                responses = [response_of(self._trainer, self._origin, row, self._texts, prompts) for row in done.rows]
                mine = responses, trees_of(self._trainer, self._origin)
        gathered = gather_object([(self._problem, mine)])
        if problems := [problem for problem, _ in gathered if problem is not None]:
            self._problem = problems[0]
        elif self._trainer.processes.is_main:
            with self._harmless():
                parts, span = [part for _, part in gathered], [done.first, last]
                shard = shard_of(self._trainer, self._origin, parts, step=done.due, steps=span)
                if shard.responses:  # steps without a loss, or training that ended inside a pass, have none
                    write_shard(shard_path(self._args.output_dir, done.due), shard)
                    self.written.append(done.due)
        self._warn()
        self.is_off = bool(problems)  # other processes learn of a write error at the next gather

    # Errors

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """Catches errors, and keeps the first."""
        try:
            yield
        except Exception as error:
            self._problem = self._problem or described(error)

    def _warn(self) -> None:
        if self._problem is not None and self._trainer.processes.is_main:
            report("log_credit", f"{self._problem}. No more rollouts are written")
