"""A_t = A · (1 + s · [token t occurs in right and in no wrong responses of its group]).

Ours. Right is a reward above the mean of the group, wrong one below. A response that was not scored (NaN) is neither.

trl-credit train --algo grpo --credit examples/algorithms/group_words.py:GroupWords --strength 0.7
"""

from dataclasses import dataclass, replace

import torch

from trl_credit import BatchTokens, Credit, Tokens, assign_credit


@dataclass
class GroupWords:
    strength: float = 0.5

    def statistics(self, config, batch: BatchTokens) -> torch.Tensor:
        same = (batch.group_ids.unsqueeze(1) == batch.group_ids).to(batch.mask_t.dtype)  # same @ x: sums over groups
        scored, reward = (~batch.rewards.isnan()).to(same), batch.rewards.nan_to_num().to(same)
        above_t = ((reward - same @ reward / (same @ scored).clamp(min=1)) * scored).unsqueeze(1) * batch.mask_t
        group = batch.group_ids.unique(return_inverse=True)[1].unsqueeze(1)
        pairs = (group * (batch.token_ids.max() + 1) + batch.token_ids).flatten()  # a number for group and token
        pair = pairs.unique(return_inverse=True)[1]
        right, wrong = (
            torch.zeros_like(pair).index_add(0, pair, side_t.flatten().long())[pair]
            for side_t in (above_t > 1e-4, above_t < -1e-4)
        )
        return ((right > 0) & (wrong == 0)).view_as(batch.mask_t) * batch.mask_t

    def credit(self, config, tokens: Tokens) -> Credit:
        credit = assign_credit(config, tokens)
        return replace(credit, advantage=credit.advantage * (1 + self.strength * tokens.statistics_t))

    def metrics(self, config, tokens: Tokens, credit: Credit) -> dict[str, torch.Tensor]:
        return {"words_of_right": tokens.statistics_t}
