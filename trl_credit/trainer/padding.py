"""Less padding: rows in the order of their lengths inside an accumulation window, micro-batches without idle columns.

TRL pads all rows of a generation batch to the longest one. An optimizer step is a sum over the rows of its window, so
that it does not matter which of them share a micro-batch: sorted, most micro-batches are narrow.
"""

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from accelerate.logging import get_logger
from peft import PeftModel
from torch import nn

from ..config import CreditConfig
from .batches import FORWARD_KEYS


logger = get_logger(__name__)

OF_ACCELERATORS = 64  # widths are multiples of it there: fewer shapes for the allocator and the compiler
BEFORE = "columns_before"  # the entry of a micro-batch that says how many columns it lost in front
TYPE_IDS = ("token_type_ids", "mm_token_type_ids")  # which have the columns of prompt and completion


class Span(NamedTuple):
    """Columns of prompt and completion that a row needs, or rows together."""

    prompt: int
    completion: int


class Padding:
    """What a run does about the padding of its rows, by `length_sort`, its loss and its model.

    Args:
        trainer ([`CreditTrainer`]):
            With its model.

    Attributes:
        trims: Whether micro-batches lose the columns that none of their rows needs.
        window: Micro-batches whose rows may be exchanged, 1 where they are not sorted.
    """

    def __init__(self, trainer: Any) -> None:
        args: CreditConfig = trainer.args
        model = trainer.accelerator.unwrap_model(trainer.model)
        kind = _positions(model.config.get_text_config())
        self.trims = (args.length_sort == "auto" or args.rollouts == "tree") and kind != "scaled"
        self._trims_prompts = kind == "relative"
        plain = model.get_base_model() if isinstance(model, PeftModel) else model
        takes_positions = "position_ids" in inspect.signature(type(plain).forward).parameters
        # models with images make positions of their own
        self._numbers = takes_positions and model.config.get_text_config() is model.config
        on_cpu = trainer.accelerator.device.type == "cpu"
        self._multiple = math.lcm(1 if on_cpu else OF_ACCELERATORS, getattr(args, "pad_to_multiple_of", None) or 1)
        self.window = min(args.steps_per_generation, args.gradient_accumulation_steps)
        if args.length_sort == "off" or not self.trims:
            self.window = 1
        elif self.window > 1 and (reasons := _reasons(trainer, model)):
            self._say(reasons[0])
        if args.length_sort == "auto" and kind != "relative":
            left = "padding" if kind == "scaled" else "padding of prompts"
            logger.warning("length_sort='auto' leaves the %s, on which the positions of this model depend", left)

    def _say(self, reason: str) -> None:
        self.window = 1
        logger.warning("length_sort='auto' trims padding and does not sort rows by length: %s", reason)

    def arranged(
        self, batches: list[dict[str, Any]], *, are_columns: bool, credited: torch.Tensor | None = None
    ) -> list[dict[str, Any]]:
        """The micro-batches of a generation batch, as TRL cut it, with less padding.

        Args:
            are_columns (`bool`):
                Whether `token_type_ids` are numbers of columns.
            credited (`torch.Tensor`, *optional*):
                Which rows, one micro-batch after the other, have a gradient, where others need no pass.
        """
        if not self.trims or batches[0]["completion_ids"].size(1) == 0:
            return batches
        if self.window > 1 and not all(map(_is_by_row, batches)):
            self._say("the tensors of its images have not one entry per row")
        # one transfer for the whole batch
        joined = {name: torch.cat([batch[name] for batch in batches]) for name in ("prompt_mask", "completion_mask")}
        spans, size = spans_of(joined["prompt_mask"], joined["completion_mask"]), len(batches[0]["prompt_ids"])
        needed = None if credited is None or self.window == 1 else credited.tolist()
        found = []
        for start in range(0, len(batches), self.window):
            own = slice(start * size, (start + self.window) * size)
            rows = spans[own]
            order = cheapest_order(rows, size, needed=None if needed is None else needed[own])
            part = reordered(batches[start : start + self.window], order) if order != [*range(len(rows))] else None
            for i in range(self.window):
                batch = batches[start + i] if part is None else part[i]
                there = _columns(batch)
                span = self.width([rows[k] for k in order[i * size : (i + 1) * size]], there)
                before = {BEFORE: there.prompt - span.prompt}
                found.append(trimmed(batch, span, are_columns=are_columns) | before)
        return found

    def width(self, spans: Sequence[Span], there: Span) -> Span:
        """What rows need together, rounded up, but not beyond the columns that there are."""
        found = []
        for lengths, most in zip(zip(*spans, strict=True), there, strict=True):
            found.append(min(math.ceil(max(1, *lengths) / self._multiple) * self._multiple, most))
        return Span(found[0] if self._trims_prompts else there.prompt, found[1])

    def forward(
        self,
        forward: Callable[..., tuple],
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        width: int,
        /,
        *others: Any,
        are_columns: bool,
        before: int,
        **named: Any,
    ) -> tuple:
        """TRL's forward pass, with 0 for the log-probabilities of padding.

        A pass over a batch without a gradient is made in the order of lengths, each part of it as wide as its rows;
        what comes back has the order and the width of what was given.

        Args:
            forward (`Callable`):
                TRL's method, which all else is passed to.
            are_columns (`bool`):
                Whether `token_type_ids` are numbers of columns.
            before (`int`):
                Columns that the rows have lost in front.
        """
        given = named | dict(zip(("batch_size", "compute_entropy"), others, strict=False))
        size, used = given.get("batch_size"), {name for name, x in given.items() if x is not None and x is not False}
        whole = size is None or torch.is_grad_enabled() or len(others) > 2 or width == 0
        if whole or used - {"batch_size", "compute_entropy", *TYPE_IDS}:
            with self._numbered_from(before, model):
                output = forward(model, input_ids, attention_mask, width, *others, **named)
            # an older TRL has numbers there, which need not be those of a pass that was less wide
            return output[0].masked_fill(attention_mask[:, attention_mask.size(1) - width :] == 0, 0.0), *output[1:]
        there = Span(input_ids.size(1) - width, width)
        spans = spans_of(attention_mask[:, : there.prompt], attention_mask[:, there.prompt :])
        order = cheapest_order(spans, size)
        found: list[torch.Tensor | None] = []
        for rows in (order[i : i + size] for i in range(0, len(order), size)):
            span = self.width([spans[k] for k in rows], there)
            drop, index = there.prompt - span.prompt, torch.tensor(rows, device=input_ids.device)
            columns = slice(drop, there.prompt + span.completion)
            part = given | {"batch_size": len(rows)}
            for name in used.intersection(TYPE_IDS):
                part[name] = _type_ids(given[name][index], drop, columns, are_columns=are_columns)
            ids, mask = input_ids[index, columns], attention_mask[index, columns]
            with self._numbered_from(drop, model):
                output = forward(model, ids, mask, span.completion, **part)
            found = found or [None if x is None else x.new_zeros(len(order), width) for x in output]
            for whole_t, part_t in zip(found, output, strict=True):
                if whole_t is not None:
                    whole_t[index, : span.completion] = part_t.masked_fill(mask[:, span.prompt :] == 0, 0.0)
        return tuple(found)

    @contextlib.contextmanager
    def _numbered_from(self, first: int, model: nn.Module) -> Iterator[None]:
        """Within it, columns have the numbers that they had before the padding in front of them went.

        For rotary embeddings only distances count, but their angles are rounded by number: a row with other numbers in
        the pass for π_old than in the loss would seem to be off-policy, the more the longer it is.
        """

        def number(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            if "position_ids" not in kwargs:  # of trees, which know their own
                ids = kwargs["input_ids"]
                kwargs["position_ids"] = torch.arange(first, first + ids.size(1), device=ids.device).unsqueeze(0)
            return args, kwargs

        if first == 0 or not self._numbers:
            yield
            return
        handle = model.register_forward_pre_hook(number, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def spans_of(prompt_mask: torch.Tensor, completion_mask: torch.Tensor) -> list[Span]:
    """Of each row: its columns up to the first, and from the last one on, that are 0 in all others. (B, P) and (B, T).

    The response of a truncated row that the loss leaves out needs none.
    """
    ends = []
    for mask, backwards in ((prompt_mask, True), (completion_mask, False)):
        number = torch.arange(1, mask.size(1) + 1, device=mask.device)
        ends.append(((mask != 0) * (number.flip(0) if backwards else number)).amax(1))
    return [Span(*row) for row in torch.stack(ends, 1).tolist()]


def cheapest_order(spans: Sequence[Span], size: int, *, needed: Sequence[bool] | None = None) -> list[int]:
    """Rows in parts of `size`, longest first: by response or by row, whichever needs fewer tokens, if fewer at all.

    Parts without a row that is `needed` need none: rows that are not come together in front of the others, if anywhere.
    """

    def tokens(order: list[int]) -> int:
        parts = (order[i : i + size] for i in range(0, len(order), size))
        made = ([spans[k] for k in part] for part in parts if needed is None or any(needed[k] for k in part))
        return sum(len(part) * sum(map(max, zip(*part, strict=True))) for part in made)

    places = range(len(spans))
    by_response = sorted(places, key=lambda k: (spans[k].completion, spans[k].prompt), reverse=True)
    orders = [[*places], by_response, sorted(places, key=lambda k: sum(spans[k]), reverse=True)]
    if needed is not None:  # in front, since the last micro-batch of a window may have to be there for the others
        orders = [sorted(order, key=lambda k: needed[k]) for order in orders] + orders
    return min(orders, key=tokens)


def reordered(batches: Sequence[dict[str, Any]], order: list[int]) -> list[dict[str, Any]]:
    """Micro-batches of the same rows in another order. What is one number for all of them stays."""
    size, found = len(order) // len(batches), [dict(batch) for batch in batches]
    for name, first in batches[0].items():
        if isinstance(first, torch.Tensor) and first.dim() > 0:
            rows = torch.cat([batch[name] for batch in batches])[torch.tensor(order, device=first.device)]
        elif isinstance(first, list):
            every = [x for batch in batches for x in batch[name]]
            rows = [every[k] for k in order]
        else:
            continue
        for i, batch in enumerate(found):
            batch[name] = rows[i * size : (i + 1) * size]
    return found


def trimmed(batch: dict[str, Any], span: Span, *, are_columns: bool) -> dict[str, Any]:
    """A copy of a micro-batch whose prompts and completions have the columns of `span` alone."""
    there = _columns(batch)
    drop, found = there.prompt - span.prompt, dict(batch)
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor) or value.dim() < 2:
            continue
        if name.startswith("prompt_"):
            found[name] = value[:, drop:]
        elif name in TYPE_IDS:
            columns = slice(drop, there.prompt + span.completion)
            found[name] = _type_ids(value, drop, columns, are_columns=are_columns and name == "token_type_ids")
        elif name not in FORWARD_KEYS and value.size(1) == there.completion > 1:
            found[name] = value[:, : span.completion]
    return found


def _columns(batch: dict[str, Any]) -> Span:
    """Those that there are."""
    return Span(batch["prompt_ids"].size(1), batch["completion_ids"].size(1))


def _type_ids(ids: torch.Tensor, drop: int, columns: slice, *, are_columns: bool) -> torch.Tensor:
    return (ids[:, columns] - drop).clamp(min=0) if are_columns else ids[:, columns]


def _is_by_row(batch: dict[str, Any]) -> bool:
    """Whether all that a micro-batch holds has one entry per row, images too."""
    rows = len(batch["prompt_ids"])
    sized = [x for x in batch.values() if isinstance(x, list) or (isinstance(x, torch.Tensor) and x.dim() > 0)]
    return all(len(x) == rows for x in sized) and all(n == 1 for n in batch.get("num_images") or [])


def _positions(config: Any) -> str:
    """ "relative" if padding in front of a row changes nothing, "absolute" if it does, "scaled" if its width does."""
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        return "absolute"  # or it is not known
    of_layers = [x for x in rope.values() if isinstance(x, dict)] or [rope]
    if any("dynamic" in x.get("rope_type", "") or x.get("rope_type") == "longrope" for x in of_layers):
        return "scaled"
    kinds = set(getattr(config, "layer_types", None) or ())
    is_scaled = getattr(config, "attn_temperature_tuning", False) or any("llama_4_scaling_beta" in x for x in of_layers)
    return "absolute" if is_scaled or kinds - {"full_attention", "sliding_attention"} else "relative"


def _reasons(trainer: Any, model: nn.Module) -> list[str]:
    """Why rows must stay in the micro-batches that TRL put them in: all that is not a sum over the rows of a window."""
    args: CreditConfig = trainer.args
    window, batch = args.gradient_accumulation_steps, args.steps_per_generation
    own = [name for name in ("credit", "selector") if name in args.own_functions()]
    own += ["credit"] if trainer.credit_method is not None and "credit" not in own else []
    text = model.config.get_text_config()
    rules = {
        f"steps_per_generation={batch} and gradient_accumulation_steps={window} do not divide each other": (
            batch % window != 0 != window % batch
        ),
        "loss_type='bnpo' divides by the tokens of a micro-batch": args.loss_type == "bnpo",
        "the entropy bonus is a mean over a micro-batch": (
            getattr(args, "entropy_coef", 0.0) != 0.0 or getattr(args, "use_adaptive_entropy", False)
        ),
        "the auxiliary loss of the experts is that of a micro-batch": getattr(
            trainer, "aux_loss_enabled", hasattr(text, "output_router_logits")
        ),
        "whiten_advantages='microbatch' compares the rows of a micro-batch": args.whiten_advantages == "microbatch",
        "top_entropy_quantile compares the tokens of a micro-batch": args.top_entropy_quantile < 1.0,
        f"{' and '.join(own)} of your own may compare the rows of a micro-batch": bool(own),
        "selector='random' draws by micro-batch": args.selector == "random",
        "the model draws at random (dropout or noise) by micro-batch": (
            args.neftune_noise_alpha is not None or is_random(model)
        ),
    }
    return [reason for reason, holds in rules.items() if holds]


def is_random(model: nn.Module) -> bool:
    """Whether a module drops something out while training, or adds noise."""
    return any(
        (isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0)
        or any(isinstance(x, float) and x > 0 and ("drop" in n or "jitter" in n) for n, x in vars(module).items())
        for module in model.modules()
    )
