"""Log-probabilities of rows under the current policy, by TRL's forward pass, and the correction for the engine."""

from collections.abc import Sequence
from typing import Any

import torch

from ..loss import keys
from ..loss.batch import Batch, segment_ratio
from ..rollouts.replay import Row, padded_rows
from ..runs.resumable import ResumableTrainer


class TrlLogps:
    """Makes passes of a TRL trainer for rows that are not in a loss, and compares them with the engine that sampled.

    Args:
        trainer ([`~trl_credit.runs.resumable.ResumableTrainer`]):
            Its forward pass is used.
    """

    def __init__(self, trainer: ResumableTrainer) -> None:
        self._trainer = trainer

    def of_rows(self, rows: Sequence[Row], *, at_once: int) -> list[list[float]]:
        """See [`~trl_credit.rollouts.policy.Policy`]. Rows of similar length share a pass, with little padding."""
        processes = self._trainer.processes
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i].completion_ids), len(rows[i].prompt_ids)))
        found: list[list[float]] = [[]] * len(rows)
        end = (self._trainer._tokenizer.eos_token_id,)
        filler = Row("", end, end, (0.0,), (-1,))
        for i in range(0, processes.max(-(-len(rows) // at_once)) * at_once, at_once):
            part = order[i : i + at_once]
            batch = padded_rows([rows[k] for k in part] or [filler], pad_token_id=self._trainer._tokenizer.pad_token_id)
            logps = self.of_batch({name: x.to(processes.device) for name, x in batch.items()}).tolist()
            for k, logp in zip(part, logps):  # noqa: B905
                found[k] = logp[: len(rows[k].completion_ids)]
        return found

    @torch.no_grad()
    def of_batch(self, batch: dict[str, Any]) -> torch.Tensor:
        """Log-probabilities (nats) of TRL's batch under the current policy, shape (B, T). Collective."""
        trainer, args = self._trainer, self._trainer.args
        training = trainer.model.training
        return trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([batch[keys.PROMPT_IDS], batch[keys.COMPLETION_IDS]], dim=1),
            torch.cat([batch[keys.PROMPT_MASK], batch[keys.COMPLETION_MASK]], dim=1),
            batch[keys.COMPLETION_IDS].size(1),
            batch_size=args.per_device_train_batch_size if training else args.per_device_eval_batch_size,
            **{key: batch[key] for key in keys.FORWARD if key in batch},
        )[0]

    def correct_by_segment(self, batch: Batch) -> None:
        """Replaces TRL's correction for the engine, per row, by one per segment."""
        self._correct(batch, batch.segment_ids)

    def correct_by_turn(self, batch: Batch) -> None:
        """Replaces TRL's correction for the engine, per row, by the mean over each turn, where weights are per turn.

        The correction has the shape (B, T) then, also in a batch without turns, where it stays TRL's.
        """
        is_per_row = self._trainer.vllm_importance_sampling_mode.startswith("sequence")
        if batch.engine_ratio_t is None or not is_per_row or not self._trainer.args.corrects_by_turn:
            return
        if batch.turn_ids is None or self._trainer.args.behavior_logps == "sampler":
            batch.engine_ratio_t = batch.engine_ratio_t.expand_as(batch.written_t).contiguous()
        else:
            self._correct(batch, batch.turn_ids, average=True)

    def _correct(self, batch: Batch, part_ids: torch.Tensor, *, average: bool = False) -> None:
        trainer = self._trainer
        given = {"mode": trainer.vllm_importance_sampling_mode, "average": average}
        given |= {"low": trainer.vllm_importance_sampling_clip_min, "high": trainer.vllm_importance_sampling_clip_max}
        batch.engine_ratio_t = segment_ratio(batch.old_logp_t, batch.sampling_logp_t, segment_ids=part_ids, **given)
