"""What passes need to know of a trainer, its model and its loss: positions, random draws, experts."""

from typing import Any

from torch import nn

from ..config import CreditConfig


def positions_of(config: Any) -> str:
    """What a model's positions depend on.

    Returns:
        `str`: "relative" if padding in front of a row changes nothing, "absolute" if it changes results, "scaled" if
        the width of a row changes results.
    """
    if not (rope := getattr(config, "rope_parameters", None)):
        return "absolute"  # or unknown
    of_layers = [x for x in rope.values() if isinstance(x, dict)] or [rope]
    if any("dynamic" in x.get("rope_type", "") or x.get("rope_type") == "longrope" for x in of_layers):
        return "scaled"
    kinds = set(getattr(config, "layer_types", None) or ())
    is_scaled = getattr(config, "attn_temperature_tuning", False) or any("llama_4_scaling_beta" in x for x in of_layers)
    return "absolute" if is_scaled or kinds - {"full_attention", "sliding_attention"} else "relative"


def is_random(model: nn.Module) -> bool:
    """Whether a module draws at random while it trains: dropout or noise."""
    return any(
        (isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0)
        or any(isinstance(x, float) and x > 0 and ("drop" in n or "jitter" in n) for n, x in vars(module).items())
        for module in model.modules()
    )


def has_experts(model: nn.Module) -> bool:
    """Whether a model is a mixture of experts."""
    return hasattr(model.config.get_text_config(), "output_router_logits")


def has_entropy_bonus(args: CreditConfig) -> bool:
    """Whether the loss has an entropy bonus."""
    return getattr(args, "entropy_coef", 0.0) != 0.0 or getattr(args, "use_adaptive_entropy", False)


def micro_batch_terms(trainer: Any, model: nn.Module) -> dict[str, str]:
    """Why the loss of a batch depends on how it is cut into micro-batches → whose rows a term compares: those of a
    "process", or of "all" processes."""
    args = trainer.args
    has_balance = getattr(trainer, "aux_loss_enabled", has_experts(model))
    rules = {
        "loss_type='bnpo' divides by the tokens of a micro-batch": ("process", args.loss_type == "bnpo"),
        "the entropy bonus is a mean over a micro-batch": ("process", has_entropy_bonus(args)),
        "the auxiliary loss of the experts is that of a micro-batch": ("process", has_balance),
        "whiten_advantages='microbatch' compares its rows": ("all", args.whiten_advantages == "microbatch"),
        "top_entropy_quantile compares the tokens of a micro-batch": ("all", args.top_entropy_quantile < 1.0),
    }
    return {reason: whose for reason, (whose, holds) in rules.items() if holds}


def custom_credit(trainer: Any) -> list[str]:
    """The custom functions that may give any token credit."""
    return [name for name in ("credit", "selector") if name in trainer.args.custom_functions()]
