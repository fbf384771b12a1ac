"""Gain of a response = A · (Π_t ρ̂_t)^{1/n}, where log ρ̂_t = min(log ρ_t, ε) if A > 0, else max(log ρ_t, −ε).

GMPO (arXiv 2507.20673): the geometric mean of the ratios, each clipped by itself on the side of its advantage, ε = 0.4
in log space. n counts the loss tokens. Every token carries the gain of its response, so the mean over tokens of
`--loss_type grpo` is the paper's mean over responses. Where A differs from token to token, its own sign clips a token.

trl-credit train --algo grpo --credit examples/algorithms/gmpo.py:Gmpo --loss_type grpo --num_iterations 2
"""

from dataclasses import dataclass

import torch

from trl_credit import Credit, Tokens, assign_credit


@dataclass
class Gmpo:
    log_range: float = 0.4

    carries_loss = needs_drift = True

    def credit(self, config, tokens: Tokens) -> Credit:
        advantage, mask_t = assign_credit(config, tokens).advantage, tokens.mask_t
        log_ratio_t = torch.where(mask_t.bool(), tokens.logp_t - tokens.old_logp_t, 0.0)
        low, high = log_ratio_t.clamp(min=-self.log_range), log_ratio_t.clamp(max=self.log_range)
        clipped_t = torch.where(advantage > 0, high, low)
        mean = clipped_t.sum(-1, keepdim=True) / mask_t.sum(-1, keepdim=True).clamp(min=1)
        return Credit(None, (advantage * mean.exp()).expand_as(mask_t))

    def metrics(self, config, tokens: Tokens, credit: Credit) -> dict[str, torch.Tensor]:
        return {"gmpo_clipped": (tokens.logp_t - tokens.old_logp_t) * credit.advantage.sign() > self.log_range}
