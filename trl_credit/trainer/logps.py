"""Log-probabilities of rows under the current policy, by TRL's forward pass."""

from collections.abc import Sequence
from typing import Any

import torch

from ..loss import keys
from ..rollouts.replay import Row, padded_rows
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
