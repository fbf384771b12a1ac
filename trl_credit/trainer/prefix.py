"""Prompts that several rows of a micro-batch have in common, computed once: whether, and the passes themselves.

Credit, loss and metrics see the (B, T) tensors that they always see. What a pass computes is decided here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate.logging import get_logger
from torch import nn

from ..config import CreditConfig
from ..flops import Cost, Pass, cost_of, cost_of_calls, rows_pass
from ..rollouts.attention import branch_problem, takes_branches, tree_attention
from ..rollouts.shared_prefix import Arrangement, Layout, Packing, PromptRow, by_prompt, packing_of


logger = get_logger(__name__)

GAIN = 1.3  # by which `auto` wants packed passes to cost less: what is reckoned leaves out copies
# Nats between packed and plain rows, on average over tokens. Rounding is far below, and a token that sees what it
# should not, or stands at another place, far above.
TOLERANCE, OF_HALF = 1e-3, 0.05


class SharedPrefix:
    """Decides by `shared_prefix`, the model and the rows of each batch.

    Args:
        trainer ([`CreditTrainer`]):
            With its model.
        kind (`str`):
            What the positions of the model depend on: "relative" if padding in front of a row changes nothing.
        multiple (`int`):
            What lengths are rounded up to.
        draws (`bool`):
            Whether the model draws at random (dropout, noise) while it trains.

    Attributes:
        is_exact: Whether packed rows were found to have the log-probabilities of plain ones; `None` before the first
            batch that would be packed. Kept in checkpoints.

    Raises:
        ValueError: `shared_prefix="on"`, and the model cannot.
    """

    def __init__(self, trainer: Any, *, kind: str, multiple: int, draws: bool) -> None:
        args: CreditConfig = trainer.args
        model = trainer.accelerator.unwrap_model(trainer.model)
        self._trainer, self._mode, self._multiple = trainer, args.shared_prefix, multiple
        self.is_exact: bool | None = None
        # whose packed rows share prompts already
        self.may_pack = args.shared_prefix != "off" and not (args.rollouts == "tree" and args.tree_rows == "packed")
        cost = cost_of(model.config)
        problem = _problem(trainer, model, kind) if self.may_pack else None
        if problem is None and cost is None:
            problem = "needs to know the size of the model's layers, and its configuration does not say it"
        if self.may_pack and args.shared_prefix == "on" and problem is not None:
            raise ValueError(f"shared_prefix='on' {problem}; or set shared_prefix='auto'.")
        self.may_pack &= problem is None and not (draws and args.shared_prefix == "auto")
        # with `on` the rows of a prompt share what is drawn for it: there is nothing to compare
        self._draws = draws
        self.cost = cost or Cost(1.0, 0.0, 0.0)
        self._of_a_call = cost_of_calls(model.config, trainer.accelerator.device.type, 1)

    @property
    def packs(self) -> bool:
        """Whether rows may be packed without a look at what that changes: it was taken, or would say nothing."""
        return self.may_pack and (self._draws or bool(self.is_exact))

    def share(
        self,
        rows: Sequence[PromptRow],
        plain: Sequence[Pass],
        *,
        size: int,
        window: int,
        needed: Sequence[bool] | None = None,
    ) -> Arrangement | None:
        """How the rows of a batch would be packed, `None` where no micro-batch has two with one prompt.

        Args:
            rows (sequence of [`PromptRow`]):
                In the order in which they are.
            plain (sequence of [`~trl_credit.flops.Pass`]):
                The passes over plain rows.
            size, window (`int`):
                Rows of a micro-batch, and micro-batches whose rows may be exchanged.
            needed (sequence of `bool`, *optional*):
                Which rows are: micro-batches without one of them need no pass, and come first.
        """
        order: list[int] = []
        costs: list[Pass] = []
        packings: list[Packing | None] = []
        for start in range(0, len(rows), size * window):
            part = range(start, min(start + size * window, len(rows)))
            own = [part[i] for i in by_prompt([rows[k] for k in part])] if window > 1 else [*part]
            if needed is not None:
                own.sort(key=lambda k: needed[k])
            for places in (own[i : i + size] for i in range(0, len(own), size)):
                together = [rows[k] for k in places]
                packing = packing_of(together, multiple=self._multiple)
                longest = max(row.prompt for row in together), max(1, *(row.response for row in together))
                cost = packing.cost if packing else rows_pass(len(together), length=sum(longest), scored=longest[1])
                is_made = needed is None or any(needed[k] for k in places)
                costs.append(cost if is_made else Pass(0, 0, 0))
                packings.append(packing)
            order += own
        if not any(packings):
            return None
        before, after = (sum(map(self.cost.forward, passes)) for passes in (plain, costs))
        made = (x.calls for x, cost in zip(packings, costs, strict=True) if x is not None and cost.tokens)
        is_worth_it = before >= GAIN * after and before - after >= self._of_a_call * sum(made)
        return Arrangement(order, costs, packings, is_worth_it=self._mode == "on" or is_worth_it)

    def verify(self, wants: bool, compared: Callable[[], torch.Tensor | None]) -> bool:
        """Whether this process may pack, after the first look at whether it changes anything. Collective until then.

        Args:
            wants (`bool`):
                Whether it would.
            compared (`Callable`):
                Makes plain and packed passes over a micro-batch, and returns their mean difference in nats, and the
                most that it may be; `None` where that shares no prompt. Called on all processes or none.

        Raises:
            ValueError: `shared_prefix="on"`, and log-probabilities differ.
        """
        if self.is_exact is None and not self._draws and self._trainer.largest(int(wants)):
            found = compared()
            failed = found is not None and not bool(found[0] <= found[1])  # not <=, or a NaN would pass
            self.is_exact = not self._trainer.largest(int(failed))
            if not self.is_exact:
                far = f"{found[0]:.2g} nats per token away from" if failed else "unlike"
                message = f"log-probabilities of rows with a shared prompt are {far} those of plain rows of this model"
                if self._mode == "on":
                    raise ValueError(f"shared_prefix='on': {message}: set shared_prefix='off'.")
                logger.warning("shared_prefix='auto' leaves rows as they are: %s", message)
        return wants and self.packs

    def difference(self, plain: torch.Tensor, packed: torch.Tensor, mask_t: torch.Tensor) -> torch.Tensor:
        """What `verify` compares, of log-probabilities of shape (B, T)."""
        count = mask_t.sum().clamp(min=1)
        mean = ((plain - packed).abs().masked_fill(mask_t == 0, 0.0).sum() / count).double()
        weights = next(self._trainer.accelerator.unwrap_model(self._trainer.model).parameters()).dtype
        is_whole = self._trainer.accelerator.mixed_precision not in ("bf16", "fp16", "fp8") and weights.itemsize >= 4
        return torch.stack([mean, mean.new_tensor(TOLERANCE if is_whole else OF_HALF)])

    def forward(
        self,
        forward: Callable[..., tuple],
        model: nn.Module,
        input_ids: torch.Tensor,
        layout: Layout,
        /,
        *,
        first: int,
        **given: Any,
    ) -> tuple:
        """TRL's forward pass over packed rows; returns tensors of shape (B, T), with 0 at padding.

        Args:
            forward (`Callable`):
                TRL's method.
            input_ids (`torch.Tensor`):
                Of plain rows, shape (B, P + T).
            first (`int`):
                Number of their first column, by which their tokens are numbered.
        """
        ids = input_ids.flatten()[layout.source]
        # the number that a token has among plain rows: rotary angles are rounded by it
        positions = layout.source % input_ids.size(1) + first
        with tree_attention(model, branches=layout.branches, position_ids=positions):
            output = forward(model, ids, layout.mask, layout.kept, **given | {"batch_size": len(ids)})
        return tuple(None if x is None else layout.rows_of(x) for x in output)


def _problem(trainer: Any, model: nn.Module, kind: str) -> str | None:
    """Why passes over packed rows are not those of plain ones."""
    config = model.config
    text = config.get_text_config()
    if text is not config:
        return "needs a model of text alone, and this one has images or sound as well"
    if getattr(trainer, "aux_loss_enabled", False) or getattr(text, "output_router_logits", False):
        return "cannot balance experts, whose auxiliary loss counts plain rows: set router_aux_loss_coef=0"
    if kind != "relative":
        return "needs positions of which distances alone count (rotary embeddings that are not scaled by length)"
    if (problem := branch_problem(config, known=("sdpa",))) is not None:
        return problem
    if not takes_branches(model):
        return f"needs layers that hand on what they are given, and {text.model_type!r} has others"
    if trainer.args.torch_compile:
        return "is another pass for each batch, which would be compiled anew: set torch_compile=False"
    return None
