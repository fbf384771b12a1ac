"""An algorithm's credit for the clipped loss of another engine, which has the log-probabilities and advantages of a
micro-batch and nothing of TRL."""

from collections.abc import Mapping
from typing import Any

import torch
from trl import GRPOConfig

from ..config import CreditConfig
from ..config.knobs import defaults, knobs_of
from ..config.turns import YOURS
from ..credit.tokens import Tokens, kept_tokens, turn_numbers, wide
from ..loss.assignment import in_clip_form, log_weight_of, policy_mask
from ..loss.contract import Contract, algorithm, check_uniform
from ..loss.loss_pass import LossPass
from ..loss.metrics import Sums, loss_statistics
from ..loss.order import in_loss
from ..presets import PRESETS


# the knobs that act in a loss, and on the advantages of a batch
IN_LOSS = set(
    "credit importance trace_lambda gamma trace_unit selector selective_rate leave_own_out trace_style loss_weight "
    "loss_weight_confidence clip_form token_mask probability_threshold advantage_floor".split()
)
ON_BATCH = set(
    "baseline difficulty difficulty_scale difficulty_window difficulty_rate difficulty_rate_min difficulty_threshold "
    "reward_range returns step_gamma step_baseline".split()
)
_ELSEWHERE = "only this package's trainers sample continuations, ask a teacher, and choose prompts and passes"


class _NoRun(GRPOConfig):
    """What TRL and transformers compute of a run is left out: devices, processes and folders are the engine's."""

    def __post_init__(self) -> None:
        self.steps_per_generation = self.steps_per_generation or 2  # π_old comes from the engine


def engine_config(algo: str, knobs: Mapping[str, Any], *, acting: set[str], where: str) -> CreditConfig:
    """The setting of an algorithm in another engine.

    Args:
        algo (`str`):
            A name of `PRESETS`, or `"custom"`: a function of yours in `credit`.
        knobs (mapping):
            Knobs that differ from the preset.
        acting (set of `str`):
            The knobs that act there, `IN_LOSS` or `ON_BATCH`.
        where (`str`):
            For messages: "a policy loss of verl".

    Raises:
        ValueError: as [`CreditConfig`], and where a knob, or one of the preset, does not act there.
        TypeError: there is no such knob.
    """
    base = CreditConfig if algo == "custom" else PRESETS[algo].config
    kind = type(base.__name__, (base, _NoRun), {"__module__": __name__, "__doc__": base.__doc__})
    config = kind(**{"output_dir": "trl_credit", **knobs})
    declared, plain = knobs_of(type(config)), defaults(CreditConfig)
    for name, value in {name: getattr(config, name) for name in plain}.items():
        is_preset = name in declared and declared[name].changes_loss and value != plain[name]
        if name not in acting and (name in knobs or is_preset):
            why = _ELSEWHERE if name in declared else "it is TRL's: set the engine's own"
            if name in IN_LOSS | ON_BATCH:
                why = f"it acts in the {'policy loss' if name in IN_LOSS else 'advantage estimator'}"
            raise ValueError(f"{algo}: {name}={value!r} does nothing in {where}, since {why}.")
    return config


class ClippedLoss:
    """The credit of a configuration, micro-batch by micro-batch.

    A loss that has no W reads old = ℓ − W, not detached, in place of ℓ°.

    Args:
        config ([`CreditConfig`]):
            Of [`engine_config`], with the clip range of the engine's loss.

    Attributes:
        reads_entropy (`bool`): Whether credit reads entropies, or may do so as a function of yours.

    Raises:
        ValueError: the algorithm needs more than a micro-batch in the loss has.
    """

    def __init__(self, config: CreditConfig) -> None:
        self.config, self.contract = config, Contract(algorithm(config), max=lambda n: n)
        made = self.contract.algorithm
        self.reads_entropy = config.selector not in ("none", "random") or YOURS.holds(config.credit)
        for name, what, is_needed in (
            ("selector", "the entropies of the reference", config.selector == "entropy_reference"),
            ("cov_statistics", "the whole batch", getattr(config, "cov_statistics", None) == "batch"),
            ("credit", "statistics of the whole batch", made.statistics is not None),
            ("credit", "a state in checkpoints", made.state_dict is not None),
            ("credit", "a pass of its own", bool(made.needs & {"columns", "teacher", "hidden"})),
        ):
            if is_needed:
                value = f"{name}={getattr(config, name)!r}"
                raise ValueError(f"{value} needs {what}, which the loss of another engine does not have: leave it out.")

    def __call__(
        self, *, old_logp_t: torch.Tensor, mask_t: torch.Tensor, **known: Any
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, Sums]]:
        """Credit for attributes of [`Tokens`], of shape (B, T): π_old, the mask, and `known`.

        Returns W, 0 outside of the loss, whose gradient flows; A·M; and metrics of [`~trl_credit.loss.metrics`] as
        numerators and denominators. A clipped loss is min(e^W A, clip(e^W) A).

        `logp_t` and `advantages` are needed. Without `entropy_t` −ℓ° takes its place, an estimate from one sample.

        Raises:
            ValueError: as [`~trl_credit.loss.contract.Contract.credit`], and for entropies without the graph that the
                algorithm needs.
        """
        known["entropy_t"] = entropy_t = -old_logp_t if known.get("entropy_t") is None else known["entropy_t"]
        if "entropy_gradient" not in self.contract.algorithm.needs:
            known["entropy_t"] = entropy_t.detach()
        elif not entropy_t.requires_grad:
            needs = f"credit={self.config.credit!r} needs entropies with a gradient"
            raise ValueError(f"{needs}: let the engine have them.")
        mask_t = mask_t.to(torch.promote_types(old_logp_t.dtype, torch.float32))
        segment_ids = mask_t.long() - 1
        tokens = Tokens(
            old_logp_t=old_logp_t,
            segment_ids=segment_ids,
            policy_mask_t=policy_mask(self.config, old_logp_t=old_logp_t, segment_ids=segment_ids, mask_t=mask_t),
            mask_t=mask_t,
            **{"token_ids": segment_ids, "turn_ids": turn_numbers(mask_t)} | known,
        )
        tokens = in_loss(self.config, tokens)
        credit = self.contract.credit(tokens, self.config)
        check_uniform(credit, tokens, importance=self.config.importance)
        seen = LossPass(self.config, self.contract, inputs={}, reduce=lambda sums: sums, seen=(tokens, credit))
        sums = loss_statistics(seen, in_detail=False)
        used, inside_t = in_clip_form(self.config, credit, tokens), mask_t.bool()
        log_weight_t = torch.where(inside_t, log_weight_of(self.config, used, tokens), 0.0)
        return log_weight_t, torch.where(kept_tokens(credit, tokens), wide(used.advantage), 0.0), sums
