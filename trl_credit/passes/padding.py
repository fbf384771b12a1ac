"""Less padding: rows sorted by length inside an accumulation window, micro-batches without idle columns.

TRL pads all rows of a generation batch to the longest one. An optimizer step is a sum over the rows of its window, so
it does not matter which of them share a micro-batch: sorted, most micro-batches are narrow.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from accelerate.logging import get_logger
from torch import nn

from ..loss import keys
from .flops import Pass, rows_pass
from .model_traits import custom_credit, is_random, micro_batch_terms
from .prefix_layout import Batching, MicroBatch, PromptRow, arranged


logger = get_logger(__name__)


class Span(NamedTuple):
    """Columns of prompt and completion that a row, or several rows together, need."""

    prompt: int
    completion: int


def rows_of(
    prompt_mask: torch.Tensor, completion_mask: torch.Tensor, prompt_ids: torch.Tensor | None = None
) -> tuple[list[PromptRow], bool]:
    """The columns that each row needs. A truncated response that the loss leaves out needs none. One transfer.

    Args:
        prompt_mask, completion_mask (`torch.Tensor`):
            Shapes (B, P) and (B, T).
        prompt_ids (`torch.Tensor`, *optional*):
            Shape (B, P). Without them all prompts count as different.

    Returns:
        The rows, and whether all of them are without holes and have a prompt.
    """
    ends, counts = [], []
    for mask, backwards in ((prompt_mask != 0, True), (completion_mask != 0, False)):
        number = torch.arange(1, mask.size(1) + 1, device=mask.device)
        ends.append((mask * (number.flip(0) if backwards else number)).amax(1))
        counts.append(mask.sum(1))
    numbers = torch.arange(len(prompt_mask), device=prompt_mask.device)
    if prompt_ids is not None:
        numbers = torch.where(prompt_mask != 0, prompt_ids + 1, 0).unique(dim=0, return_inverse=True)[1]
    table = torch.stack([numbers, *ends, *counts], 1).tolist()
    return [PromptRow(*row[:3]) for row in table], all(row[1:3] == row[3:] and row[1] > 0 for row in table)


def longest(rows: Sequence[PromptRow]) -> Span:
    """The columns that rows need together, at least one of each kind."""
    return Span(max(1, *(row.prompt for row in rows)), max(1, *(row.response for row in rows)))


def cheapest_order(rows: Sequence[PromptRow], size: int, *, needed: Sequence[bool] | None = None) -> list[int]:
    """The order of rows, in parts of `size`, that needs the fewest tokens: as given, or longest response or row first.

    A part without a `needed` row costs nothing, so rows that are not needed may come together, in front.
    """

    def tokens(order: list[int]) -> int:
        parts = (order[i : i + size] for i in range(0, len(order), size))
        computed = ([rows[k] for k in part] for part in parts if needed is None or any(needed[k] for k in part))
        return sum(len(part) * (max(r.prompt for r in part) + max(r.response for r in part)) for part in computed)

    places = range(len(rows))
    by_response = sorted(places, key=lambda k: (rows[k].response, rows[k].prompt), reverse=True)
    by_row = sorted(places, key=lambda k: rows[k].prompt + rows[k].response, reverse=True)
    orders = [[*places], by_response, by_row]
    if needed is not None:  # in front, since the last micro-batch of a window may have to be computed in any case
        orders = [sorted(order, key=lambda k: needed[k]) for order in orders] + orders
    return min(orders, key=tokens)


def rows_at(batches: Sequence[dict[str, Any]], places: Sequence[int]) -> dict[str, Any]:
    """A micro-batch of the rows at `places`, counted through micro-batches of equal size. Entries without rows stay."""
    size = len(batches[0][keys.PROMPT_IDS])
    batch = dict(batches[places[0] // size])
    for name, value in batch.items():
        is_tensor = isinstance(value, torch.Tensor) and value.dim() > 0
        if is_tensor or isinstance(value, list):
            rows = [batches[k // size][name][k % size] for k in places]
            batch[name] = torch.stack(rows) if is_tensor else rows
    return batch


def trimmed(batch: dict[str, Any], span: Span, *, are_columns: bool) -> dict[str, Any]:
    """A copy of a micro-batch, cut to the columns of `span`. `are_columns`: whether type ids are numbers of columns."""
    there = columns_of(batch)
    drop, short = there.prompt - span.prompt, dict(batch)
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor) or value.dim() < 2:
            continue
        if name.startswith("prompt_"):
            short[name] = value[:, drop:]
        elif name in keys.TYPE_IDS:
            own = value[:, drop : there.prompt + span.completion]
            short[name] = (own - drop).clamp(min=0) if are_columns and name == keys.VISIBLE_UNTIL else own
        elif name not in keys.FORWARD and value.size(1) == there.completion > 1:
            short[name] = value[:, : span.completion]
    return short


def columns_of(batch: dict[str, Any]) -> Span:
    """The columns that a micro-batch has."""
    return Span(batch[keys.PROMPT_IDS].size(1), batch[keys.COMPLETION_IDS].size(1))


def is_by_row(batch: dict[str, Any]) -> bool:
    """Whether every entry of a micro-batch has one item per row, images too."""
    rows = len(batch[keys.PROMPT_IDS])
    sized = [x for x in batch.values() if isinstance(x, list) or (isinstance(x, torch.Tensor) and x.dim() > 0)]
    return all(len(x) == rows for x in sized) and all(n == 1 for n in batch.get(keys.NUM_IMAGES) or [])


class Padding:
    """How a run's rows are sorted and trimmed, by `length_sort`, its loss and its model.

    Args:
        trainer ([`~trl_credit.CreditTrainer`]):
            It has its model.
        kind (`str`):
            What the positions of the model depend on, see [`~trl_credit.passes.model_traits.positions_of`].
        multiple (`int`):
            Widths are rounded up to a multiple of it.

    Attributes:
        trims: Whether micro-batches lose the columns that none of their rows needs.
        window: Number of micro-batches whose rows may be exchanged; 1 where rows are not sorted.
    """

    def __init__(self, trainer: Any, *, kind: str, multiple: int) -> None:
        args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
        self.trims = (args.length_sort == "auto" or args.rollouts == "tree") and kind != "scaled"
        self._trims_prompts, self._multiple = kind == "relative", multiple
        # models with images make their own positions
        self._numbers_columns = model.config.get_text_config() is model.config
        self.window = min(args.steps_per_generation, args.gradient_accumulation_steps)
        if args.length_sort == "off" or not self.trims:
            self.window = 1
        elif self.window > 1 and (reasons := _reasons_against_sorting(trainer, model)):
            self.keep_order(reasons[0])
        if args.length_sort == "auto" and kind != "relative":
            logger.warning("length_sort='auto' keeps the padding on which the positions of this model depend")

    def keep_order(self, reason: str) -> None:
        """Leaves rows in the micro-batches that TRL put them in, from here on, and warns why."""
        self.window = 1
        logger.warning("length_sort='auto' trims padding and does not sort rows by length: %s", reason)

    def arrangement(self, rows: Sequence[PromptRow], there: Span, batching: Batching) -> list[MicroBatch]:
        """The cheapest micro-batches of unpacked rows, which have the columns `there`."""

        def order(part: Sequence[PromptRow], needed: Sequence[bool] | None) -> Sequence[int]:
            return cheapest_order(part, batching.size, needed=needed) if self.trims else range(len(part))

        def form(part: Sequence[PromptRow]) -> tuple[Pass, None]:
            span = self.width(part, there)
            return rows_pass(len(part), length=sum(span), scored=span.completion), None

        return arranged(rows, batching, order=order, form=form)

    def width(self, rows: Sequence[PromptRow], there: Span) -> Span:
        """The columns that rows need together, rounded up, at most those of `there`."""
        rounded = (math.ceil(n / self._multiple) * self._multiple for n in longest(rows))
        prompt, completion = map(min, rounded, there)
        return Span(prompt if self._trims_prompts else there.prompt, completion)

    def numbered_from(self, first: int, model: nn.Module) -> AbstractContextManager:
        """A context in which columns keep the position numbers from before the padding in front of them was cut.

        Rotary embeddings depend on distances only, up to rounding, and the rounding of their angles depends on the
        position numbers. With different numbers in the pass for π_old and in the loss, ratios would differ from 1, in
        long rows more than in short ones.
        """

        def number(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            if "position_ids" not in kwargs:  # passes over trees bring their own
                ids = kwargs["input_ids"]
                kwargs["position_ids"] = torch.arange(first, first + ids.size(1), device=ids.device).unsqueeze(0)
            return args, kwargs

        if first == 0 or not self._numbers_columns:
            return nullcontext()
        return model.register_forward_pre_hook(number, with_kwargs=True)


def _reasons_against_sorting(trainer: Any, model: nn.Module) -> list[str]:
    """Why rows must stay in the micro-batches that TRL put them in: whatever is not a sum over the rows of a window."""
    args = trainer.args
    window, batch = args.gradient_accumulation_steps, args.steps_per_generation
    is_by_row = trainer.contract.algorithm.by_row is True
    custom = [name for name in custom_credit(trainer) if name != "credit" or not is_by_row]
    divides = batch % window == 0 or window % batch == 0
    draws = args.neftune_noise_alpha is not None or is_random(model)
    rules = {
        "steps_per_generation and gradient_accumulation_steps do not divide each other": not divides,
        f"your custom {' and '.join(custom)} may compare the rows of a micro-batch": bool(custom),
        "selector='random' draws by micro-batch": args.selector == "random",
        "the model draws at random (dropout or noise) by micro-batch": draws,
    }
    return [*micro_batch_terms(trainer, model), *(reason for reason, holds in rules.items() if holds)]
