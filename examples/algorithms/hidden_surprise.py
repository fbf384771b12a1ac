"""A_t = A · (1 + s · d_t / max_k d_k), d_t = 1 − cos(h_t, h_{t−1}): more credit where the hidden state turns most.

Ours: a sharp turn of the last layer's state marks a token at which the model changed its course. d is 0 at the first
token and after a tool result, where no state precedes. It is detached: only W trains the model.

trl-credit train --algo s_trace --credit examples/algorithms/hidden_surprise.py:HiddenSurprise --strength 1.0
"""

from dataclasses import dataclass, replace

import torch

from trl_credit import Credit, Tokens, assign_credit


@dataclass
class HiddenSurprise:
    strength: float = 0.5

    needs, by_row = ("hidden",), True

    def credit(self, config, tokens: Tokens) -> Credit:
        credit, inside = assign_credit(config, tokens), tokens.mask_t.bool()
        share_t = self.turn(tokens) / self.turn(tokens).amax(-1, keepdim=True).clamp(min=1e-6)
        return replace(credit, advantage=credit.advantage * (1 + self.strength * torch.where(inside, share_t, 0.0)))

    def turn(self, tokens: Tokens) -> torch.Tensor:
        inside, states = tokens.mask_t.bool(), tokens.hidden_t.detach().to(tokens.logp_t.dtype)
        cosine_t = torch.nn.functional.cosine_similarity(states[:, 1:], states[:, :-1], dim=-1)
        turn_t = torch.where(inside[:, 1:] & inside[:, :-1], 1 - cosine_t, 0.0)
        return torch.nn.functional.pad(turn_t, (1, 0))

    def metrics(self, config, tokens: Tokens, credit: Credit) -> dict[str, torch.Tensor]:
        return {"hidden_turn": self.turn(tokens)}
