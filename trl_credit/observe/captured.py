"""What the loss saw of some rows of a micro-batch, and the credit that it gave to their tokens."""

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import torch

from ..config import CreditConfig
from ..credit.tokens import Credit, Tokens, kept_tokens, wide
from ..loss import keys
from ..loss.assignment import log_weight_of
from ..loss.loss_pass import LossPass
from ..loss.metrics import clipped_tokens


_TOKENS = (keys.LOG_ROW, keys.PROMPT_IDS, keys.PROMPT_MASK, keys.COMPLETION_IDS, keys.COMPLETION_MASK)


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
    carries_loss = loss_pass.contract.algorithm.carries_loss
    kept_t = reached_tokens(config, credit, tokens)
    if loss_pass.entropy_mask_t is not None:
        kept_t = kept_t & loss_pass.entropy_mask_t.bool()
    inputs, unmasked, inside_t = loss_pass.inputs, loss_pass.unmasked, tokens.mask_t.bool()
    # A of a custom loss is minus that loss
    advantage_t = wide(tokens.advantages if carries_loss else credit.advantage).expand(inside_t.shape)
    log_weight_t = log_weight_of(config, credit, tokens).expand(inside_t.shape)
    credit_t = loss_pass.credit_t
    is_finite = torch.isfinite(loss.detach()) & credit_t.isfinite().all()
    old_logp_t = unmasked.get(keys.OLD_LOGPS)
    lists = {
        "segment_ids": inputs.get(keys.SEGMENT_IDS),
        "turn_ids": inputs.get(keys.TURN_IDS),
        "step_rewards": inputs.get(keys.STEP_REWARDS),
        "loss_mask": inside_t,
        "policy_mask": kept_t & inside_t,
        "advantages": torch.where(inside_t, advantage_t, 0.0),
        "log_weight": torch.where(inside_t, log_weight_t, 0.0),
        "selected": None if credit.selected is None else credit.selected.bool() & inside_t,
        "is_clipped": lost_to_clip(config, credit, tokens, kept_t) if not carries_loss else None,
        "inference_logprobs": unmasked.get(keys.SAMPLING_LOGPS),
        "old_logprobs": unmasked["logp_t"] if old_logp_t is None else old_logp_t,
        "trainer_logprobs": unmasked["logp_t"],
        "ref_logprobs": unmasked.get(keys.REF_LOGPS),
        "entropy": unmasked["entropy_t"],
        "kl_credit": loss_pass.kl_credit_t,
        "credit": credit_t if is_finite else None,
    }
    index = torch.tensor(places, device=inside_t.device)
    arrays = {name: None if x is None else _compact(x.detach()[index]) for name, x in lists.items()}
    ids = {name: inputs[name][index].tolist() for name in _TOKENS}
    rows = []
    for i, length in enumerate(map(sum, ids[keys.COMPLETION_MASK])):
        own = {name: None if x is None else x[i, :length] for name, x in arrays.items()}
        prompt_ids = list(compress(ids[keys.PROMPT_IDS][i], ids[keys.PROMPT_MASK][i]))
        rows.append(Row(ids[keys.LOG_ROW][i], prompt_ids, ids[keys.COMPLETION_IDS][i][:length], own))
    return rows


def reached_tokens(config: CreditConfig, credit: Credit, tokens: Tokens) -> torch.Tensor:
    """The tokens that the policy term reaches, bool, shape (B, T)."""
    if config.policy_loss != "clip":  # M keeps the last token of each segment, but the loss reaches all tokens
        return tokens.mask_t.bool() & (tokens.segment_ids >= 0)
    return kept_tokens(credit, tokens)


def lost_to_clip(config: CreditConfig, credit: Credit, tokens: Tokens, kept_t: torch.Tensor) -> torch.Tensor | None:
    """Which tokens have no gradient because of a clip range; `None` for losses without one."""
    if config.loss_type in ("sapo", "vespo"):
        return None
    ratio_t, advantage_t = log_weight_of(config, credit, tokens).detach().exp(), wide(credit.advantage.detach())
    if config.loss_type == "cispo":
        return (ratio_t > config.clip_range[1] - 1) & (advantage_t > 0) & kept_t
    clipped_t = clipped_tokens(config, credit, tokens)
    if config.delta is not None:
        clipped_t = clipped_t | ((ratio_t > config.delta) & (advantage_t < 0))
    return clipped_t & kept_t


def _compact(x: torch.Tensor) -> Any:
    """A NumPy array of a small type, on the CPU."""
    x = x.cpu()
    return (x.float() if x.is_floating_point() else x.byte() if x.dtype == torch.bool else x).numpy()
