"""M_t = [π_t − μ_t ≤ δ] for A > 0, [π_t − μ_t ≥ −δ] for A < 0: a limit on the probability of a token, not on its ratio.

DPPO with the binary total variation (arXiv 2602.04879), δ = 0.2. μ is the sampler's probability: the engine's where it
is known, else that of π_old. The mask replaces clipping: `--epsilon 1 --epsilon_high 19` leaves ratios below 20 alone.
W is that of the knobs, so `--algo s_trace` adds a trace.

trl-credit train --algo grpo --credit examples/algorithms/dppo_tv.py:DppoTV --tv_limit 0.1 \
    --epsilon 1 --epsilon_high 19 --num_iterations 2
"""

from dataclasses import dataclass, replace

import torch

from trl_credit import Credit, Tokens, assign_credit
from trl_credit.loss.assignment import known_or


@dataclass
class DppoTV:
    tv_limit: float = 0.2

    needs_drift = True

    def credit(self, config, tokens: Tokens) -> Credit:
        credit = assign_credit(config, tokens)
        sampler_logp_t = known_or(tokens.sampling_logp_t, tokens.old_logp_t)
        moved_t = tokens.logp_t.detach().exp() - sampler_logp_t.exp()
        kept_t = torch.where(credit.advantage > 0, moved_t <= self.tv_limit, moved_t >= -self.tv_limit)
        return replace(credit, mask=kept_t.to(tokens.mask_t.dtype))

    def metrics(self, config, tokens: Tokens, credit: Credit) -> dict[str, torch.Tensor]:
        return {"dppo_kept": credit.mask}
