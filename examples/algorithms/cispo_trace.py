"""Gain of token t = sg(min(ρ_t, c)) · A · E_t, with the trace E_t = ℓ_t + Σ_{k<t} g^{t−k} z_k ℓ_k in place of ℓ_t.

CISPO (arXiv 2506.13585, Eq. 4 and 5), with no lower bound on ρ, as in its experiments. The upper bound c = 5 is that of
ScaleRL (arXiv 2510.13786). The trace is ours: the gradient of E_t is that of the W of the knobs, so `--algo grpo` is
CISPO alone.

trl-credit train --algo s_trace --credit examples/algorithms/cispo_trace.py:CispoTrace --max_ratio 4 --num_iterations 2
"""

from dataclasses import dataclass

import torch

from trl_credit import Credit, Tokens, assign_credit


@dataclass
class CispoTrace:
    max_ratio: float = 5.0

    carries_loss = needs_drift = True

    def credit(self, config, tokens: Tokens) -> Credit:
        knobs, inside = assign_credit(config, tokens), tokens.mask_t.bool()
        traced_t = tokens.logp_t if knobs.log_weight is None else knobs.log_weight
        trace_t = torch.where(inside, tokens.logp_t.detach() + traced_t - traced_t.detach(), 0.0)  # value ℓ_t
        return Credit(None, knobs.advantage * self.ratio(tokens).clamp(max=self.max_ratio) * trace_t)

    def ratio(self, tokens: Tokens) -> torch.Tensor:
        return torch.where(tokens.mask_t.bool(), (tokens.logp_t - tokens.old_logp_t).detach(), 0.0).exp()

    def metrics(self, config, tokens: Tokens, credit: Credit) -> dict[str, torch.Tensor]:
        return {"cispo_clipped": self.ratio(tokens) > self.max_ratio}
