"""What the loss saw of some rows of one micro-batch, and what came back: ∂L/∂ℓ, taken by a hook in the backward pass.

Nothing here changes a number of the run: hooks return nothing, and all that is kept is a copy.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..config import CreditConfig
from ..credit.clipping import is_clipped
from ..credit.tokens import Credit, Tokens
from .live import LivePass
from .metrics import used_log_weight, wide


ROW = "log_row"  # the entry of TRL's dict that says which row of the generation batch a row is


class Row(NamedTuple):
    """A row as it was trained on, on the CPU. T is the number of its completion tokens: 0 of a truncated response that
    is left out, of which TRL's mask has nothing.

    Attributes:
        tag: Which row of the generation batch it is.
        prompt_ids, token_ids: Without padding.
        lists: Arrays of shape (T,) by the name that the log has for them, or `None`.
    """

    tag: int
    prompt_ids: list[int]
    token_ids: list[int]
    lists: dict[str, Any]


class Captured:
    """Some rows of a micro-batch, from the loss to the end of the backward pass.

    Args:
        config ([`CreditConfig`]):
            Its loss is read.
        live ([`LivePass`]):
            After the loss was computed.
        loss (`torch.Tensor`):
            What goes on from here to the backward pass: whatever multiplies it there is taken out again.
        places (sequence of `int`):
            Which rows of the micro-batch.
        divisor, kl_factor (`torch.Tensor` or `float`):
            See [`~trl_credit.trainer.normalizer.Normalizer`].
        clip (`tuple[float, float]`):
            ε below and above.
    """

    def __init__(
        self,
        config: CreditConfig,
        live: LivePass,
        loss: torch.Tensor,
        places: Sequence[int],
        *,
        divisor: torch.Tensor | float,
        kl_factor: torch.Tensor | float,
        clip: tuple[float, float],
        carries_loss: bool,
        has_kl: bool,
    ) -> None:
        tokens, credit = live.seen
        self._config, self._clip = config, clip
        self._carries_loss, self._has_kl = carries_loss, has_kl
        self._index = torch.tensor(places, device=tokens.logp_t.device)
        self._gradient: torch.Tensor | None = None
        self._scale: torch.Tensor | None = None
        self._is_finite = torch.isfinite(loss.detach())
        self.failed: Exception | None = None
        found = _tensors(config, live, tokens, credit)
        for name, factor in (("divisor", divisor), ("kl_factor", kl_factor)):
            factor = torch.as_tensor(factor, device=tokens.logp_t.device, dtype=torch.float64)
            found[name] = factor.expand(tokens.logp_t.size(0), 1)
        # copies of the rows, on the device: they travel once, after the backward pass
        self._parts = {name: None if x is None else x.detach()[self._index.to(x.device)] for name, x in found.items()}
        self._rounding = torch.finfo(tokens.logp_t.dtype).eps
        if loss.requires_grad and tokens.logp_t.requires_grad:
            loss.register_hook(self._take_scale)
            tokens.logp_t.register_hook(self._take_gradient)

    def _take_scale(self, gradient: torch.Tensor) -> None:
        try:
            self._scale = gradient.detach().clone()
        except Exception as error:
            self.failed = error

    def _take_gradient(self, gradient: torch.Tensor) -> None:
        try:
            self._gradient = gradient.detach()[self._index]
        except Exception as error:  # such as memory that is full: the backward pass goes on
            self.failed = error

    def rows(self) -> list[Row]:
        """The rows, after the backward pass. Credit is unknown without one, and where loss or gradient is not finite.

        Raises:
            Exception: what went wrong in the hook.
        """
        if self.failed is not None:
            raise self.failed
        parts = {name: None if x is None else x.cpu() for name, x in self._parts.items()}
        lists = _lists(self._config, parts, clip=self._clip, carries_loss=self._carries_loss)
        kl_t, rounded_t = _kl_credit(self._config, parts) if self._has_kl else (None, None)
        lists["kl_credit"] = kl_t
        lists["credit"] = None
        if self._gradient is not None and self._scale is not None:
            gradient_t = self._gradient.double().cpu() / self._scale.double().cpu() * parts["divisor"]
            credit_t = -gradient_t
            if kl_t is not None:  # what rounding leaves of the difference is no credit
                credit_t = credit_t - kl_t
                credit_t = credit_t.masked_fill(credit_t.abs() <= 4 * self._rounding * rounded_t, 0.0)
            lists["credit"] = credit_t if self._is_finite and credit_t.isfinite().all() else None
        lists = {name: None if x is None else _compact(x) for name, x in lists.items()}
        found = []
        for i, tag in enumerate(parts[ROW].tolist()):
            ids = parts["completion_ids"][i].tolist()
            length = int(parts["completion_mask"][i].sum())
            prompt_ids = parts["prompt_ids"][i][parts["prompt_mask"][i].bool()].tolist()
            own = {name: None if x is None else x[i, :length] for name, x in lists.items()}
            found.append(Row(tag, prompt_ids, ids[:length], own))
        return found


def _tensors(config: CreditConfig, live: LivePass, tokens: Tokens, credit: Credit) -> dict[str, torch.Tensor | None]:
    """All of the micro-batch that a row of the log is made of: one row each, (B, T) but for the prompt."""
    inputs, shape = live.inputs, tokens.logp_t.shape
    names = (ROW, "prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "segment_ids", "turn_ids")
    kept_t = tokens.mask_t if config.policy_loss != "clip" else tokens.policy_mask_t
    if config.policy_loss != "clip":  # M has the last token of each segment, and the loss reaches all
        kept_t = kept_t * (tokens.segment_ids >= 0)
    for mask in (credit.mask, live.entropy_mask_t):
        kept_t = kept_t if mask is None else kept_t * mask
    return {name: inputs.get(name) for name in names} | {
        "loss_mask": tokens.mask_t,
        "policy_mask": kept_t,
        "advantages": wide(credit.advantage).expand(shape),
        "inference_logprobs": tokens.sampling_logp_t,
        "old_logprobs": tokens.old_logp_t,
        "trainer_logprobs": tokens.logp_t,
        "ref_logprobs": tokens.ref_logp_t,
        "entropy": tokens.entropy_t,
        "log_weight": used_log_weight(config, credit, tokens).expand(shape),
        "selected": credit.selected,
    }


def _lists(
    config: CreditConfig, parts: dict[str, torch.Tensor | None], *, clip: tuple[float, float], carries_loss: bool
) -> dict[str, torch.Tensor | None]:
    inside = parts["loss_mask"].bool()
    numbers = ("advantages", "log_weight")  # what stands at tokens outside of the loss means nothing
    found = {name: parts[name].double().masked_fill(~inside, 0.0) for name in numbers}
    found |= {name: parts[name] for name in parts if name.endswith("_logprobs") or name == "entropy"}
    found |= {name: parts[name] for name in ("segment_ids", "turn_ids")}
    found |= {name: parts[name].bool() & inside for name in ("loss_mask", "policy_mask")}
    found["selected"] = None if parts["selected"] is None else parts["selected"].bool() & inside
    clipped = None
    if not carries_loss and config.loss_type not in ("sapo", "vespo"):  # which have no range
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
    """−∂/∂ℓ of β Σ_t k3_t, times exp(W) where `use_bias_correction_kl` asks for it, shape (B, T), and how large the
    terms are that it is a difference of.

    It is that of TRL, with what [`~trl_credit.trainer.normalizer.Normalizer.missing_kl`] adds to it.
    """
    inside = parts["loss_mask"].double()
    difference = (parts["ref_logprobs"].double() - parts["trainer_logprobs"].double()).masked_fill(inside == 0, 0.0)
    slope, size = 1 - difference.exp(), 1 + difference.exp()
    if config.use_bias_correction_kl:
        kl = (difference.exp() - difference - 1) * inside
        if config.importance == "sequence":  # every token moves the weight of all of them
            kl = (kl.sum(-1, keepdim=True) / inside.sum(-1, keepdim=True).clamp(min=1)).expand_as(kl)
        weight = parts["log_weight"].double().masked_fill(inside == 0, 0.0).exp()
        slope, size = weight * (slope + kl), weight * (size + kl)
    factor, beta_t = parts["kl_factor"], config.beta * inside
    # where nothing of TRL's term is left it was subtracted, not left out
    return -factor * beta_t * slope, factor.clamp(min=1.0) * beta_t * size


def _compact(x: torch.Tensor) -> Any:
    """An array that costs little to send."""
    return (x.float() if x.is_floating_point() else x.byte() if x.dtype == torch.bool else x).numpy()
