"""TRL's batches in our words: the one place that knows the keys of its dicts. And small operations on them."""

from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..config import CreditConfig
from ..credit.tokens import Tokens, turn_numbers


# what TRL's forward pass takes besides tokens, for models with images
FORWARD_KEYS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


def _entry(key: str) -> Any:
    """A property that is an entry of the dict, `None` where there is none."""

    def read(self: "Batch") -> Any:
        return self.data.get(key)

    def write(self: "Batch", value: Any) -> None:
        self.data[key] = value

    return property(read, write)


@dataclass
class Batch:
    """A generation batch of this process around TRL's dict: a [`~trl_credit.rollouts.policy.Batch`].

    Attributes:
        data: TRL's dict, to which entries of our own are added.
        rewards: Total rewards (N,) of all processes' rows.
        correct: Those (N,) that say what is correct.
        rank: Of this process.
    """

    data: dict[str, Any]
    rewards: torch.Tensor
    correct: torch.Tensor
    rank: int

    advantages = _entry("advantages")
    written_t = _entry("completion_mask")
    old_logp_t = _entry("old_per_token_logps")
    sampling_logp_t = _entry("sampling_per_token_logps")
    engine_ratio_t = _entry("importance_sampling_ratio")
    segment_ids = _entry("segment_ids")
    quarter_t = _entry("response_quarters")
    policy_mask_t = _entry("policy_mask")
    row_weight = _entry("row_weight")
    turn_ids = _entry("turn_ids")

    def __post_init__(self) -> None:
        if "tool_mask" in self.data:  # before anything else takes its place
            self.turn_ids = turn_numbers(loss_mask(self.data))

    @property
    def prompt_ids(self) -> list[list[int]]:
        return unpadded(self.data["prompt_ids"], self.data["prompt_mask"])

    @property
    def completion_ids(self) -> list[list[int]]:
        return unpadded(self.data["completion_ids"], self.written_t)

    @property
    def prompt_width(self) -> int:
        return self.data["prompt_ids"].size(1)

    @property
    def width(self) -> int:
        return self.written_t.size(1)

    @property
    def mask_t(self) -> torch.Tensor:
        return loss_mask(self.data)

    def show_loss(self, tokens_t: torch.Tensor) -> None:
        self.turn_ids = turn_numbers(self.written_t) if self.turn_ids is None else self.turn_ids
        self.data["tool_mask"] = self.mask_t * tokens_t.to(self.written_t.dtype)

    def branch(self, visible_until: torch.Tensor) -> None:
        self.data["token_type_ids"] = visible_until.to(self.written_t.device)

    def own_rows(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.written_t.size(0)
        return x[self.rank * rows : (self.rank + 1) * rows]

    def count_loss_tokens(self, total: torch.Tensor) -> None:
        """Sets the number of tokens of all processes that TRL's counting losses divide by."""
        self.data["num_items_in_batch"] = total


def loss_mask(batch: dict[str, Any]) -> torch.Tensor:
    """Shape (B, T), 1 for the tokens that the loss sees."""
    mask_t = batch["completion_mask"]
    return mask_t * batch["tool_mask"] if batch.get("tool_mask") is not None else mask_t


def segments_of(batch: dict[str, Any], mask_t: torch.Tensor) -> torch.Tensor:
    """Segment numbers (B, T) of a batch; without segments the whole response is segment 0."""
    ids = batch.get("segment_ids")
    return mask_t.long() - 1 if ids is None else ids.masked_fill(~mask_t.bool(), -1)


def tokens_of(
    inputs: dict[str, Any],
    *,
    logp_t: torch.Tensor,
    old_logp_t: torch.Tensor,
    entropy_t: torch.Tensor,
    advantages: torch.Tensor,
    policy_mask_t: torch.Tensor,
    mask_t: torch.Tensor,
) -> Tokens:
    """What a credit function is given for a micro-batch. `policy_mask_t` may be `mask_t` itself."""
    floating = mask_t.to(torch.promote_types(logp_t.dtype, torch.float32))
    turn_ids = inputs.get("turn_ids")
    return Tokens(
        logp_t=logp_t,
        old_logp_t=old_logp_t,
        ref_logp_t=inputs.get("ref_per_token_logps"),
        sampling_logp_t=inputs.get("sampling_per_token_logps"),
        entropy_t=entropy_t.detach(),
        advantages=advantages,
        token_ids=inputs["completion_ids"],
        segment_ids=segments_of(inputs, mask_t),
        turn_ids=turn_numbers(mask_t) if turn_ids is None else turn_ids,
        policy_mask_t=floating if policy_mask_t is mask_t else policy_mask_t.to(floating.dtype),
        mask_t=floating,
    )


def unpadded(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    """The token ids of each row that `mask` keeps, both of shape (B, L)."""
    return [list(compress(row, kept)) for row, kept in zip(ids.tolist(), mask.tolist(), strict=True)]


def local(x: torch.Tensor) -> torch.Tensor:
    """The shard of a distributed tensor that is on this process; any other tensor itself."""
    return x.to_local() if isinstance(x, DTensor) else x


def known_or(x: torch.Tensor | None, default: torch.Tensor | None) -> torch.Tensor | None:
    """`x`, with `default` where it is NaN; either may be missing."""
    if x is None or default is None:
        return default if x is None else x
    return torch.where(x.isnan(), default, x)


def segment_ratio(
    old_logp_t: torch.Tensor,
    sampling_logp_t: torch.Tensor,
    *,
    segment_ids: torch.Tensor,
    mode: str,
    low: float | None,
    high: float | None,
) -> torch.Tensor:
    """π_old over the engine's probability, by token or as a product over each segment, truncated or masked to a range.

    TRL's correction for the engine, with the segment in the place of the row: a row may hold several segments, and
    tokens that none of its segments owns. NaN log-probabilities (unknown to the engine) count as no difference.

    Args:
        old_logp_t, sampling_logp_t (`torch.Tensor`):
            Shape (B, T), nats.
        segment_ids (`torch.Tensor`):
            Shape (B, T), −1 where a token belongs to no segment.
        mode (`str`):
            "token_truncate", "token_mask", "sequence_truncate" or "sequence_mask", as in TRL.
        low, high (`float` or `None`):
            The range; outside it a ratio is moved to the range (truncate) or made 0 (mask).

    Returns:
        `torch.Tensor`: shape (B, T), 1 where a token belongs to no segment.
    """
    inside = segment_ids >= 0
    difference = torch.where(inside, old_logp_t - sampling_logp_t, 0.0).nan_to_num(nan=0.0)
    if mode.startswith("sequence"):
        index = torch.where(inside, segment_ids, segment_ids.max().clamp(min=0) + 1)
        totals = difference.new_zeros(len(index), int(index.max()) + 1).scatter_add(1, index, difference)
        difference = torch.where(inside, totals.gather(1, index), 0.0)
    ratio = difference.exp()
    if mode.endswith("truncate"):
        return ratio if low is None and high is None else ratio.clamp(min=low, max=high)
    outside = torch.zeros_like(inside)
    if low is not None:
        outside |= ratio < low
    if high is not None:
        outside |= ratio > high
    return ratio.masked_fill(outside & inside, 0.0)


def shown_advantages(config: CreditConfig, batch: Batch) -> torch.Tensor:
    """One advantage (B,) for each row of responses, as the loss will use it."""
    shown = batch.advantages
    if shown.dim() == 2:  # whitened: one number at all tokens of a row
        shown = (shown * batch.mask_t).sum(-1) / batch.mask_t.sum(-1).clamp(min=1)
    return shown if config.advantage_floor is None else shown.clamp(min=config.advantage_floor)


def replace_last(logged: Any, values: list) -> None:
    """Replaces the last entries of one of TRL's logs, a deque that may hold fewer of them than there are."""
    for _ in range(min(len(logged), len(values))):
        logged.pop()
    logged.extend(values)
