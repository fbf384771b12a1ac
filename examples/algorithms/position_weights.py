"""M_t = [±(π_t − μ_t) ≤ δ/w_t] for ±A > 0, w_t = 1 − (1 − w_n)(t − 1)/(n − 1): early tokens may move less.

After CPPO (arXiv 2606.10968): a prefix decides all that follows, so its limit is stricter. δ = 0.2 and w_n = 0.8. Our
readings: n is the length of the response, and the divergence is that of dppo_tv.py. CPPO's second part, a budget for
the divergence of the whole prefix, is left out. The mask replaces clipping, as in dppo_tv.py.

trl-credit train --algo grpo --credit examples/algorithms/position_weights.py:PositionWeights --last_weight 0.5 \
    --epsilon 1 --epsilon_high 19 --num_iterations 2
"""

from dataclasses import dataclass, replace

import torch

from trl_credit import Credit, Tokens, assign_credit
from trl_credit.loss.assignment import known_or


@dataclass
class PositionWeights:
    tv_limit: float = 0.2
    last_weight: float = 0.8

    needs_drift = True

    def credit(self, config, tokens: Tokens) -> Credit:
        credit, mask_t = assign_credit(config, tokens), tokens.mask_t
        place_t = (mask_t.cumsum(-1) - 1) / (mask_t.sum(-1, keepdim=True) - 1).clamp(min=1)
        limit_t = self.tv_limit / (1 - (1 - self.last_weight) * place_t)
        sampler_logp_t = known_or(tokens.sampling_logp_t, tokens.old_logp_t)
        moved_t = tokens.logp_t.detach().exp() - sampler_logp_t.exp()
        kept_t = torch.where(credit.advantage > 0, moved_t, -moved_t) <= limit_t
        return replace(credit, mask=kept_t.to(mask_t.dtype))
