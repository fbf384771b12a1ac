"""Rows of a micro-batch packed into one: prompts that several rows share are computed once, or, where attention cannot
do that, no padding is computed. Credit, loss and metrics see unpacked tensors."""

from collections.abc import Callable, Sequence
from typing import Any

from accelerate.logging import get_logger
from torch import nn

from .attention import KERNELS, branch_problem, takes_branches, takes_packed_sequences
from .flops import Pass, cost_of, cost_of_calls, rows_pass
from .padding import longest
from .prefix_layout import Batching, MicroBatch, Packing, PromptRow, arranged, by_prompt, packed_sequences, packing_of


logger = get_logger(__name__)

# among a run's findings; checkpoints have these names
IS_EXACT, SEQUENCES_ARE_EXACT = "shared_prefix_is_exact", "rows_end_to_end_are_exact"
# "auto" packs where passes cost less by this factor, since the estimate leaves out the copies that shared prompts take,
# or have fewer tokens by this factor
GAIN, WITHOUT_COPIES = 1.3, 1.05
_OTHER_ATTENTION = (
    "shared_prefix='auto' computes each prompt once per row with attn_implementation=%r. With 'sdpa' rows can share "
    "their prompt: set model_init_kwargs={'attn_implementation': 'sdpa'} if prompts are long."
)
# Largest mean difference in nats between packed and unpacked rows, in float32 and in lower precision. Rounding causes
# far smaller differences; a wrong attention mask or a wrong position causes far larger ones.
TOLERANCE, OF_HALF = 1e-3, 0.05


