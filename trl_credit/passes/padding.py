"""Less padding: rows sorted by length inside an accumulation window, micro-batches without idle columns.

TRL pads all rows of a generation batch to the longest one. An optimizer step is a sum over the rows of its window, so
it does not matter which of them share a micro-batch: sorted, most micro-batches are narrow.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from accelerate.logging import get_logger
from torch import nn

from .flops import Pass, rows_pass
from .model_traits import custom_credit, is_random, micro_batch_terms
from .prefix_layout import Batching, MicroBatch, PromptRow, arranged
from .row_order import Span, cheapest_order, longest


logger = get_logger(__name__)


class Padding:
    """How a run's rows are sorted and trimmed, by `length_sort`, its loss and its model.

    Args:
        trainer ([`~trl_credit.CreditTrainer`]):
            With its model.
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
