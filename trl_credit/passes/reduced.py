"""The passes that are TRL's own, and passes over fewer tokens with the same gradients."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..loss import keys
from ..loss.loss_pass import LossPass
from .attention import sequence_attention, tree_attention
from .model_traits import is_random, positions_of
from .padding import Padding, Span, columns_of, is_by_row, rows_at, rows_of, trimmed
from .prefix_layout import Batching, MicroBatch, Packing, PromptRow, layout_of, zero_where
from .shared_prefix import SharedPrefix
from .zero_advantage import ZeroAdvantageSkips


OF_ACCELERATORS = 64  # widths there are multiples of 64, so that allocator and compiler see fewer shapes


class ReducedPasses:
    """Passes over fewer tokens with the gradients of TRL's own, by `length_sort`, `shared_prefix` and
    `skip_zero_advantage`. With all three off they are TRL's own.

    Args:
        trainer ([`~trl_credit.CreditTrainer`]):
            It has its model.
        forward (`Callable`):
            TRL's forward pass, bound to the trainer.

    Raises:
        ValueError: `shared_prefix="on"`, and the model cannot share prompts.

    Attributes:
        padding ([`~trl_credit.passes.padding.Padding`]): How rows are sorted and trimmed.
        prefix ([`~trl_credit.passes.shared_prefix.SharedPrefix`]): Whether rows share a prompt.
        reshapes: Whether passes may have other rows or columns than TRL's.
        skipping ([`~trl_credit.passes.zero_advantage.ZeroAdvantageSkips`]): Which micro-batches need no pass.
    """

    def __init__(self, trainer: Any, forward: Callable[..., tuple]) -> None:
        args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
        self._trainer, self._forward = trainer, forward
        kind = positions_of(model.config.get_text_config())
        of_device = 1 if trainer.processes.device.type == "cpu" else OF_ACCELERATORS
        multiple = math.lcm(of_device, getattr(args, "pad_to_multiple_of", None) or 1)
        self.padding = Padding(trainer, kind=kind, multiple=multiple)
        self.prefix = SharedPrefix(trainer, kind=kind, multiple=multiple, draws=is_random(model))
        self.reshapes = self.padding.trims or self.prefix.may_pack
        self.skipping = ZeroAdvantageSkips(trainer)
        self.skips, self.close_step = self.skipping.skips, self.skipping.close_step

    # Generation batches

    def arrange(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The micro-batches of a generation batch, as TRL cut it, in the form that passes compute. Collective."""
        padding = self.padding
        if self.reshapes and batches[0][keys.COMPLETION_IDS].size(1) > 0:
            if padding.window > 1 and not all(map(is_by_row, batches)):
                padding.keep_order("the tensors of its images do not have one entry per row")
            needed = self.skipping.credited(batches).tolist() if self.skipping.applies and padding.window > 1 else None
            rows, plain, shared = self.shared(batches, needed)
            if shared is not None or padding.trims:
                batches = self._arranged(batches, rows, plain if shared is None else shared)
        self.skipping.mark(batches)
        return batches

    def shared(
        self, batches: list[dict[str, Any]], needed: Sequence[bool] | None = None
    ) -> tuple[list[PromptRow], list[MicroBatch], list[MicroBatch] | None]:
        """The rows of the batches, and their micro-batches, plain and packed; `None` where they may not be packed. The
        first batch that would be packed is compared with plain rows. Collective."""
        names = (keys.PROMPT_MASK, keys.COMPLETION_MASK, *[keys.PROMPT_IDS] * self.prefix.may_pack)
        rows, is_whole = rows_of(*(torch.cat([batch[name] for batch in batches]) for name in names))
        batching = Batching(len(batches[0][keys.PROMPT_IDS]), self.padding.window, needed)
        plain, shared = self.padding.arrangement(rows, columns_of(batches[0]), batching), None
        if self.prefix.may_pack:
            shared = self.prefix.share(rows, plain, batching) if is_whole else None
            is_exact = self.prefix.verify(shared is not None, lambda: self._compared(batches, rows, shared))
            shared = shared if is_exact else None
        return rows, plain, shared

    def _arranged(
        self, batches: list[dict[str, Any]], rows: Sequence[PromptRow], chosen: Sequence[MicroBatch]
    ) -> list[dict[str, Any]]:
        arranged = []
        for batch, (places, _, packing) in zip(batches, chosen, strict=True):
            # images may have no entry per row where rows keep their order
            taken = rows_at(batches, places) if self.padding.window > 1 else dict(batch)
            arranged.append(self._formed(taken, [rows[k] for k in places], packing))
        return arranged

    def _formed(self, batch: dict[str, Any], rows: Sequence[PromptRow], packing: Packing | None) -> dict[str, Any]:
        """A micro-batch of these rows, trimmed, and with a layout where it is to be packed."""
        if self.padding.trims:
            there = columns_of(batch)
            span = self.padding.width(rows, there)
            is_tree = self._trainer.args.rollouts == "tree" and self._trainer.model.training
            batch = trimmed(batch, span, are_columns=is_tree)
            batch[keys.COLUMNS_CUT] = there.prompt - span.prompt
        if packing is not None:
            device = batch[keys.PROMPT_IDS].device
            batch[keys.PACKED_LAYOUT] = layout_of(packing, rows, widths=columns_of(batch), device=device)
        return batch

    @torch.no_grad()
    def _compared(
        self, batches: list[dict[str, Any]], rows: Sequence[PromptRow], shared: Sequence[MicroBatch] | None
    ) -> float | None:
        """By how many nats, on average, packing changes the log-probabilities of the first micro-batch that shares a
        prompt. Two passes, on every process."""
        packed = batches if shared is None else self._arranged(batches, rows, shared)
        batch = next((batch for batch in packed if keys.PACKED_LAYOUT in batch), packed[0])
        forms = batch | {keys.PACKED_LAYOUT: None}, batch
        plain, used = (self._pass(self._trainer.model, arguments_of(batch), {}, inputs=form)[0] for form in forms)
        if keys.PACKED_LAYOUT not in batch:
            return None
        mask_t = batch[keys.COMPLETION_MASK]
        return ((plain - used).abs().masked_fill(mask_t == 0, 0.0).sum() / mask_t.sum().clamp(min=1)).item()

    # Forward passes

    def run(self, model: Any, args: tuple, kwargs: dict[str, Any], loss_pass: LossPass | None) -> tuple:
        """TRL's forward pass, with log-probabilities 0 at padding. `loss_pass` is `None` for passes outside of a loss.

        A pass outside of a loss or without gradient is made in parts: of rows sorted by length, each part as wide as
        its rows need, or of rows sorted by prompt and packed. The result has the order and the width of the input.
        """
        if not self.reshapes or len(args) < 3:  # a TRL that passes tensors by name is left alone
            return self._forward(model, *args, **kwargs)
        width, *others = args[2:]
        options = kwargs | dict(zip(("batch_size", "compute_entropy"), others, strict=False))
        used = {name for name, x in options.items() if x is not None and x is not False}
        is_known = len(others) <= 2 and width > 0 and not used - {"batch_size", "compute_entropy", *keys.TYPE_IDS}
        may_pack = is_known and not used.intersection(keys.TYPE_IDS)
        inputs = {} if loss_pass is None else loss_pass.inputs
        if inputs.get(keys.PACKED_LAYOUT) is not None and may_pack:
            return self._pass(model, args[:3], options, inputs=inputs)
        if options.get("batch_size") is not None and (loss_pass is None or not torch.is_grad_enabled()) and is_known:
            return self._run_in_parts(model, args[:3], options, may_pack=may_pack)
        return self._pass(model, args, kwargs, inputs=inputs | {keys.PACKED_LAYOUT: None})

    def _pass(self, model: Any, args: tuple, kwargs: dict[str, Any], *, inputs: dict[str, Any]) -> tuple:
        """A forward pass over rows, packed where their `inputs` have a layout."""
        cut, layout = inputs.get(keys.COLUMNS_CUT, 0), inputs.get(keys.PACKED_LAYOUT)
        if layout is not None:
            ids = args[0].flatten()[layout.source]
            packing = layout.packing
            # the position number of each token in its unpacked row: the rounding of rotary angles depends on it
            positions, branches = layout.source % args[0].size(1) + cut, packing.branches
            with (
                sequence_attention(model, packing.ends, ids.device)
                if branches is None
                else tree_attention(model, branches=branches, position_ids=positions)
            ):
                output = self._forward(model, ids, layout.mask, packing.kept, **kwargs | {"batch_size": len(ids)})
            return tuple(None if x is None else layout.rows_of(x) for x in output)
        if not self.padding.trims:
            return self._forward(model, *args, **kwargs)
        with self.padding.numbered_from(cut, model):
            output = self._forward(model, *args, **kwargs)
        # before TRL 1.15, values at padding are not 0 and depend on the width of the pass
        return output[0].masked_fill(args[1][:, args[1].size(1) - args[2] :] == 0, 0.0), *output[1:]

    def _run_in_parts(self, model: Any, args: tuple, options: dict[str, Any], *, may_pack: bool) -> tuple:
        input_ids, attention_mask, width = args
        there = Span(input_ids.size(1) - width, width)
        tensors = [*input_ids.split(there, dim=1), *attention_mask.split(there, dim=1)]
        whole = dict(zip((*_IDS, *_MASKS), tensors, strict=True))
        whole |= {name: options[name] for name in keys.TYPE_IDS if options.get(name) is not None}
        may_pack = may_pack and self.prefix.packs
        rows, is_whole = rows_of(*tensors[2:], tensors[0] if may_pack else None)
        batching = Batching(options["batch_size"], len(rows))
        chosen = self.padding.arrangement(rows, there, batching)
        if may_pack and is_whole:
            chosen = self.prefix.share(rows, chosen, batching) or chosen
        results: list[torch.Tensor | None] = []
        for places, _, packing in chosen:
            index = torch.tensor(places, device=input_ids.device)
            part = self._formed(rows_at([whole], places), [rows[k] for k in places], packing)
            own = {name: part[name] for name in keys.TYPE_IDS if name in part} | {"batch_size": len(places)}
            output = self._pass(model, arguments_of(part), options | own, inputs=part)
            results = results or [None if x is None else x.new_zeros(len(rows), width, *x.shape[2:]) for x in output]
            for whole_t, part_t in zip(results, output, strict=True):
                if whole_t is not None:
                    whole_t[index, : part_t.size(1)] = zero_where(part[keys.COMPLETION_MASK] == 0, part_t)
        return tuple(results)


_IDS, _MASKS = (keys.PROMPT_IDS, keys.COMPLETION_IDS), (keys.PROMPT_MASK, keys.COMPLETION_MASK)


def arguments_of(batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Token ids and mask of prompts and completions, and the width of completions."""
    ids, mask = (torch.cat([batch[name] for name in names], dim=1) for names in (_IDS, _MASKS))
    return ids, mask, batch[keys.COMPLETION_IDS].size(1)
