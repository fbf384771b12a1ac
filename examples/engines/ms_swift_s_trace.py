"""S-trace (arXiv 2605.05965) for the GRPO of ms-swift 4.6: tokens of high entropy leave an eligibility trace.

In the loss the trainer reads old' = ℓ − W in place of ℓ°, so its ratio exp(ℓ − old') is exp(W): the gradient of W flows
and that of ℓ cancels. W has the value of the ordinary log-ratio, so clipping and rollout correction are those of GRPO.
The entropies are those of the current policy, as in the paper.

ms-swift needs trl<1.0, so install with `pip install --no-deps trl_credit`: `trl_credit.credit` needs torch alone.
Megatron-SWIFT has a GRPO trainer of its own, on which this plug-in has no effect.

TRACE_LAMBDA=0.9 SELECTIVE_RATE=0.2 swift rlhf --rlhf_type grpo --external_plugins ms_swift_s_trace.py ...
"""

import os
from dataclasses import dataclass
from typing import Any

import torch
from swift.rl_core.data import GRPOBatch
from swift.rlhf_trainers import GRPOTrainer, grpo_trainer
from swift.trainers import TrainerFactory

from trl_credit.credit.selection import select_high_entropy
from trl_credit.credit.weights import eligible_log_weight


READ_THE_RATIO = ("grpo", "bnpo", "dr_grpo", "dapo", "fipo", "sapo")


@dataclass
class LossBatch(GRPOBatch):
    """The copy of a batch that one loss reads: the batch itself is used again if `num_iterations` is above 1."""


class STraceTrainer(GRPOTrainer):
    trace_lambda = float(os.environ.get("TRACE_LAMBDA", "0.9"))
    selective_rate = float(os.environ.get("SELECTIVE_RATE", "0.2"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = kwargs["args"]
        if settings.use_liger_kernel:
            raise ValueError("Liger's loss makes its own ratio, without a trace: set --use_liger_kernel false.")
        if settings.importance_sampling_level != "token" or settings.loss_type not in READ_THE_RATIO:
            raise ValueError(f"A trace needs --importance_sampling_level token and a --loss_type of {READ_THE_RATIO}.")
        super().__init__(*args, **kwargs)

    def _compute_loss_and_metrics(self, model: Any, model_inputs: dict[str, Any], grpo_batch: GRPOBatch) -> Any:
        return super()._compute_loss_and_metrics(model, model_inputs, LossBatch(**vars(grpo_batch)))

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        model_inputs: dict[str, Any],
        grpo_batch: GRPOBatch,
        compute_entropy: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        in_loss = isinstance(grpo_batch, LossBatch)  # else a pass for π_old or the reference
        logp_t, entropy_t = super()._get_per_token_logps_and_entropies(
            model, model_inputs, grpo_batch, compute_entropy=compute_entropy or in_loss, **kwargs
        )
        if in_loss:  # the loss reads π_old after this
            mask_t, old_logp_t = grpo_batch.completion_mask, grpo_batch.old_per_token_logps
            log_weight_t = eligible_log_weight(
                logp_t,
                old_logp_t=logp_t.detach() if old_logp_t is None else old_logp_t,
                decay=self.trace_lambda,
                selected_t=select_high_entropy(entropy_t, rate=self.selective_rate, mask_t=mask_t),
                mask_t=mask_t,
            )
            grpo_batch.old_per_token_logps = logp_t - log_weight_t
        return logp_t, entropy_t

    def _get_rollout_is_correction(self, old_per_token_logps: torch.Tensor, *args: Any) -> Any:
        # ms-swift multiplies the loss by weights of old', through which no gradient should flow
        return super()._get_rollout_is_correction(old_per_token_logps.detach(), *args)


# ms-swift would keep a graph of the entropies, of the size of the logits, but nothing needs their gradient
grpo_trainer.entropy_from_logits = torch.no_grad()(grpo_trainer.entropy_from_logits)
TrainerFactory.TRAINER_MAPPING["grpo"] = f"{__name__}.{STraceTrainer.__name__}"
