"""Which papers the knobs of a run come from."""

from dataclasses import fields
from typing import Any

from trl import GRPOConfig

from ..algorithms import ALGORITHMS
from ..algorithms.papers import paper
from ..config import CreditConfig


EIGHTY_TWENTY = paper(
    key="wang2025beyond",
    title="Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM "
    "Reasoning",
    authors="Shenzhi Wang and Le Yu and Chang Gao and Chujie Zheng and Shixuan Liu and others",
    year=2025,
    arxiv="2506.01939",
)
TRL = """@misc{vonwerra2020trl,
    title  = {{TRL}: Transformers Reinforcement Learning},
    author = {von Werra, Leandro and Belkada, Younes and Tunstall, Lewis and Beeching, Edward and Thrush, Tristan and \
Lambert, Nathan and Huang, Shengyi and Rasul, Kashif and Gallou{\\'e}dec, Quentin},
    year   = {2020},
    url    = {https://github.com/huggingface/trl},
}"""


def papers_of(args: CreditConfig) -> list[dict[str, str]]:
    """Title, arXiv id and BibTeX of every paper that a run uses, and GRPO's, which all build on, last.

    Algorithms say themselves which knobs are theirs. Those that say nothing come first where the configuration is
    theirs, and those that set nothing but TRL's own fields, which are losses, after the ways to assign credit. The
    80/20 mask is TRL's.
    """
    own, credit, losses = {}, [], []
    for config_class, trainer_class in ALGORITHMS.values():
        if "uses" not in vars(trainer_class):  # a rule that is inherited is that of another paper
            own[config_class] = trainer_class._paper
        elif trainer_class.uses(args):
            (credit if _assigns_credit(config_class) else losses).append(trainer_class._paper)
    of_the_preset = [own[base] for base in type(args).__mro__ if base in own]
    of_trl = [EIGHTY_TWENTY] if args.top_entropy_quantile < 1.0 else []
    cited = [*of_the_preset, *credit, *of_trl, *reversed(losses)]  # of the losses, GRPO is the first in the dict
    return list({paper["id"]: paper for paper in cited}.values())


def _assigns_credit(config_class: type[CreditConfig]) -> bool:
    """Whether a preset sets a knob that TRL does not have."""
    return _defaults(config_class) != _defaults(CreditConfig)


def _defaults(config_class: type[CreditConfig]) -> dict[str, Any]:
    of_trl = {f.name for f in fields(GRPOConfig)}
    return {f.name: (f.default, f.default_factory) for f in fields(config_class) if f.name not in of_trl}
