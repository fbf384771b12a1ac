"""VinePPO (arXiv 2410.01679): an advantage for each step of a solution, estimated by rollouts from its start.

One advantage per response does not say which step of a solution was wrong. VinePPO estimates the value at the start of
each step by finishing the solution nine times from there. The advantage of a step is the value after it minus the value
before it, without a critic.

Use it when: you can afford much sampling but few optimizer steps, and a solution has clear steps
Costs: 151 times the generated tokens; the training passes cost 2.5 times the FLOPs
"""

from dataclasses import dataclass

from .preset import PAPERS, Preset
from .spo_chain import SPOChainConfig


@dataclass
class VinePPOConfig(SPOChainConfig):
    r"""
    Configuration of [`VinePPOTrainer`]: [`SPOChainConfig`] with the published setting.

    Like SPO-chain, but a segment is a step of the solution, and the policy term keeps all tokens.

    Its released code has 9 rollouts from the start and after each step, at most 25 steps on GSM8K, β = 1e-4, ε = 0.2,
    and two passes over each batch. Set `step_splitter` to `"gsm8k"` or `"math"` for solutions of these sets.

    Parameters:
        segmentation (`str`, *optional*, defaults to `"steps"`): where segments end.
        token_mask (`str`, *optional*, defaults to `"none"`): tokens of the policy term.
    """

    segmentation: str = "steps"
    token_mask: str = "none"


PRESET = Preset(
    name="VinePPO",
    paper=PAPERS["2410.01679"],
    summary="segments are the steps of a solution; rollouts from each boundary estimate its value",
    formula="W = ℓ − ℓ°, A = V(step's end) − V(step's start), M = all tokens",
    config=VinePPOConfig,
    uses=lambda args: args.rollouts == "chain" and args.segmentation == "steps",
)