class SharedPrefix:
    """Decides which rows share a prompt, by `shared_prefix`, the model and the rows of each batch.

    Args:
        trainer ([`~trl_credit.CreditTrainer`]):
            It has its model. Its `findings` keep whether packing is exact, also in checkpoints.
        kind (`str`):
            What the positions of the model depend on, see [`~trl_credit.passes.model_traits.positions_of`].
        multiple (`int`):
            Lengths are rounded up to a multiple of it.
        draws (`bool`):
            Whether the model draws at random (dropout, noise) while it trains.

    Raises:
        ValueError: `shared_prefix="on"`, and the model cannot share prompts.
    """

    def __init__(self, trainer: Any, *, kind: str, multiple: int, draws: bool) -> None:
        args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
        self._trainer, self._mode, self._multiple = trainer, args.shared_prefix, multiple
        # with "on", rows of one prompt share its random draws, so a comparison says nothing
        self._draws, self._packs_sequences = draws, False
        implementation, is_auto = model.config.get_text_config()._attn_implementation, self._mode == "auto"
        self.cost, problem = cost_of(model.config), "is not wanted"
        # packed rows of trees share prompts already
        if self._mode != "off" and not (args.rollouts == "tree" and args.tree_rows == "packed"):
            problem = _problem(trainer, model, kind)
            if problem is not None and is_auto and not draws:
                if _problem(trainer, model, kind, known=implementation) is None:  # attention is all that is in the way
                    self._packs_sequences = implementation in KERNELS and takes_packed_sequences(model)
                    problem = None if self._packs_sequences else problem
                    logger.warning(_OTHER_ATTENTION, implementation)
            if problem is not None and not is_auto:
                raise ValueError(f"shared_prefix='on' {problem}; or set shared_prefix='auto'.")
        self._finding = SEQUENCES_ARE_EXACT if self._packs_sequences else IS_EXACT
        trainer.findings.setdefault(self._finding, None)
        self.may_pack = problem is None and not (draws and is_auto)
        self._of_a_call = cost_of_calls(model.config, trainer.processes.device.type, 1)

    @property
    def is_exact(self) -> bool | None:
        """Whether packed rows were found to have the log-probabilities of unpacked ones; `None` before the first batch
        that would be packed."""
        return self._trainer.findings[self._finding]

    @property
    def packs(self) -> bool:
        """Whether rows may be packed without comparing first: they were compared, or comparing would say nothing."""
        return self.may_pack and (self._draws or bool(self.is_exact))

    def share(self, rows: Sequence[PromptRow], plain: list[MicroBatch], batching: Batching) -> list[MicroBatch] | None:
        """How to pack the rows of a batch; `None` if no two rows of a micro-batch share a prompt or, with "auto", if
        packing saves too little. Micro-batches without a row that is needed come first.

        Args:
            rows (sequence of [`PromptRow`]):
                Rows in TRL's order.
            plain (sequence of [`MicroBatch`]):
                The micro-batches of unpacked rows.
            batching ([`Batching`]):
                How the batch is cut.
        """
        packed = packed_sequences if self._packs_sequences else packing_of

        def order(part: Sequence[PromptRow], needed: Sequence[bool] | None) -> Sequence[int]:
            places = by_prompt(part) if batching.window > 1 else range(len(part))
            return places if needed is None else sorted(places, key=lambda k: needed[k])

        def form(part: Sequence[PromptRow]) -> tuple[Pass, Packing | None]:
            if (packing := packed(part, multiple=self._multiple)) is not None:
                return packing.cost, packing
            span = longest(part)
            return rows_pass(len(part), length=sum(span), scored=span.completion), None

        shared = arranged(rows, batching, order=order, form=form)
        if not any(batch.packing for batch in shared):
            return None
        if self._packs_sequences:  # attention and the head skip the padding of plain rows too
            tokens, left = (sum(batch.cost.tokens for batch in batches) for batches in (plain, shared))
            return shared if tokens >= WITHOUT_COPIES * left else None
        before, after = (sum(self.cost.forward(batch.cost) for batch in batches) for batches in (plain, shared))
        calls = sum(len(batch.packing.branches.calls) for batch in shared if batch.packing and batch.cost.tokens)
        is_worth_it = before >= GAIN * after and before - after >= self._of_a_call * calls
        return shared if self._mode == "on" or is_worth_it else None

    def verify(self, would_pack: bool, compared: Callable[[], float | None]) -> bool:
        """Whether this process may pack. Packed and plain rows are compared once; calls are collective until then.

        Args:
            would_pack (`bool`):
                Whether this process would pack.
            compared (`Callable`):
                Makes plain and packed passes over a micro-batch, and returns their mean difference in nats; `None`
                where the micro-batch shares no prompt. Called on all processes or none.

        Raises:
            ValueError: `shared_prefix="on"`, and log-probabilities differ.
        """
        trainer = self._trainer
        if self.is_exact is None and not self._draws and trainer.processes.max(int(would_pack)):
            weights = next(trainer.accelerator.unwrap_model(trainer.model).parameters()).dtype
            is_whole = trainer.accelerator.mixed_precision not in ("bf16", "fp16", "fp8") and weights.itemsize >= 4
            difference = compared()
            # NaN fails too
            failed = difference is not None and not difference <= (TOLERANCE if is_whole else OF_HALF)
            trainer.findings[self._finding] = not trainer.processes.max(int(failed))
            if not self.is_exact:
                message = f"log-probabilities of packed rows differ from plain ones (nats per token: {difference})"
                if self._mode == "on":
                    raise ValueError(f"shared_prefix='on': {message}: set shared_prefix='off'.")
                logger.warning("shared_prefix='auto' leaves rows unpacked: %s", message)
        return would_pack and self.packs


def _problem(trainer: Any, model: nn.Module, kind: str, *, known: str = "sdpa") -> str | None:
    """Why passes over packed rows would differ from those over unpacked ones; `None` if they would not, with the
    `known` implementation of attention."""
    config, text = model.config, model.config.get_text_config()
    if text is not config:
        return "needs a text-only model, and this one takes images or sound as well"
    if getattr(trainer, "aux_loss_enabled", False) or getattr(text, "output_router_logits", False):
        return "cannot balance experts, whose auxiliary loss counts plain rows: set router_aux_loss_coef=0"
    if kind != "relative":
        return "needs relative positions (rotary embeddings that are not scaled by length)"
    if (problem := branch_problem(config, known=(known,))) is not None:
        return problem
    if known == "sdpa" and not takes_branches(model):
        return f"needs layers that pass keyword arguments on to attention, and those of {text.model_type!r} do not"
    if trainer.args.torch_compile:
        return "makes another pass for each batch, which would be compiled again: set torch_compile=False"
    if cost_of(config) is None:
        return "needs to know the size of the model's layers, and its configuration does not give it"
    return None
