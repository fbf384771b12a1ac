"""Writes what the loss saw, every `log_credit` steps: which rows, who gathers them, and where. docs/rollout_logs.md.

A generation batch is trained on in passes, each of which sees every row once, in as many optimizer steps as it takes.
The shard of step k holds the rows of one pass, the first that step k takes part in: so groups are whole.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import gather_object
from transformers import TrainerCallback

from ..config import CreditConfig
from ..logs import TokenTexts, remove_after, shard_path, write_shard
from ..rollouts.sources import Made
from .captured import ROW, Captured, Row
from .live import LivePass
from .log_entries import Origin, header_of, joined, origin_of, response_of, trees_of


logger = get_logger(__name__)  # which speaks on the main process alone


@dataclass
class _Pass:
    """One pass over a generation batch: from optimizer step `first` on, to be logged as step `due`, if at all."""

    first: int
    due: int | None
    rows: list[Row] = field(default_factory=list)


class RolloutLog(TrainerCallback):
    """The rollout log of a run.

    It cannot stop the run: what goes wrong on one process is told to the others where all meet to gather, and from
    there on none logs. All methods but `saw` are to be called by every process.

    Args:
        trainer ([`CreditTrainer`]):
            Before its training begins.

    Attributes:
        is_off: Whether nothing is written (any more).
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._args: CreditConfig = trainer.args
        self.is_off = self._args.log_credit == 0
        self._problem: str | None = None
        self._said = False
        self._texts: TokenTexts | None = None
        self._begin(0)

    def _begin(self, step: int) -> None:
        self._pass: _Pass | None = None
        self._origin: Origin | None = None
        self._open: list[Captured] = []
        self._in_window = 0  # micro-batches of the optimizer step that runs
        self._logged = step
        self._shards = 0  # that this life has written

    def on_train_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin(state.global_step)
        if state.is_world_process_zero:
            with self._harmless():
                remove_after(args.output_dir, state.global_step)
            self._say()

    def on_train_end(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        if self._pass is not None:
            self._close(state.global_step)
        if state.is_world_process_zero and not self.is_off and self._shards == 0 and not self._said:
            logger.warning(
                "log_credit=%d: no step was logged. None of the steps up to %d is a multiple of it in a pass over a "
                "generation batch that training finished, so that no group was whole: lower log_credit, or train on",
                self._args.log_credit,
                state.global_step,
            )

    # A micro-batch

    @property
    def is_due(self) -> bool:
        """Whether the rows of the pass that runs are to be logged; the same on all processes."""
        return self._pass is not None and self._pass.due is not None

    def before(self) -> None:
        """At the begin of a micro-batch, before its rows are sampled."""
        trainer = self._trainer
        if not self.is_off and (self._pass is None or trainer._step % self._args.steps_per_generation == 0):
            self._pass = self._next_pass(trainer.state.global_step + 1)

    def _next_pass(self, step: int) -> _Pass:
        size, window = self._args.steps_per_generation, self._args.gradient_accumulation_steps
        every = self._args.log_credit
        # the last step that may take part: one more where the end of an epoch, which is not known yet, may cut a window
        last = step + (self._in_window + size - 1) // window + (size % window != 0 != window % size)
        due = -(-max(step, self._logged + 1) // every) * every
        return _Pass(step, due if due <= last else None)

    def made(self, made: Made) -> None:
        """Notes where the rows of a generation batch come from."""
        if self.is_off:
            return
        with self._harmless():
            self._origin = origin_of(self._trainer, made)
            made.batch.data[ROW] = self._origin.tags

    def saw(self, live: LivePass, loss: torch.Tensor) -> None:
        """Takes in a micro-batch whose loss was computed. Not collective."""
        if not self.is_due or self._problem is not None:
            return
        with self._harmless():
            trainer, tokens = self._trainer, live.seen[0]
            tags = live.inputs[ROW].tolist()
            places = [i for i, tag in enumerate(tags) if self._origin.group(tag) < self._args.log_credit_groups]
            if not places:
                return
            how = {"accumulation": trainer.current_gradient_accumulation_steps, "row_weight": live.row_weight}
            items = torch.as_tensor(live.inputs["num_items_in_batch"])
            divisor = trainer._normalizer.divisor(tokens, items=items, processes=trainer.num_processes, **how)
            own = trainer._own_credit
            captured = Captured(
                self._args,
                live,
                loss,
                places,
                divisor=divisor,
                kl_factor=trainer._normalizer.kl_factor(tokens, divisor, **how),
                clip=(trainer.epsilon_low, trainer.epsilon_high),
                carries_loss=own.carries_loss,
                has_kl=self._args.beta != 0.0 and not own.replaces_kl,
            )
            self._open.append(captured)

    def after(self) -> None:
        """At the end of a micro-batch."""
        if self.is_off or self._pass is None:
            return
        taken, self._open = self._open, []
        with self._harmless():
            self._pass.rows += [row for captured in taken for row in captured.rows()]
        self._in_window = 0 if self._trainer.accelerator.sync_gradients else self._in_window + 1
        if self._trainer._step % self._args.steps_per_generation == 0:
            self._close(self._trainer.state.global_step + 1)

    # A shard

    def _close(self, last: int) -> None:
        """Ends a pass, of which `last` is the last optimizer step; writes its shard if it has one. Collective."""
        done, self._pass = self._pass, None
        if done.due is None or not done.first <= done.due <= last:
            return
        self._logged = done.due
        mine: tuple[list, list] = ([], [])
        with self._harmless():
            if self._problem is None and self._origin is not None:
                self._texts = self._texts or TokenTexts(self._trainer._tokenizer)
                responses = [response_of(self._trainer, self._origin, row, self._texts) for row in done.rows]
                mine = responses, trees_of(self._trainer, self._origin)
        found = gather_object([(self._problem, mine)])
        problems = [problem for problem, _ in found if problem is not None]
        if problems:
            self._problem = problems[0]
        elif self._trainer.accelerator.is_main_process:
            with self._harmless():
                self._write(done, last, [part for _, part in found])
        self._say()
        self.is_off = bool(problems)  # of what went wrong in writing the others hear next time

    def _write(self, done: _Pass, last: int, parts: list[tuple[list, list]]) -> None:
        sizes = self._origin.sizes
        shard = joined(parts, sizes, packed=self._args.tree_rows == "packed")
        if not shard.responses:
            return  # steps without a loss, or the end of training inside of a pass
        logged = len({response["group"] for response in shard.responses})
        shard.header = header_of(self._trainer, step=done.due, steps=[done.first, last])
        shard.header |= {"groups_total": len(sizes), "groups_logged": logged}
        write_shard(shard_path(self._args.output_dir, done.due), shard)
        self._shards += 1

    # What goes wrong

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """Notes what goes wrong inside, and goes on."""
        try:
            yield
        except Exception as error:
            said = " ".join(str(error).split())
            self._problem = self._problem or f"{type(error).__name__}{': ' * bool(said)}{said[:300]}"

    def _say(self) -> None:
        if self._problem is not None and not self._said:
            self._said = True
            logger.warning("log_credit: %s. No more rollouts are written by this run, which goes on", self._problem)
