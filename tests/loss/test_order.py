"""The order of A and M, by hand."""

from dataclasses import replace

import torch
from custom_functions import args_of

from trl_credit.credit.advantages import optimal_advantage, whiten
from trl_credit.credit.difficulty import difficulty_weight
from trl_credit.loss.order import in_batch, in_loss, outcome_advantages
from trl_credit.testing import made_up_tokens


def test_the_order_of_advantages():
    """Baseline, difficulty, M, whitening over M, floor; whitening over a micro-batch comes after the cut."""
    tokens, rewards, lengths = made_up_tokens(), torch.tensor([1.0, 0, 0, 1, 1, 0]).double(), torch.arange(1, 7)
    knobs = {"baseline": "optimal", "difficulty": "fixed", "token_mask": "probability", "probability_threshold": 0.4}
    weighing = {"p_hat": rewards.view(2, 3).mean(1).repeat_interleave(3), "prior": 0.4}
    baseline = optimal_advantage(rewards, lengths=lengths, num_generations=3)
    difficulty = {"p_hat": weighing["p_hat"], "prior": 0.4, "scale": 1.3}
    weighted = baseline * difficulty_weight(baseline, **difficulty)
    kept_t = tokens.mask_t * (tokens.old_logp_t.exp() < 0.4)
    expected = whiten(weighted.unsqueeze(1).expand_as(kept_t), mask_t=kept_t).clamp(min=-0.5)
    parts = {name: getattr(tokens, name) for name in ("old_logp_t", "segment_ids", "mask_t")}
    for kind in ("batch", "microbatch"):
        config = args_of(**knobs, whiten_advantages=kind, advantage_floor=-0.5)
        first = outcome_advantages(config, rewards, lengths=lengths, num_generations=3)
        ordered = in_batch(config, first, **weighing, **parts)
        assert torch.equal(ordered.kept_t, kept_t) and (ordered.advantages.dim() == 1) == (kind == "microbatch")
        cut = {"advantages": ordered.advantages, "policy_mask_t": ordered.kept_t}
        advantages = in_loss(config, replace(tokens, **cut)).advantages
        torch.testing.assert_close(advantages.expand_as(kept_t)[kept_t > 0], expected[kept_t > 0])
