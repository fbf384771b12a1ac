"""Gain of token t = ρ_t · A + c · H_t: an entropy bonus, whose gradient raises the entropy of the policy.

Known from A3C (arXiv 1602.01783). ρ is not clipped, and the bonus counts at every loss token. The entropy is detached
unless it is asked for.

trl-credit train --algo grpo --credit examples/algorithms/entropy_bonus.py:EntropyBonus --bonus 0.003
"""

from dataclasses import dataclass

import torch

from trl_credit import Credit, Tokens, assign_credit


@dataclass
class EntropyBonus:
    bonus: float = 0.01

    needs, carries_loss = ("entropy_gradient",), True

    def credit(self, config, tokens: Tokens) -> Credit:
        inside = tokens.mask_t.bool()
        ratio_t = torch.where(inside, tokens.logp_t - tokens.old_logp_t, 0.0).exp()
        entropy_t = torch.where(inside, tokens.entropy_t, 0.0)
        return Credit(None, ratio_t * assign_credit(config, tokens).advantage + self.bonus * entropy_t)
