"""Log-probabilities of rows under the current policy, by TRL's forward pass."""

from collections.abc import Sequence
from typing import Any

import torch

from ..loss import keys
from ..rollouts.replay import Row, padded, visible_columns
from ..runs.resumable import ResumableTrainer


class TrlLogps:
    """Makes passes of a TRL trainer for rows that are not in a loss.

    Args:
        trainer ([`~trl_credit.runs.resumable.ResumableTrainer`]):
            Its forward pass is used.
    """

    def __init__(self, trainer: ResumableTrainer) -> None:
        self._trainer = trainer

    def of_rows(self, rows: Sequence[Row], *, at_once: int) -> list[list[float]]:
        """See [`~trl_credit.rollouts.policy.Policy`]. Rows of similar length share a pass, with little padding."""
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i].completion_ids), len(rows[i].prompt_ids)))
        found: list[list[float]] = [[]] * len(rows)
        end = (self._trainer._tokenizer.eos_token_id,)
        filler = Row("", end, end, (0.0,), (-1,))
        for i in range(0, self._trainer.processes.max(-(-len(rows) // at_once)) * at_once, at_once):
            part = order[i : i + at_once]
            logps = self.of_batch(self._padded([rows[k] for k in part] or [filler])).tolist()
            for k, logp in zip(part, logps):  # noqa: B905
                found[k] = logp[: len(rows[k].completion_ids)]
        return found

    def _padded(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        """Rows as TRL pads them, with `visible_until` if any of them has several branches."""
        batch, pad = {}, self._trainer._tokenizer.pad_token_id
        prompts, completions = [row.prompt_ids for row in rows], [row.completion_ids for row in rows]
        for names, ids, side in (
            ((keys.PROMPT_IDS, keys.PROMPT_MASK), prompts, "left"),
            ((keys.COMPLETION_IDS, keys.COMPLETION_MASK), completions, "right"),
        ):
            batch[names[0]] = padded(ids, value=pad, side=side)
            batch[names[1]] = padded([[1] * len(row) for row in ids], value=0, side=side)
        if any(row.visible_until is not None for row in rows):
            widths = {"prompt_width": batch[keys.PROMPT_IDS].size(1), "width": batch[keys.COMPLETION_IDS].size(1)}
            batch[keys.VISIBLE_UNTIL] = visible_columns(rows, **widths)
        return {name: tensor.to(self._trainer.processes.device) for name, tensor in batch.items()}

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
