"""GSPO (arXiv 2507.18071): one importance ratio per response.

The reward belongs to a whole response, but GRPO's importance ratios belong to tokens, and their noise adds up over a
long response. GSPO uses one ratio per response, the geometric mean of its tokens' ratios. A response is clipped as a
whole, and all its tokens get the same credit.

Use it when: responses are long, and a batch has several updates; measured here: below GRPO with four
updates per batch
Costs: as GRPO
"""

from dataclasses import dataclass

from .grpo import GRPOConfig
from .preset import PAPERS, Preset


@dataclass
class GSPOConfig(GRPOConfig):
    r"""
    Configuration of [`GSPOTrainer`]: [`GRPOConfig`] with the published setting.

    The paper splits each rollout batch into four mini-batches: set `steps_per_generation` to four times
    `gradient_accumulation_steps`.

    Parameters:
        importance (`str`, *optional*, defaults to `"sequence"`): log importance weight W.
        epsilon (`float`, *optional*, defaults to `0.0003`): lower clip range.
        epsilon_high (`float`, *optional*, defaults to `0.0004`): upper clip range.
    """

    importance: str = "sequence"
    epsilon: float = 0.0003
    epsilon_high: float | None = 0.0004


PRESET = Preset(
    name="GSPO",
    paper=PAPERS["2507.18071"],
    summary="one importance ratio per response",
    formula="W = mean over the response of ℓ − ℓ°, A = group advantage, M = all tokens",
    config=GSPOConfig,
    uses=lambda args: args.importance == "sequence",
)
