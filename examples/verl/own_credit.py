"""A credit function of your own in verl: the answer at the end of a response gets more credit than its beginning.

    actor=actor_rollout_ref.actor
    bash examples/verl/gsm8k_s_trace.sh $actor.policy_loss.loss_mode=trl_credit.custom \
        +$actor.policy_loss.credit=examples/verl/own_credit.py:LateCredit +$actor.policy_loss.at_start=0.25

The same file is an algorithm of our trainers: trl-credit train --credit examples/verl/own_credit.py:LateCredit.
"""

from dataclasses import dataclass, replace

import torch

from trl_credit import Credit, CreditConfig, Tokens, assign_credit


@dataclass
class LateCredit:
    """A grows linearly from `at_start` times the advantage at the first token to the advantage at the last."""

    at_start: float = 0.5

    by_row = True  # the credit of a response does not depend on those beside it

    def credit(self, config: CreditConfig, tokens: Tokens) -> Credit:
        plain = assign_credit(config, tokens)  # the knobs of W act too: +…policy_loss.importance=eligible
        place_t = tokens.mask_t.cumsum(-1) / tokens.mask_t.sum(-1, keepdim=True).clamp(min=1)
        factor_t = self.at_start + (1 - self.at_start) * place_t
        return replace(plain, advantage=plain.advantage * factor_t)

    def metrics(self, config: CreditConfig, tokens: Tokens, credit: Credit) -> dict[str, torch.Tensor]:
        return {"abs_credit": credit.advantage.abs().expand_as(tokens.logp_t)}
