"""A_t = A · f^{(t − 1)/(n − 1)}: credit falls from A at the first token of a response to f · A at its last.

Ours: the first tokens decide the course of a response. t and n count loss tokens, so tool results do not count.

trl-credit train --algo grpo --credit examples/algorithms/end_decay.py:EndDecay --last_factor 0.25
"""

from dataclasses import dataclass, replace

from trl_credit import Credit, Tokens, assign_credit


@dataclass
class EndDecay:
    last_factor: float = 0.5

    by_row = True

    def credit(self, config, tokens: Tokens) -> Credit:
        credit, mask_t = assign_credit(config, tokens), tokens.mask_t
        place_t = (mask_t.cumsum(-1) - 1).clamp(min=0) / (mask_t.sum(-1, keepdim=True) - 1).clamp(min=1)
        return replace(credit, advantage=credit.advantage * self.last_factor**place_t)
