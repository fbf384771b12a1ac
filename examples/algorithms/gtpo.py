"""A = (r̃ − mean r̃) / std r̃, r̃_{i,t} = ±(α + β · n_t x_{i,t} / Σ_j x_{j,t}): +, x = H if right, −, x = 1/H if wrong.

GTPO (arXiv 2508.04349v6, Eq. 3, 5 and 6), read from the library textpolicy, with its α = 1 and β = 0.1. j runs over the
n_t right (or wrong) responses of the group that have a token t; mean and std over all right (or wrong) tokens of the
group, so a lone right response has A = 0. Our readings: right is A > 0 and wrong A < 0. H is −ℓ°, its estimate from
the sampled token, since a batch has no entropies.

trl-credit train --algo grpo --credit examples/algorithms/gtpo.py:Gtpo --entropy_share 0.2 --num_iterations 2
"""

from dataclasses import dataclass, replace

import torch

from trl_credit import BatchTokens, Credit, Tokens, assign_credit


@dataclass
class Gtpo:
    reward_share: float = 1.0
    entropy_share: float = 0.1

    needs = ("logps",)

    def statistics(self, config, batch: BatchTokens) -> torch.Tensor:
        same = (batch.group_ids.unsqueeze(1) == batch.group_ids).to(batch.mask_t.dtype)  # same @ x: sums over groups
        sign_t = torch.where(batch.mask_t.bool(), batch.advantage_t.round(decimals=2).sign(), 0.0)  # 0: equal rewards
        entropy_t, advantage_t = torch.where(sign_t != 0, -batch.logp_t, 1.0).clamp(min=1e-6), 0.0
        for sign, x_t in ((1, entropy_t), (-1, 1 / entropy_t)):
            side_t = (sign_t == sign).to(x_t.dtype)
            share_t = (same @ side_t) * x_t / (same @ (x_t * side_t)).clamp(min=1e-6)
            shaped_t = sign * (self.reward_share + self.entropy_share * share_t) * side_t
            count = (same @ side_t.sum(-1, keepdim=True)).clamp(min=1)
            centred_t = (shaped_t - same @ shaped_t.sum(-1, keepdim=True) / count) * side_t
            std = (same @ (centred_t**2).sum(-1, keepdim=True) / count).sqrt()
            advantage_t = advantage_t + centred_t / (std + 1e-4)
        return advantage_t

    def credit(self, config, tokens: Tokens) -> Credit:
        return replace(assign_credit(config, tokens), advantage=tokens.statistics_t)
