"""The papers that the settings of a run come from."""

from dataclasses import fields

from ..config import CreditConfig
from ..presets import PRESETS, paper
from .recipe import TRL_FIELDS


EIGHTY_TWENTY = paper(
    title="Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM "
    "Reasoning",
    authors="Shenzhi Wang and Le Yu and Chang Gao and Chujie Zheng and Shixuan Liu and others",
    arxiv="2506.01939",
)


def papers_of(args: CreditConfig) -> list[dict[str, str]]:
    """Title, arXiv id and BibTeX of every paper that a run uses.

    The order is: the preset's paper if only its own class uses it, methods that assign credit, the 80/20 mask of TRL,
    losses, and GRPO.
    """
    own, credit, losses = {}, [], []
    for preset in PRESETS.values():
        if preset.uses is None:
            own[preset.config] = preset.paper
        elif preset.uses(args):
            (credit if _has_knobs(preset.config) else losses).append(preset.paper)
    of_class = [own[base] for base in type(args).__mro__ if base in own]
    of_trl = [EIGHTY_TWENTY] if args.top_entropy_quantile < 1.0 else []
    cited = [*of_class, *credit, *of_trl, *reversed(losses)]  # GRPO is the first loss of the registry
    return list({paper["id"]: paper for paper in cited}.values())


def _has_knobs(config_class: type[CreditConfig]) -> bool:
    """Whether a preset declares a knob that TRL does not have."""
    inherited = set(fields(CreditConfig))
    return any(f not in inherited and f.name not in TRL_FIELDS for f in fields(config_class))
