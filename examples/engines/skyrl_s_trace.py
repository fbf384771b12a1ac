"""S-trace (arXiv 2605.05965) as a policy loss of SkyRL 0.3: the most surprising tokens leave an eligibility trace.

SkyRL's own clipped loss gets old' = ℓ − W in place of ℓ°, so its ratio exp(ℓ − old') is exp(W): the gradient of W flows
and that of ℓ cancels. W has the value of the ordinary log-ratio, so clipping and off-policy correction are those of
GRPO. The paper selects by entropy, which SkyRL does not pass to a loss; −ℓ° is its estimate from one sample.

Not for the fully asynchronous trainer: there ℓ° is recomputed by a newer policy than the one that sampled.

python skyrl_s_trace.py trainer.algorithm.trace_lambda=0.9 trainer.algorithm.selective_rate=0.2 ...
"""

import sys
from dataclasses import dataclass, replace

import ray
import torch
from skyrl.backends.skyrl_train.utils.ppo_utils import ppo_policy_loss, register_policy_loss
from skyrl.train.config import AlgorithmConfig, make_config

from trl_credit.credit.selection import select_high_entropy
from trl_credit.credit.weights import eligible_log_weight


@dataclass
class STraceAlgorithm(AlgorithmConfig):
    """SkyRL's settings `trainer.algorithm`, and those of the trace.

    Attributes:
        policy_loss_type: The name under which the loss is registered.
        clipped_loss: SkyRL's loss that gets the weight: `"regular"` or `"dual_clip"`.
        trace_lambda: λ; a trace decays by it per token.
        selective_rate: ρ, the share of a response's tokens that leave a trace.
    """

    policy_loss_type: str = "s_trace"
    clipped_loss: str = "regular"
    trace_lambda: float = 0.9
    selective_rate: float = 0.2


@register_policy_loss("s_trace")
def s_trace_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    config: STraceAlgorithm,
    loss_mask: torch.Tensor | None = None,
    rollout_logprobs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    mask_t = torch.ones_like(log_probs) if loss_mask is None else loss_mask
    selected_t = select_high_entropy(-old_log_probs, rate=config.selective_rate, mask_t=mask_t)
    log_weight_t = eligible_log_weight(
        log_probs, old_logp_t=old_log_probs, decay=config.trace_lambda, selected_t=selected_t, mask_t=mask_t
    )
    # SkyRL's loss reads its own name in the settings, and refuses others
    config = replace(config, policy_loss_type=config.clipped_loss)
    return ppo_policy_loss(log_probs, log_probs - log_weight_t, advantages, config, loss_mask, rollout_logprobs)


def main() -> None:
    # the loss does not need the trainer, and a worker that unpickles the loss should not import it
    from skyrl.train.entrypoints.main_base import skyrl_entrypoint
    from skyrl.train.utils import validate_cfg
    from skyrl.train.utils.utils import initialize_ray

    config = make_config(algorithm_cls=STraceAlgorithm).from_cli_overrides(sys.argv[1:])
    validate_cfg(config)
    initialize_ray(config)  # copies what is registered here to the workers
    ray.get(skyrl_entrypoint.remote(config))


if __name__ == "__main__":
    main()
