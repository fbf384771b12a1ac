"""SPO-tree (arXiv 2505.23564): responses sampled as a tree, each segment compared with its siblings.

One advantage per response does not say which part was to blame. SPO-chain finds it, but does not train on the many
rollouts that it samples for that. SPO-tree samples the responses of a prompt as a tree, and the value of a node is the
mean of its children's values. Each segment is compared with the mean over all children of its parent, and segments with
an advantage are training rows, for up to 8 batches.

Use it when: you want an advantage per part of a long response, for fewer generated tokens than SPO-chain
Costs: 26 times the generated tokens; the training passes cost 6.3 times the FLOPs
"""

from dataclasses import dataclass

from .grpo import GRPOConfig
from .preset import PAPERS, Preset


@dataclass
class SPOTreeConfig(GRPOConfig):
    r"""
    Configuration of [`SPOTreeTrainer`]: [`GRPOConfig`] with the published setting.

    Training rows are segments. A batch has `num_generations` of them per new prompt (App. H: 512 for 16, so 32).

    Published setting: branching 6-6-6, 30 tokens per inner segment (600 for long reasoning), a replay of 8 batches,
    β = 1e-4. The clip range ε is not in the text. App. D has at most 32 trajectories of a question in a batch: these
    are rows with `tree_rows="paths"`. With the default rows, segments, a cap of 32 is the released code's, and batches
    of 512 hardly ever reach it.

    Parameters:
        loss_type (`str`, *optional*, defaults to `"dapo"`): what the loss is divided by.
        prompt_average (`bool`, *optional*, defaults to `True`): mean over the tokens of each prompt, then over prompts.
            With `loss_type`, the mean over the kept tokens of each prompt's segments, then over prompts (Eq. 4). With
            replay, a tree's segments come in several generation batches, and each batch has its own mean. `False`: the
            mean over the kept tokens of the batch.
        rollouts (`str`, *optional*, defaults to `"tree"`): advantages of segments by Monte Carlo rollouts.
        token_mask (`str`, *optional*, defaults to `"probability"`): tokens of the policy term.
        replay_iterations (`int`, *optional*, defaults to `8`): batches in which a row may be drawn.
        replay_cap (`int`, *optional*, defaults to `32`): largest number of rows of a prompt in a batch.
        beta (`float`, *optional*, defaults to `0.0001`): coefficient of the KL term.
    """

    loss_type: str = "dapo"
    prompt_average: bool = True
    rollouts: str = "tree"
    token_mask: str = "probability"
    replay_iterations: int = 8
    replay_cap: int | None = 32
    beta: float = 1e-4


PRESET = Preset(
    name="SPO-tree",
    paper=PAPERS["2505.23564"],
    summary="responses sampled as a tree; a segment is compared with all children of its parent",
    formula="W = ℓ − ℓ°, A = V(node) − mean V(children of its parent), M = tokens with π_old < 0.9",
    config=SPOTreeConfig,
    uses=lambda args: args.rollouts == "tree",
)
