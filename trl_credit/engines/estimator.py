"""Advantages of a batch for another engine, which has the rewards of each token and numbers its prompts."""

import math
from typing import Any

import numpy as np
import torch

from ..credit import returns
from ..credit.advantages import group_advantage
from ..credit.difficulty import batch_accuracy, group_accuracy
from ..credit.tokens import turn_numbers, wide
from ..loss.belief import belief_of
from ..loss.order import in_batch, outcome_advantages
from .clipped_loss import ON_BATCH, engine_config


class Estimator:
    """The advantages of a configuration: baseline or returns, then HA-DW's weight.

    Args:
        algo, knobs, where: As in [`~trl_credit.engines.clipped_loss.engine_config`].

    Attributes:
        belief ([`~trl_credit.credit.difficulty.DifficultyBelief`] or `None`): HA-DW's.
        in_checkpoints (`bool`): Whether checkpoints keep the belief.

    Raises:
        ValueError: a knob is wrong or does not act, or the states of an environment would be needed.
    """

    def __init__(self, algo: str, knobs: dict[str, Any], *, where: str) -> None:
        self.config = engine_config(algo, knobs, acting=ON_BATCH, where=where)
        if self.config.returns not in ("outcome", "to_go"):
            raise ValueError(f"returns={self.config.returns!r} needs states of environments: set returns='to_go'.")
        self.belief, self.in_checkpoints = belief_of(self.config), False

    def __call__(self, reward_t: torch.Tensor, *, prompts: Any, scale: bool, mask_t: torch.Tensor) -> torch.Tensor:
        """A of every token, shape (B, T), 0 where `mask_t` is. Groups may differ in size. One without any token of the
        policy is padding. It counts nowhere, as a reward of NaN does.

        Args:
            reward_t (`torch.Tensor`):
                Shape (B, T). Their sum is the reward of a response; with `returns="to_go"` each belongs to the last
                turn that began before it or there.
            prompts (sequence):
                A name for the prompt of each row.
            scale (`bool`):
                Whether to divide by the standard deviation of the group, with `baseline="group"`.
            mask_t (`torch.Tensor`):
                1 at the tokens that the policy wrote, shape (B, T).
        """
        config, mask_t, rewards = self.config, mask_t.bool(), reward_t.sum(-1)
        group = torch.from_numpy(np.unique(np.asarray(prompts, dtype=str), return_inverse=True)[1]).to(rewards.device)
        counts, order = group.bincount(), group.argsort(stable=True)
        size = int(counts.max())
        has_tokens = torch.zeros_like(counts).index_add_(0, group, mask_t.any(-1).long()) > 0
        rewards = rewards.masked_fill(~has_tokens[group], torch.nan)
        # the rows among groups of one size, in which a row without a response has the reward NaN
        first = (counts.cumsum(0) - counts)[group[order]]
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device) - first)
        place = place + size * group

        def in_groups(x: torch.Tensor, fill: float) -> torch.Tensor:
            return x.new_full((len(counts) * size, *x.shape[1:]), fill).index_copy_(0, place, x)

        scored, groups = in_groups(rewards, torch.nan), {"num_generations": size}
        if config.returns == "to_go":
            turns = turn_numbers(mask_t)
            turn_t, steps = turns.cummax(-1).values.clamp(min=0), in_groups(turns.amax(-1).clamp(min=0) + 1, 0)
            reward_k = reward_t.new_zeros(len(reward_t), int(steps.max())).scatter_add_(1, turn_t, reward_t)
            return_k = returns.returns_to_go(in_groups(reward_k, 0.0), gamma=config.step_gamma, steps=steps)
            return_k[scored.isnan()] = torch.nan
            credit = returns.to_go_advantages(return_k, baseline=config.step_baseline, steps=steps, **groups)
            advantages = credit[place].gather(1, turn_t).to(rewards.dtype)
        else:
            credit = outcome_advantages(config, scored, lengths=in_groups(mask_t.sum(-1), 0), **groups)
            advantages = (group_advantage(scored, scale=scale, **groups) if credit is None else credit)[place]
        accuracy = {"reward_range": tuple(config.reward_range)}
        if self.belief is not None and not math.isnan(own := batch_accuracy(rewards, **accuracy)):
            p_hat = group_accuracy(scored, **groups, **accuracy)[group]
            masks = {"old_logp_t": None, "segment_ids": mask_t.long() - 1, "mask_t": mask_t}
            advantages = in_batch(config, advantages, p_hat=p_hat, prior=self.belief.prior(own), **masks).advantages
            self.belief.update(own)
        return wide(advantages) * mask_t
