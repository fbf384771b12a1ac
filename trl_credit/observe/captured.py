"""What the loss saw of some rows of a micro-batch, and their gradient ∂L/∂ℓ, taken by a hook in the backward pass.

The run is not changed: hooks return nothing, and only copies are kept.
"""

from collections.abc import Sequence
from functools import partial
from itertools import compress
from typing import Any, NamedTuple, Protocol

import torch
from transformers import PreTrainedTokenizerBase, TrainerState

from ..config import CreditConfig
from ..credit.clipping import is_clipped
from ..credit.tokens import Credit, Tokens
from ..credit.turns import turn_gradient
from ..loss import keys
from ..loss.custom_credit import CustomCredit
from ..loss.loss_pass import LossPass
from ..loss.metrics import used_log_weight, wide
from ..loss.normalizer import Normalizer
from ..rollouts.policy import Policy
from ..support.processes import Processes
from .banner import ShownTrainer


_TOKENS = (keys.LOG_ROW, keys.PROMPT_IDS, keys.PROMPT_MASK, keys.COMPLETION_IDS)


class Row(NamedTuple):
    """A row as it was trained on, on the CPU. T is the number of its completion tokens: 0 for a truncated response that
    TRL masks.

    Attributes:
        tag: Number of the row in the generation batch.
        prompt_ids, token_ids: Token ids without padding.
        lists: Arrays of shape (T,) by their name in the log, or `None`.
    """

    tag: int
    prompt_ids: list[int]
    token_ids: list[int]
    lists: dict[str, Any]


class LoggedTrainer(ShownTrainer, Protocol):
    """The parts of a trainer that the rollout log reads."""

    state: TrainerState
    processes: Processes
    normalizer: Normalizer
    custom_credit: CustomCredit
    engine: Policy
    epsilon_low: float
    epsilon_high: float
    current_gradient_accumulation_steps: int

    @property
    def micro_batches_done(self) -> int: ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def run_id(self) -> str | None: ...


