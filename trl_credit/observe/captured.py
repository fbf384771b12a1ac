"""What the loss saw of some rows of a micro-batch, and the credit that it gave to their tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..config import CreditConfig
from ..credit.tokens import Credit, Tokens, kept_tokens, wide
from ..loss import keys
from ..loss.assignment import log_weight_of
from ..loss.batch import unpadded
from ..loss.loss_pass import LossPass
from ..loss.metrics import clipped_tokens


class Row(NamedTuple):
    """A row as it was trained on, on the CPU. T is the number of its completion tokens.

    Attributes:
        tag: Number of the row in the generation batch.
        prompt_ids, token_ids: Token ids without padding.
        lists: Arrays of shape (T,) by their name in the log, or `None`.
    """

    tag: int
    prompt_ids: list[int]
    token_ids: list[int]
    lists: dict[str, Any]


def captured(config: CreditConfig, loss_pass: LossPass, loss: torch.Tensor, places: Sequence[int]) -> list[Row]:
    """Some rows of a micro-batch, whose loss was computed.

    Args:
        config ([`CreditConfig`]):
            The configuration of the run.
        loss_pass ([`LossPass`]):
            Holds what the loss saw.
        loss (`torch.Tensor`):
            Where it is not finite, no token has credit.
        places (sequence of `int`):
            Numbers of the rows in the micro-batch.
    """
    tokens, credit = loss_pass.seen
    inputs, unmasked, credit_t = loss_pass.inputs, loss_pass.unmasked, loss_pass.credit_t
    is_finite = torch.isfinite(loss.detach()) & credit_t.isfinite().all()
    old_logp_t = unmasked.get(keys.OLD_LOGPS)
    carries_loss, reached_t = loss_pass.contract.algorithm.carries_loss, loss_pass.entropy_mask_t
    lists = {
        "segment_ids": inputs.get(keys.SEGMENT_IDS),
        "turn_ids": inputs.get(keys.TURN_IDS),
        "step_rewards": inputs.get(keys.STEP_REWARDS),
        **columns_of(config, credit, tokens, carries_loss=carries_loss, reached_t=reached_t),
        "inference_logprobs": unmasked.get(keys.SAMPLING_LOGPS),
        "old_logprobs": unmasked["logp_t"] if old_logp_t is None else old_logp_t,
        "trainer_logprobs": unmasked["logp_t"],
        "ref_logprobs": unmasked.get(keys.REF_LOGPS),
        "teacher_logprobs": inputs.get(keys.TEACHER_LOGPS),
        "entropy": unmasked["entropy_t"],
        "kl_credit": loss_pass.kl_credit_t,
        "credit": credit_t if is_finite else None,
    }
    index = torch.tensor(places, device=credit_t.device)
    arrays = {name: None if x is None else _compact(x.detach()[index]) for name, x in lists.items()}
    tags = inputs[keys.LOG_ROW][index].tolist()
    prompts = unpadded(inputs[keys.PROMPT_IDS][index], inputs[keys.PROMPT_MASK][index])
    completions = unpadded(inputs[keys.COMPLETION_IDS][index], inputs[keys.COMPLETION_MASK][index])
    return [
        Row(tag, prompt_ids, ids, {name: None if x is None else x[i, : len(ids)] for name, x in arrays.items()})
        for i, (tag, prompt_ids, ids) in enumerate(zip(tags, prompts, completions, strict=True))
    ]


def columns_of(
    config: CreditConfig, credit: Credit, tokens: Tokens, *, carries_loss: bool, reached_t: torch.Tensor | None = None
) -> dict[str, torch.Tensor | None]:
    """The columns of M, A, W, z and clipping in a log, each of shape (B, T), 0 outside of the loss. `reached_t`, shape
    (B, T), are the tokens that the loss has not left out for another reason than M."""
    inside_t = tokens.mask_t.bool()
    kept_t = kept_tokens(credit, tokens)
    if config.policy_loss != "clip":  # M keeps the last token of each segment, but the loss reaches all tokens
        kept_t = inside_t & (tokens.segment_ids >= 0)
    if reached_t is not None:
        kept_t = kept_t & reached_t.bool()
    log_weight_t = log_weight_of(config, credit, tokens).detach()
    ratio_t, advantage_t, clipped_t = log_weight_t.exp(), wide(credit.advantage.detach()), None
    if config.loss_type == "cispo":
        clipped_t = (ratio_t > config.clip_range[1] - 1) & (advantage_t > 0)
    elif config.loss_type not in ("sapo", "vespo") and not carries_loss:  # which have no clip range
        clipped_t = clipped_tokens(config, credit, tokens)
        if config.delta is not None:
            clipped_t = clipped_t | ((ratio_t > config.delta) & (advantage_t < 0))
    return {
        "loss_mask": inside_t,
        "policy_mask": kept_t,
        # A of a custom loss is minus that loss
        "advantages": torch.where(inside_t, wide(tokens.advantages) if carries_loss else advantage_t, 0.0),
        "log_weight": torch.where(inside_t, log_weight_t, 0.0),
        "selected": None if credit.selected is None else credit.selected.bool() & inside_t,
        "is_clipped": None if clipped_t is None else clipped_t & kept_t,
    }


def _compact(x: torch.Tensor) -> Any:
    """A NumPy array of a small type, on the CPU."""
    x = x.cpu()
    return (x.float() if x.is_floating_point() else x.byte() if x.dtype == torch.bool else x).numpy()
