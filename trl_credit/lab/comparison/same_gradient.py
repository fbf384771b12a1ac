"""Algorithms whose gradient is that of the baseline, so that a comparison would test the baseline against itself.

With one update per batch the policy that is trained is the one that sampled: every ratio is 1, nothing is clipped, and
importance weights may differ without a difference in their gradients. GSPO's is then GRPO's.
"""

from dataclasses import replace
from typing import Any

import torch

from ...config import CHOICES, CreditConfig, active_part
from ...loss.assignment import assign_credit
from ...loss.loss_pass import policy_credit
from ...runs.identity import differences
from ...testing import made_up_tokens


# fields of an identity that say nothing about the gradient
_FREE = {"algorithm", "seed", "data_seed", "data"}
# that act through the ratio or the credit alone, whose gradients are computed
_KNOBS = {"importance", "trace_lambda", "gamma", "trace_style", "trace_unit"}
_KNOBS |= {"leave_own_out", "selector", "selective_rate"}
_CLIPS = {"epsilon", "epsilon_high", "clip_form", "delta"}
_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo")  # in which the ratio alone carries the gradient
_TOLERANCE = 1e-9  # of a gradient in float64, relative to its largest entry


def has_same_gradient(one: dict[str, Any], other: dict[str, Any], *, swept: str | None = None) -> bool:
    """Whether two runs have the same gradient on the same batch.

    So it is if all settings that act agree, or if those of the importance weight and of its clips alone differ, each
    batch is used for one update, and the weights have equal gradients on a batch of synthetic tokens.

    Args:
        one, other (`dict`):
            Identities, see [`~trl_credit.runs.identity.identity`].
        swept (`str`, *optional*):
            A setting that is tuned for each algorithm and does not count.
    """
    a, b = (active_part(x, x) for x in (one, other))
    unlike = differences(a, b, defaults={}).keys() - _FREE - {swept}
    if "importance" not in one or "importance" not in other:
        return False  # of an older release: nothing is known of its weights
    if not unlike:
        return True
    if unlike - _KNOBS - _CLIPS - {"importance_sampling_level"} or not all(_ratio_is_one(x) for x in (one, other)):
        return False
    by_token = not {"sequence", "turn"} & {one["importance"], other["importance"]}
    first, second = (_gradient(x, by_token=by_token) for x in (one, other))
    return bool((first - second).abs().max() <= _TOLERANCE * second.abs().max())


def _ratio_is_one(run: dict[str, Any]) -> bool:
    """Whether the ratio is 1 in each update of a run, and its weight acts on the policy term alone."""
    get = run.get
    one_update = get("num_iterations") == 1 and get("batch_size") == get("generation_batch_size")
    plain = get("credit") is None and get("policy_loss", "clip") == "clip" and get("selector") in CHOICES["selector"]
    masked = get("top_entropy_quantile", 1.0) != 1.0 or get("token_mask", "none") != "none"
    weighted = get("loss_weight", "none") != "none"
    weighted_kl = get("beta", 0.0) != 0.0 and get("use_bias_correction_kl", True)
    return one_update and plain and get("loss_type") in _LOSSES and not (masked or weighted or weighted_kl)


def _gradient(run: dict[str, Any], *, by_token: bool) -> torch.Tensor:
    """∂/∂ℓ Σ exp(W)·A over synthetic tokens at ℓ = ℓ°, shape (B, T)."""
    tokens = made_up_tokens()
    logp_t = tokens.logp_t
    advantages = tokens.advantages
    if by_token:
        advantages = advantages.unsqueeze(1) + torch.linspace(-1, 1, logp_t.size(1), dtype=logp_t.dtype)
    tokens = replace(tokens, old_logp_t=logp_t.detach(), advantages=advantages)
    knobs = active_part({name: run[name] for name in _KNOBS if name in run}, run)
    config = CreditConfig(output_dir="same_gradient", report_to="none", **knobs)
    with torch.random.fork_rng(devices=[]):
        return policy_credit(config, tokens, assign_credit(config, tokens))
