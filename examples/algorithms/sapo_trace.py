"""Gain of token t = A · f(ρ_t), f(ρ) = 4/τ · σ(τ(ρ − 1)), where ∂ log ρ_t / ∂ℓ_k = g^{t−k} z_k for k < t: a trace.

SAPO (arXiv 2511.20347): a soft gate in place of clipping, τ = 1 for A > 0 and 1.05 otherwise. The trace is
ours: log ρ_t has the value ℓ_t − ℓ°_t and the gradient of the W of the knobs, so `--algo grpo` is SAPO alone. SAPO
averages over the tokens of a response first: `--loss_type grpo`.

trl-credit train --algo s_trace --credit examples/algorithms/sapo_trace.py:SapoTrace --loss_type grpo --num_iterations 2
"""

from dataclasses import dataclass

import torch

from trl_credit import Credit, Tokens, assign_credit


@dataclass
class SapoTrace:
    tau_pos: float = 1.0
    tau_neg: float = 1.05

    carries_loss = needs_drift = True

    def credit(self, config, tokens: Tokens) -> Credit:
        knobs, log_ratio_t = assign_credit(config, tokens), tokens.logp_t - tokens.old_logp_t
        if knobs.log_weight is not None:
            log_ratio_t = log_ratio_t.detach() + knobs.log_weight - knobs.log_weight.detach()
        ratio_t = torch.where(tokens.mask_t.bool(), log_ratio_t, 0.0).exp()
        positive = (knobs.advantage > 0).to(ratio_t.dtype)
        tau = self.tau_pos * positive + self.tau_neg * (1 - positive)
        return Credit(None, knobs.advantage * 4 / tau * torch.sigmoid(tau * (ratio_t - 1)))
