"""A trainer that makes its generation batches by the run's source, with what does not depend on which one that is."""

import contextlib
import math
from typing import Any

import torch

from ..assignment import mask_reads_logps
from ..config import CreditConfig
from ..credit.difficulty import difficulty_weight
from ..rollouts.forest import Forest
from ..rollouts.shared_prefix import Layout
from ..rollouts.sources import Made, Responses, Trees, make_source
from .batches import Batch, replace_last, shown_advantages
from .belief import make_belief
from .engine_calls import engine_awake, temporarily
from .live import known_policy_mask, whitened
from .metrics import difficulty_statistics, group_statistics, response_hashes
from .normalizer import Normalizer, prompt_weights
from .padding import BEFORE, LAYOUT, Padding
from .reported import ReportedTrainer
from .without_credit import WithoutCredit


class BatchTrainer(ReportedTrainer):
    """[`ReportedTrainer`] whose batches have their difficulty weight, their M, and what the loss divides by.

    Attributes:
        difficulty: HA-DW's belief, `None` without one.
    """

    def __init__(self, model: Any, reward_funcs: Any, args: CreditConfig, **kwargs: Any) -> None:
        self.difficulty = make_belief(args)
        self._normalizer = Normalizer(args)
        self._trained_source: Responses | None = None
        self._columns_before = 0  # that the rows of the loss at work have lost in front
        self._layout: Layout | None = None  # by which they are packed
        super().__init__(model, reward_funcs, args, **kwargs)
        self._plain_source = Responses(self)
        self._trained_source = make_source(self, model_config=self.model.config)
        self._padding = Padding(self)
        self._without_credit = WithoutCredit(self)
        self.add_callback(self._without_credit)

    @property
    def source(self) -> Responses:
        """Where the batches of the mode that runs come from. An evaluation is always of plain responses."""
        return self._trained_source if self.model.training else self._plain_source

    @property
    def forest(self) -> Forest | None:
        """The trees that a run trains on, `None` without trees."""
        return self._trained_source.forest if isinstance(self._trained_source, Trees) else None

    def _prepare_inputs(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(*args, **kwargs)
        if not self.model.training or self._buffered_inputs is before:
            return inputs
        batches, skips = self._buffered_inputs, self._without_credit
        how = {"credited": skips.credited(batches)} if skips.applies else {}
        self._buffered_inputs = self._padding.arranged(batches, are_columns=self.source.types_are_columns, **how)
        skips.mark(self._buffered_inputs)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        with temporarily(self, _columns_before=inputs.get(BEFORE, 0), _layout=inputs.get(LAYOUT)):
            return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        forward = super()._get_per_token_logps_and_entropies
        if not self._padding.acts or len(args) < 4:  # a TRL that passed tensors by name would be left alone
            return forward(*args, **kwargs)
        how = {"are_columns": self.source.types_are_columns, "before": self._columns_before, "layout": self._layout}
        return self._padding.forward(forward, *args, **how, **kwargs)

    def found(self) -> dict[str, Any]:
        return {"shared_prefix_is_exact": self._padding.prefix.is_exact}

    def load_found(self, found: dict[str, Any]) -> None:
        self._padding.prefix.is_exact = found.get("shared_prefix_is_exact")

    @torch.no_grad()
    def micro_batch_logps(self, batch: dict[str, Any], *, layout: Layout | None) -> torch.Tensor:
        """Log-probabilities (nats) of a micro-batch, shape (B, T), by the pass that its loss would make."""
        ids, mask = (
            torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], dim=1) for name in ("ids", "mask")
        )
        with temporarily(self, _columns_before=batch.get(BEFORE, 0), _layout=layout):
            return self._get_per_token_logps_and_entropies(self.model, ids, mask, batch["completion_ids"].size(1))[0]

    def make_batch(self, inputs: list[dict[str, Any]]) -> Made:
        """The batch of rows of the data set, every prompt repeated, ready for TRL to cut. Collective."""
        source = self.source
        source.check(inputs)
        with engine_awake(self) if source.has_phases else contextlib.nullcontext():
            made = source.make(inputs)
        batch, advantages = made.batch, made.advantages
        if self.difficulty is not None:
            advantages = self._weight_by_difficulty(advantages, made.p_hat, made.accuracy)
        batch.advantages = advantages
        self._keep_mask(batch)
        self._count_and_log(made)
        return made

    def _keep_mask(self, batch: Batch) -> None:
        """M of the whole batch, and the whitening over it.

        No forward pass is made for it alone unless one of those that need it asks.
        """
        whitens = self.args.whiten_advantages == "batch"
        if mask_reads_logps(self.args):
            # a function of one's own sees whole batches, whatever the loss: it may compare rows
            own = "token_mask" in self.args.own_functions()
            if whitens or own or self._normalizer.needs_mask_early:
                self.fill_old_logps(batch)
            if batch.old_logp_t is None:
                return  # the loss makes it, from its own pass
        mask_t = batch.mask_t
        kept_t = known_policy_mask(self.args, batch.data, old_logp_t=batch.old_logp_t, mask_t=mask_t)
        if whitens:
            batch.advantages = whitened(batch.advantages, kept_t, mask_t, reduce=self.sum_over_processes)
        if kept_t is not mask_t:
            batch.policy_mask_t = kept_t

    def _count_and_log(self, made: Made) -> None:
        """What the loss divides by, the groups, and the advantages of the table of completions: what all processes have
        of their rows, by one collective call, or none.

        Advantages take the place of TRL's: those of rows as the loss uses them (before a whitening by micro-batch),
        those of a chain as sums over its segments.
        """
        batch, columns = made.batch, {}
        kept_t = batch.mask_t if batch.policy_mask_t is None else batch.policy_mask_t
        recounts = self._normalizer.counts_batch and (kept_t is batch.policy_mask_t or batch.segment_ids is not None)
        if recounts or self.args.prompt_average:
            columns["kept"] = kept_t.sum(-1).long()
        if self.args.prompt_average:
            rows = torch.arange(len(kept_t), device=self.device) + self.rank * len(kept_t)
            # rows in the order of their prompts, whose groups may begin on one process and end on the next
            columns["prompts"] = rows // self.group_size if made.prompts is None else made.prompts
        if not made.is_logged:
            ids, pad = batch.data["completion_ids"], self._tokenizer.pad_token_id
            columns["hashes"] = response_hashes(ids, pad_token_id=pad)
            columns["shown"] = shown_advantages(self.args, batch) if made.logged is None else made.logged
        if made.credited is not None:
            columns["credited"] = made.credited
        if not columns:
            return
        found = dict(zip(columns, self.gather_columns(*columns.values()), strict=True))
        if recounts:
            batch.count_loss_tokens(found["kept"].sum())
        if self.args.prompt_average:
            batch.row_weight = batch.own_rows(prompt_weights(found["kept"], found["prompts"]))
        if not made.is_logged:
            replace_last(self._logs["advantages"], found["shown"].tolist())
            given = {"num_generations": self.group_size, "credited": found.get("credited")}
            self._append(group_statistics(batch.rewards, found["hashes"], **given).items())

    def _weight_by_difficulty(self, advantages: torch.Tensor, p_hat: torch.Tensor, accuracy: float) -> torch.Tensor:
        """`advantages` of shape (B,) or (B, T), `p_hat` (B,). A NaN `accuracy` (nothing scored) changes nothing."""
        if math.isnan(accuracy):
            return advantages
        p_hat = p_hat if advantages.dim() == 1 else p_hat.unsqueeze(1).expand_as(advantages)
        prior = self.difficulty.prior(accuracy)
        phi = difficulty_weight(advantages, p_hat=p_hat, prior=prior, scale=self.args.difficulty_scale)
        self._metrics["train" if self.model.training else "eval"]["credit/difficulty_belief"].append(prior)
        self.record(difficulty_statistics(phi, advantages, p_hat=p_hat, prior=prior))
        # an evaluation sees other prompts and must not move the belief, which the rest of a batch has moved already
        if self.model.training and not self._resumes_inside:
            if (step := self.difficulty.update(accuracy)) is not None:
                self._metrics["train"]["credit/difficulty_rate"].append(step.rate)
                self._metrics["train"]["credit/difficulty_floor"].append(float(step.is_floor))
        return advantages * phi
