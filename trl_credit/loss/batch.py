"""A generation batch around TRL's dict, and small operations on batches."""

import math
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch

from ..config import CreditConfig
from ..credit.tokens import turn_numbers
from ..credit.turns import TurnTable
from . import keys
from .order import floored


def _entry(key: str) -> Any:
    """A property that is an entry of the dict, `None` where it is missing."""

    return property(lambda self: self.data.get(key), lambda self, value: self.data.update({key: value}))


@dataclass
class Batch:
    """The rows of a generation batch on this process: TRL's dict, with its entries as properties.

    Attributes:
        data: TRL's dict, with our entries.
        rewards: Total rewards (N,) of the rows of all processes.
        rewards_per_func: Rewards (N, functions) of the rows of all processes.
        correct: Rewards (N,) of the functions that say what is correct.
        rank: Rank of this process.
    """

    data: dict[str, Any]
    rewards: torch.Tensor
    rewards_per_func: torch.Tensor
    correct: torch.Tensor
    rank: int

    advantages = _entry(keys.ADVANTAGES)
    written_t = _entry(keys.COMPLETION_MASK)
    old_logp_t = _entry(keys.OLD_LOGPS)
    sampling_logp_t = _entry(keys.SAMPLING_LOGPS)
    engine_ratio_t = _entry(keys.ENGINE_RATIO)
    segment_ids = _entry(keys.SEGMENT_IDS)
    policy_mask_t = _entry(keys.POLICY_MASK)
    turn_ids = _entry(keys.TURN_IDS)

    def __post_init__(self) -> None:
        if keys.TOOL_MASK in self.data:  # read here, since [`show_loss`] replaces it
            self.turn_ids = turn_numbers(loss_mask(self.data))

    @property
    def prompt_ids(self) -> list[list[int]]:
        return unpadded(self.data[keys.PROMPT_IDS], self.data[keys.PROMPT_MASK])

    @property
    def completion_ids(self) -> list[list[int]]:
        return unpadded(self.data[keys.COMPLETION_IDS], self.written_t)

    @property
    def width(self) -> int:
        return self.written_t.size(1)

    @property
    def mask_t(self) -> torch.Tensor:
        return loss_mask(self.data)

    def show_loss(self, tokens_t: torch.Tensor) -> None:
        self.turn_ids = turn_numbers(self.written_t) if self.turn_ids is None else self.turn_ids
        self.data[keys.TOOL_MASK] = self.mask_t * tokens_t.to(self.written_t.dtype)

    def take_returns(self) -> torch.Tensor | None:
        """Takes the advantages (B, T) from rewards along the responses out of the dict; `None` without."""
        return self.data.pop(keys.RETURNS, None)

    def own_rows(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.written_t.size(0)
        return x[self.rank * rows : (self.rank + 1) * rows]


def loss_mask(batch: dict[str, Any]) -> torch.Tensor:
    """Shape (B, T), 1 for the tokens that the loss sees."""
    mask_t = batch[keys.COMPLETION_MASK]
    return mask_t * batch[keys.TOOL_MASK] if batch.get(keys.TOOL_MASK) is not None else mask_t


def segments_of(batch: dict[str, Any], mask_t: torch.Tensor) -> torch.Tensor:
    """Segment numbers (B, T) of a batch; without segments the whole response is segment 0."""
    ids = batch.get(keys.SEGMENT_IDS)
    return mask_t.long() - 1 if ids is None else ids.masked_fill(~mask_t.bool(), -1)


def unpadded(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    """The token ids of each row that `mask` keeps, both of shape (B, L)."""
    return [list(compress(row, kept)) for row, kept in zip(ids.tolist(), mask.tolist(), strict=True)]


def segment_ratio(
    old_logp_t: torch.Tensor,
    sampling_logp_t: torch.Tensor,
    *,
    segment_ids: torch.Tensor,
    mode: str,
    low: float | None,
    high: float | None,
    average: bool = False,
) -> torch.Tensor:
    """π_old over the engine's probability, per token or as a product over each segment, truncated or masked to a range.

    TRL's correction for the engine, per segment instead of per row: a row may hold several segments, and tokens
    that belong to none. NaN log-probabilities (unknown to the engine) count as no difference. With `average` the
    product is replaced by the geometric mean: the exponential of the mean difference over the segment's tokens.

    Args:
        old_logp_t, sampling_logp_t (`torch.Tensor`):
            Shape (B, T), nats.
        segment_ids (`torch.Tensor`):
            Shape (B, T), −1 where a token belongs to no segment.
        mode (`str`):
            "token_truncate", "token_mask", "sequence_truncate" or "sequence_mask", as in TRL.
        low, high (`float` or `None`):
            The range. A ratio outside of it is clamped (truncate) or set to 0 (mask).
        average (`bool`, *optional*, defaults to `False`):
            Whether the modes "sequence_*" take the mean. It counts all tokens of a segment.

    Returns:
        `torch.Tensor`: shape (B, T), 1 where a token belongs to no segment.
    """
    inside = segment_ids >= 0
    difference = torch.where(inside, old_logp_t - sampling_logp_t, 0.0).nan_to_num(nan=0.0)
    if mode.startswith("sequence"):
        segments = TurnTable(segment_ids, inside)
        difference = segments.by_token(segments.mean(difference) if average else segments.sum(difference))
    ratio = difference.exp()
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    if mode.endswith("truncate"):
        return torch.where(inside, ratio.clamp(low, high), 1.0)
    return ratio.masked_fill(((ratio < low) | (ratio > high)) & inside, 0.0)


def shown_advantages(config: CreditConfig, batch: Batch) -> torch.Tensor:
    """One advantage (B,) per row, as the loss will use it."""
    advantages = batch.advantages
    if advantages.dim() == 2:  # whitened: the same at all tokens of a row
        advantages = (advantages * batch.mask_t).sum(-1) / batch.mask_t.sum(-1).clamp(min=1)
    return floored(config, advantages)


def replace_last(logged: Any, values: list) -> None:
    """Replaces the last entries of one of TRL's logs, a deque that may be shorter than `values`."""
    for _ in range(min(len(logged), len(values))):
        logged.pop()
    logged.extend(values)
