"""Less padding: rows in the order of their lengths inside an accumulation window, micro-batches without idle columns.

TRL pads all rows of a generation batch to the longest one. An optimizer step is a sum over the rows of its window, so
that it does not matter which of them share a micro-batch: sorted, most micro-batches are narrow.
"""

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from accelerate.logging import get_logger
from peft import PeftModel
from torch import nn

from ..config import CreditConfig
from ..flops import rows_pass
from ..rollouts.shared_prefix import Arrangement, Layout, PromptRow, layout_of
from .prefix import SharedPrefix
from .row_order import (
    TYPE_IDS,
    Span,
    cheapest_order,
    columns_of,
    is_by_row,
    reordered,
    rows_of,
    trimmed,
    type_ids,
)


logger = get_logger(__name__)

OF_ACCELERATORS = 64  # widths are multiples of it there: fewer shapes for the allocator and the compiler
# entries of a micro-batch
BEFORE = "columns_before"  # how many columns it lost in front
LAYOUT = "packed_layout"  # how its rows are packed


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
        self._trainer = trainer
        self.trims = (args.length_sort == "auto" or args.rollouts == "tree") and kind != "scaled"
        self._trims_prompts = kind == "relative"
        plain = model.get_base_model() if isinstance(model, PeftModel) else model
        takes_positions = "position_ids" in inspect.signature(type(plain).forward).parameters
        # models with images make positions of their own
        self._numbers = takes_positions and model.config.get_text_config() is model.config
        on_cpu = trainer.accelerator.device.type == "cpu"
        self._multiple = math.lcm(1 if on_cpu else OF_ACCELERATORS, getattr(args, "pad_to_multiple_of", None) or 1)
        self.prefix = SharedPrefix(trainer, kind=kind, multiple=self._multiple, draws=is_random(model))
        self.window = min(args.steps_per_generation, args.gradient_accumulation_steps)
        if args.length_sort == "off" or not self.trims:
            self.window = 1
        elif self.window > 1 and (reasons := _reasons(trainer, model)):
            self._say(reasons[0])
        if args.length_sort == "auto" and kind != "relative":
            left = "padding" if kind == "scaled" else "padding of prompts"
            logger.warning("length_sort='auto' leaves the %s, on which the positions of this model depend", left)

    @property
    def acts(self) -> bool:
        """Whether passes may be others than TRL's."""
        return self.trims or self.prefix.may_pack

    def _say(self, reason: str) -> None:
        self.window = 1
        logger.warning("length_sort='auto' trims padding and does not sort rows by length: %s", reason)

    def arranged(
        self, batches: list[dict[str, Any]], *, are_columns: bool, credited: torch.Tensor | None = None
    ) -> list[dict[str, Any]]:
        """The micro-batches of a generation batch, as TRL cut it, with less padding, or packed. Collective.

        Args:
            are_columns (`bool`):
                Whether `token_type_ids` are numbers of columns.
            credited (`torch.Tensor`, *optional*):
                Which rows, one micro-batch after the other, have a gradient, where others need no pass.
        """
        prefix = self.prefix
        if not self.acts or batches[0]["completion_ids"].size(1) == 0:
            return batches
        if self.window > 1 and not all(map(is_by_row, batches)):
            self._say("the tensors of its images have not one entry per row")
        names = ("prompt_mask", "completion_mask", *["prompt_ids"] * prefix.may_pack)
        rows, is_whole = rows_of(**{name: torch.cat([batch[name] for batch in batches]) for name in names})
        size = len(batches[0]["prompt_ids"])
        needed = None if credited is None or self.window == 1 else credited.tolist()
        plain = self._plain(rows, size, columns_of(batches[0]), window=self.window, needed=needed)
        if prefix.may_pack:
            how = {"size": size, "window": self.window, "needed": needed}
            shared = prefix.share(rows, plain.costs, **how) if is_whole else None

            def compared() -> torch.Tensor | None:
                return self._compared(batches, rows, shared, are_columns=are_columns)

            if prefix.verify(shared is not None and shared.is_worth_it, compared):
                return self._made(batches, rows, shared, are_columns=are_columns)
        return self._made(batches, rows, plain, are_columns=are_columns) if self.trims else batches

    def _plain(
        self,
        rows: Sequence[PromptRow],
        size: int,
        there: Span,
        *,
        window: int,
        needed: Sequence[bool] | None = None,
    ) -> Arrangement:
        """Micro-batches of `size` plain rows, the cheapest way. Those without a row that is `needed` cost nothing."""
        order, costs = [], []
        for start in range(0, len(rows), size * window):
            spans = [Span(row.prompt, row.response) for row in rows[start : start + size * window]]
            own = None if needed is None else needed[start : start + len(spans)]
            places = cheapest_order(spans, size, needed=own) if self.trims else [*range(len(spans))]
            for part in (places[i : i + size] for i in range(0, len(places), size)):
                span = self.width([spans[k] for k in part], there)
                is_made = own is None or any(own[k] for k in part)
                costs.append(rows_pass(len(part) * is_made, length=sum(span), scored=span.completion))
            order += [start + k for k in places]
        return Arrangement(order, costs, [None] * len(costs))

    def _made(
        self, batches: list[dict[str, Any]], rows: Sequence[PromptRow], wanted: Arrangement, *, are_columns: bool
    ) -> list[dict[str, Any]]:
        size, found = len(batches[0]["prompt_ids"]), []
        for start in range(0, len(batches), self.window):
            part, first = batches[start : start + self.window], start * size
            order = [k - first for k in wanted.order[first : first + size * len(part)]]
            found += reordered(part, order) if order != [*range(len(order))] else map(dict, part)
        for i, batch in enumerate(found):
            own, there = [rows[k] for k in wanted.order[i * size : (i + 1) * size]], columns_of(batch)
            if self.trims:
                span = self.width([Span(row.prompt, row.response) for row in own], there)
                batch = trimmed(batch, span, are_columns=are_columns) | {BEFORE: there.prompt - span.prompt}
            if (packing := wanted.packings[i]) is not None:
                widths, device = columns_of(batch), batch["prompt_ids"].device
                batch[LAYOUT] = layout_of(packing, own, widths=widths, device=device)
            found[i] = batch
        return found

    def _compared(
        self,
        batches: list[dict[str, Any]],
        rows: Sequence[PromptRow],
        shared: Arrangement | None,
        *,
        are_columns: bool,
    ) -> torch.Tensor | None:
        """What packing the first micro-batch that shares a prompt changes. Two passes, on any process."""
        packed = batches if shared is None else self._made(batches, rows, shared, are_columns=are_columns)
        batch = next((batch for batch in packed if LAYOUT in batch), packed[0])
        layout = batch.get(LAYOUT)
        logps = [self._trainer.micro_batch_logps(batch, layout=used) for used in (None, layout)]
        return None if layout is None else self.prefix.difference(*logps, batch["completion_mask"])

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
        layout: Layout | None,
        **named: Any,
    ) -> tuple:
        """TRL's forward pass, with 0 for the log-probabilities of padding.

        A pass over a batch without a gradient is made in the order of lengths, each part of it as wide as its rows, or
        in that of prompts, packed; what comes back has the order and the width of what was given.

        Args:
            forward (`Callable`):
                TRL's method, which all else is passed to.
            are_columns (`bool`):
                Whether `token_type_ids` are numbers of columns.
            before (`int`):
                Columns that the rows have lost in front.
            layout ([`Layout`] or `None`):
                Of these rows, where they are to be packed.
        """
        given = named | dict(zip(("batch_size", "compute_entropy"), others, strict=False))
        size, used = given.get("batch_size"), {name for name, x in given.items() if x is not None and x is not False}
        is_plain = len(others) <= 2 and width > 0 and not used - {"batch_size", "compute_entropy", *TYPE_IDS}
        if layout is not None and is_plain and not used.intersection(TYPE_IDS):
            return self.prefix.forward(forward, model, input_ids, layout, first=before, **given)
        if size is None or torch.is_grad_enabled() or not is_plain:
            if not self.trims:
                return forward(model, input_ids, attention_mask, width, *others, **named)
            with self._numbered_from(before, model):
                output = forward(model, input_ids, attention_mask, width, *others, **named)
            # an older TRL has numbers there, which need not be those of a pass that was less wide
            return output[0].masked_fill(attention_mask[:, attention_mask.size(1) - width :] == 0, 0.0), *output[1:]
        there = Span(input_ids.size(1) - width, width)
        may_pack = self.prefix.packs and not used.intersection(TYPE_IDS)
        ids = {"prompt_ids": input_ids[:, : there.prompt]} if may_pack else {}
        masks = attention_mask.split([there.prompt, width], dim=1)
        rows, is_whole = rows_of(*masks, **ids)
        wanted = self._plain(rows, size, there, window=len(rows))
        if may_pack and is_whole:
            shared = self.prefix.share(rows, wanted.costs, size=size, window=len(rows))
            wanted = shared if shared is not None and shared.is_worth_it else wanted
        if not (self.trims or any(wanted.packings)):
            return forward(model, input_ids, attention_mask, width, *others, **named)
        found: list[torch.Tensor | None] = []
        for i, packing in enumerate(wanted.packings):
            places = wanted.order[i * size : (i + 1) * size]
            own, index = [rows[k] for k in places], torch.tensor(places, device=input_ids.device)
            if packing is not None:
                layout = layout_of(packing, own, widths=there, device=input_ids.device)
                part_ids = input_ids[index]
                output = self.prefix.forward(forward, model, part_ids, layout, first=0, **given)
                mask = attention_mask[index, there.prompt :]
            else:
                span = self.width([Span(row.prompt, row.response) for row in own], there) if self.trims else there
                drop = there.prompt - span.prompt
                columns = slice(drop, there.prompt + span.completion)
                part = given | {"batch_size": len(places)}
                for name in used.intersection(TYPE_IDS):
                    part[name] = type_ids(given[name][index], drop, columns, are_columns=are_columns)
                part_ids, mask = input_ids[index, columns], attention_mask[index, columns]
                with self._numbered_from(drop, model):
                    output = forward(model, part_ids, mask, span.completion, **part)
                mask = mask[:, span.prompt :]
            found = found or [None if x is None else x.new_zeros(len(rows), width) for x in output]
            for whole_t, part_t in zip(found, output, strict=True):
                if whole_t is not None:
                    whole_t[index, : part_t.size(1)] = part_t.masked_fill(mask == 0, 0.0)
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