class Captured:
    """Some rows of a micro-batch, from the loss to the end of the backward pass.

    Args:
        trainer ([`LoggedTrainer`]):
            The trainer of the run.
        loss_pass ([`LossPass`]):
            Holds what the loss saw.
        loss (`torch.Tensor`):
            What the backward pass starts from. Factors that multiply it later are divided out.
        places (sequence of `int`):
            Rows of the micro-batch.
    """

    def __init__(self, trainer: LoggedTrainer, loss_pass: LossPass, loss: torch.Tensor, places: Sequence[int]) -> None:
        (tokens, credit), normalizer, custom = loss_pass.seen, trainer.normalizer, trainer.custom_credit
        self._config, self._clip = trainer.args, (trainer.epsilon_low, trainer.epsilon_high)
        self._carries_loss = custom.carries_loss
        self._has_kl = trainer.args.beta != 0.0 and not custom.replaces_kl
        how = {"accumulation": trainer.current_gradient_accumulation_steps, "row_weight": loss_pass.row_weight}
        items = torch.as_tensor(loss_pass.inputs[keys.NUM_ITEMS])
        divisor = normalizer.divisor(tokens, items=items, processes=trainer.processes.count, **how)
        factors = {"divisor": divisor, "kl_factor": normalizer.kl_factor(tokens, divisor, **how)}
        if (dull := loss_pass.inputs.get(keys.DULL_ROW)) is not None:
            factors["kl_factor"] = factors["kl_factor"] * (~dull).double().unsqueeze(1)
        self._index = torch.tensor(places, device=tokens.logp_t.device)
        self._taken: dict[str, torch.Tensor] = {}
        self._is_finite = torch.isfinite(loss.detach())
        self.failed: Exception | None = None
        found = self._tensors(loss_pass, tokens, credit)
        for name, factor in factors.items():
            factor = torch.as_tensor(factor, device=tokens.logp_t.device, dtype=torch.float64)
            found[name] = factor.expand(tokens.logp_t.size(0), factor.size(1) if factor.dim() == 2 else 1)
        # copies on the device, transferred once after the backward pass
        self._parts = {name: None if x is None else x.detach()[self._index.to(x.device)] for name, x in found.items()}
        self._rounding = torch.finfo(tokens.logp_t.dtype).eps
        if loss.requires_grad and tokens.logp_t.requires_grad:
            for name, x, index in (("scale", loss, ()), ("gradient", tokens.logp_t, self._index)):
                x.register_hook(partial(self._take, name, index))

    def _take(self, name: str, index: Any, gradient: torch.Tensor) -> None:
        try:
            self._taken[name] = gradient.detach()[index].clone()
        except Exception as error:  # such as out of memory: the backward pass goes on
            self.failed = error

    def rows(self) -> list[Row]:
        """The rows, after the backward pass. Credit is `None` without that pass, or if loss or gradient is not finite.

        Raises:
            Exception: the error of a hook.
        """
        if self.failed is not None:
            raise self.failed
        parts = {name: None if x is None else x.cpu() for name, x in self._parts.items()}
        kl_t, rounded_t = _kl_credit(self._config, parts) if self._has_kl else (None, None)
        lists = self._lists(parts) | {"kl_credit": kl_t, "credit": None}
        if len(self._taken) == 2:
            gradient_t, scale = (self._taken[name].double().cpu() for name in ("gradient", "scale"))
            credit_t = -(gradient_t / scale * parts["divisor"])
            if kl_t is not None:  # the rounding error of the difference is no credit
                credit_t = credit_t - kl_t
                credit_t = credit_t.masked_fill(credit_t.abs() <= 4 * self._rounding * rounded_t, 0.0)
            lists["credit"] = credit_t if self._is_finite and credit_t.isfinite().all() else None
        lists = {name: None if x is None else _compact(x) for name, x in lists.items()}
        tags, prompts, masks, ids = (parts[name].tolist() for name in _TOKENS)
        found = []
        for i, length in enumerate(parts[keys.COMPLETION_MASK].sum(1).tolist()):
            own = {name: None if x is None else x[i, :length] for name, x in lists.items()}
            found.append(Row(tags[i], list(compress(prompts[i], masks[i])), ids[i][:length], own))
        return found

    def _tensors(self, loss_pass: LossPass, tokens: Tokens, credit: Credit) -> dict[str, torch.Tensor | None]:
        """The tensors that rows of the log are made of: shape (B, T), except for the prompt."""
        config, inputs, unmasked, shape = self._config, loss_pass.inputs, loss_pass.unmasked, tokens.logp_t.shape
        kept_t = tokens.mask_t if config.policy_loss != "clip" else tokens.policy_mask_t
        if config.policy_loss != "clip":  # M keeps the last token of each segment, but the loss reaches all tokens
            kept_t = kept_t * (tokens.segment_ids >= 0)
        for mask in (credit.mask, loss_pass.entropy_mask_t):
            kept_t = kept_t if mask is None else kept_t * mask
        old_logp_t = unmasked.get(keys.OLD_LOGPS)
        return {name: inputs[name] for name in (*_TOKENS, keys.COMPLETION_MASK)} | {
            "segment_ids": inputs.get(keys.SEGMENT_IDS),
            "turn_ids": inputs.get(keys.TURN_IDS),
            "step_rewards": inputs.get(keys.STEP_REWARDS),
            "loss_mask": tokens.mask_t,
            "policy_mask": kept_t,
            "advantages": wide(credit.advantage).expand(shape),
            "inference_logprobs": unmasked.get(keys.SAMPLING_LOGPS),
            "old_logprobs": unmasked["logp_t"] if old_logp_t is None else old_logp_t,
            "trainer_logprobs": unmasked["logp_t"],
            "ref_logprobs": unmasked.get(keys.REF_LOGPS),
            "entropy": unmasked["entropy_t"],
            "log_weight": used_log_weight(config, credit, tokens).expand(shape),
            "selected": credit.selected,
            "turns": tokens.turn_ids,
        }

    def _lists(self, parts: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
        """The columns of the log, except for credit."""
        config, clip, inside = self._config, self._clip, parts["loss_mask"].bool()
        numbers = ("advantages", "log_weight")  # meaningless outside of the loss
        found = {name: parts[name].double().masked_fill(~inside, 0.0) for name in numbers}
        found |= {name: parts[name] for name in parts if name.endswith("_logprobs") or name == "entropy"}
        found |= {name: parts[name] for name in ("segment_ids", "turn_ids", "step_rewards")}
        found |= {name: parts[name].bool() & inside for name in ("loss_mask", "policy_mask")}
        found["selected"] = None if parts["selected"] is None else parts["selected"].bool() & inside
        clipped = None
        if not self._carries_loss and config.loss_type not in ("sapo", "vespo"):  # these have no clip range
            ratio, advantage = found["log_weight"].exp(), found["advantages"]
            if config.loss_type == "cispo":
                clipped = (ratio > clip[1]) & (advantage > 0)
            else:
                clip_range = (1 - clip[0], 1 + clip[1])
                clipped = is_clipped(
                    found["log_weight"], advantage_t=advantage, clip_range=clip_range, form=config.clip_form
                )
            if config.loss_type != "cispo" and config.delta is not None:
                clipped |= (ratio > config.delta) & (advantage < 0)
            clipped &= found["policy_mask"]
        found["is_clipped"] = clipped
        return found


def _kl_credit(config: CreditConfig, parts: dict[str, torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor]:
    """−∂/∂ℓ of β Σ_t k3_t, times exp(W) with `use_bias_correction_kl`, and the size of the two terms that it subtracts:
    shapes (B, T).

    The sum is TRL's KL term with what [`~trl_credit.loss.normalizer.Normalizer.missing_kl`] adds.
    """
    inside = parts["loss_mask"].double()
    difference = (parts["ref_logprobs"].double() - parts["trainer_logprobs"].double()).masked_fill(inside == 0, 0.0)
    factor, beta_t = parts["kl_factor"], config.beta * inside
    # where the factor is 0, TRL's term was added and subtracted again, and its rounding error remains
    of_size = factor.clamp(min=1.0)
    slope, size = factor * (1 - difference.exp()), of_size * (1 + difference.exp())
    if config.use_bias_correction_kl:
        kl = (difference.exp() - difference - 1) * inside

        def moved(x: torch.Tensor) -> torch.Tensor:
            if config.importance == "sequence":  # every token moves the weight of all of them
                return (x.sum(-1, keepdim=True) / inside.sum(-1, keepdim=True).clamp(min=1)).expand_as(x)
            if config.importance == "turn":  # every token moves the weight of its turn
                return turn_gradient(x, turn_ids=parts["turns"], mask_t=inside)
            return x

        weight = parts["log_weight"].double().masked_fill(inside == 0, 0.0).exp()
        slope, size = weight * (slope + moved(factor * kl)), weight * (size + moved(of_size * kl))
    return -beta_t * slope, beta_t * size


def _compact(x: torch.Tensor) -> Any:
    """A NumPy array of a small type."""
    return (x.float() if x.is_floating_point() else x.byte() if x.dtype == torch.bool else x).numpy()
