"""Algorithms whose gradient is that of the baseline, so that a comparison would test the baseline against itself.

With one update per batch the policy that is trained is the one that sampled: every ratio is 1, nothing is clipped, and
a weight that averages log ratios has the gradient of GRPO's. GSPO's gradient is then GRPO's (docs/theory.md).
"""

from typing import Any

from ...config import CHOICES, active_part
from ...runs.identity import differences
from .histories import History


# fields of an identity that say nothing about the gradient, if every ratio is 1 and `importance` is one of `_WEIGHTS`
_FREE = {"algorithm", "seed", "data_seed", "data"}
_OF_RATIO = {"importance", "importance_sampling_level", "epsilon", "epsilon_high", "clip_form", "delta"}
_WEIGHTS = ("token", "sequence", "sequence_token", "turn", "turn_token")
_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo")  # in which the ratio alone carries the gradient


def has_same_gradient(run: History, base: History, *, swept: str | None = None) -> bool:
    """Whether two runs have the same gradient on the same batch.

    So it is if all settings that act agree, or if those of the importance weight and of its clips alone differ, the
    weights are averages of log ratios, and each batch is used for one update. A trainer class of the user may do
    anything, so it has the gradient of no other class.

    Args:
        run, base ([`~trl_credit.lab.comparison.histories.History`]):
            The runs.
        swept (`str`, *optional*):
            A setting that is tuned for each algorithm and does not count.
    """
    if run.record.get("trainer") != base.record.get("trainer"):
        return False
    one, other = (active_part(x.identity, x.identity) for x in (run, base))
    unlike = differences(one, other, defaults={}).keys() - _FREE - {swept}
    return not unlike or (unlike <= _OF_RATIO and _ratio_is_one(run.identity) and _ratio_is_one(base.identity))


def _ratio_is_one(run: dict[str, Any]) -> bool:
    """Whether the ratio is 1 in each update of a run, and its weight acts on the policy term alone."""
    get = run.get
    one_update = get("num_iterations") == 1 and get("batch_size") == get("generation_batch_size")
    plain = get("credit") is None and get("policy_loss", "clip") == "clip" and get("selector") in CHOICES["selector"]
    masked = get("top_entropy_quantile", 1.0) != 1.0 or get("token_mask", "none") != "none"
    weighted = get("loss_weight", "none") != "none"
    weighted_kl = get("beta", 0.0) != 0.0 and get("use_bias_correction_kl", True)
    is_average = get("importance") in _WEIGHTS and get("loss_type") in _LOSSES
    return one_update and plain and is_average and not (masked or weighted or weighted_kl)
