"""SPO-chain (arXiv 2505.23564): an advantage for each segment between improbable tokens, estimated by rollouts.

One advantage per response does not say which part of the response was to blame. SPO-chain cuts a response into segments
of five improbable tokens each, and estimates the value at each cut by finishing the response nine times from there. The
advantage of a segment is how much it changed the chance of success, and tokens with a probability of 0.9 or more are
left out of the policy term.

Use it when: you can afford much sampling but few optimizer steps, and improbable tokens decide the reward
Costs: 186 times the generated tokens; the training passes cost 2.5 times the FLOPs
"""

from dataclasses import dataclass

from ..config import CreditConfig
from .grpo import GRPOConfig
from .preset import PAPERS, Preset


@dataclass
class SPOChainConfig(GRPOConfig):
    r"""
    Configuration of [`SPOChainTrainer`]: [`GRPOConfig`] with the published setting.

    SPO is Segment Policy Optimization here, not Single-stream Policy Optimization. Published setting: 9 rollouts from
    every 5th cutpoint, β = 1e-4, two passes over each batch (App. H); the clip range ε is not in the text. The loss is
    the mean over each response's kept tokens, then over responses (Eq. 3), as in the paper's GRPO baseline;
    `loss_type="dapo"` is the mean over the kept tokens of the batch.

    Parameters:
        rollouts (`str`, *optional*, defaults to `"chain"`): advantages of segments by Monte Carlo rollouts.
        token_mask (`str`, *optional*, defaults to `"probability"`): tokens of the policy term.
        beta (`float`, *optional*, defaults to `0.0001`): coefficient of the KL term.
        num_iterations (`int`, *optional*, defaults to `2`): updates per batch.
    """

    rollouts: str = "chain"
    token_mask: str = "probability"
    beta: float = 1e-4
    num_iterations: int = 2


def _uses(args: CreditConfig) -> bool:
    chain = args.rollouts == "chain" and args.segmentation != "steps"
    return chain or args.token_mask == "probability" or args.policy_loss != "clip"


PRESET = Preset(
    name="SPO-chain",
    paper=PAPERS["2505.23564"],
    summary="segments begin at improbable tokens; rollouts from each boundary estimate its value",
    formula="W = ℓ − ℓ°, A = V(segment's end) − V(segment's start), M = tokens with π_old < 0.9",
    config=SPOChainConfig,
    uses=_uses,
)
