"""What every generation batch goes through, wherever its rows come from: difficulty weight, M, whitening, counts."""

import math

import torch

from ..config.rules import batch_statistics_of, no_batch_logps
from ..credit.advantages import whiten
from ..credit.difficulty import DifficultyBelief, difficulty_weight
from ..loss import keys, statistics
from ..loss.batch import shown_advantages
from ..loss.custom_credit import CustomCredit
from ..loss.loss_pass import known_policy_mask
from ..loss.metrics import difficulty_statistics, group_statistics, response_hashes
from ..loss.normalizer import Normalizer, prompt_weights
from ..rollouts.sources import GenerationBatch
from ..support.digests import seed_from
from .engine import TrlEngine


class BatchSteps:
    """The steps that turn a source's batch into the one that TRL cuts into micro-batches, in their order.

    Args:
        engine ([`TrlEngine`]):
            The trainer's engine. Makes the pass for π_old where a step needs it.
        normalizer ([`~trl_credit.loss.normalizer.Normalizer`]):
            Which tokens the loss divides by.
        belief ([`~trl_credit.credit.difficulty.DifficultyBelief`] or `None`):
            HA-DW's belief.
        credit ([`~trl_credit.loss.custom_credit.CustomCredit`]):
            The credit function, which may declare statistics of the batch.
    """

    def __init__(
        self, engine: TrlEngine, normalizer: Normalizer, belief: DifficultyBelief | None, credit: CustomCredit
    ) -> None:
        self._args, self._engine, self._normalizer, self._belief = engine.args, engine, normalizer, belief
        self._statistics = batch_statistics_of(credit.declaring, engine.args)
        self._meter, self._processes = engine.meter, engine.processes

    def __call__(self, made: GenerationBatch) -> None:
        """Applies all steps to a batch. Collective."""
        self.weight_by_difficulty(made)
        self.make_mask(made)
        self.take_statistics(made)
        self.count_and_log(made)

    def weight_by_difficulty(self, made: GenerationBatch) -> None:
        """Multiplies advantages by HA-DW's weight, and moves the belief. A batch without a score changes nothing."""
        belief = self._belief
        if belief is None or math.isnan(made.accuracy):
            return
        advantages, prior = made.advantages, belief.prior(made.accuracy)
        p_hat = made.p_hat if advantages.dim() == 1 else made.p_hat.unsqueeze(1).expand_as(advantages)
        phi = difficulty_weight(advantages, p_hat=p_hat, prior=prior, scale=self._args.difficulty_scale)
        made.batch.advantages = advantages * phi
        self._meter.append([("difficulty_belief", prior)])
        self._meter.record(difficulty_statistics(phi, advantages, p_hat=p_hat, prior=prior))
        if made.moves_belief and (step := belief.update(made.accuracy)) is not None:
            self._meter.append([("difficulty_rate", step.rate), ("difficulty_floor", float(step.is_floor))])

    def make_mask(self, made: GenerationBatch) -> None:
        """Sets M of the whole batch, and whitens over it. Makes the pass for π_old only if that is needed now."""
        batch, whitens = made.batch, self._args.whiten_advantages == "batch"
        if self._args.token_mask != "none":
            # a custom mask gets whole batches, whatever the loss: it may compare rows
            custom = "token_mask" in self._args.custom_functions()
            reads_batch = whitens or custom or self._statistics is not None
            if reads_batch or self._normalizer.counts_batch or self._normalizer.hides_masked:
                self._engine.fill_old_logps(batch)
            if batch.old_logp_t is None:
                return  # the loss makes M, from its own pass
        mask_t = batch.mask_t
        kept_t = known_policy_mask(self._args, batch.data, old_logp_t=batch.old_logp_t, mask_t=mask_t)
        if whitens:
            counted_t = kept_t if kept_t.any() else mask_t
            batch.advantages = whiten(batch.advantages, mask_t=counted_t, reduce=self._processes.sum)
        if kept_t is not mask_t:
            batch.policy_mask_t = kept_t

    def take_statistics(self, made: GenerationBatch) -> None:
        """Sets what the credit function reads of the whole batch, if it declares that. Two collective calls."""
        batch, floor = made.batch, self._args.advantage_floor
        if self._statistics is None:
            return
        if (logp_t := batch.sampling_logp_t if batch.old_logp_t is None else batch.old_logp_t) is None:
            raise ValueError(
                f"batch_statistics reads the log-probabilities of a batch, and {no_batch_logps(self._args)}."
            )
        advantages = batch.advantages if floor is None else batch.advantages.clamp(min=floor)
        kept_t = batch.mask_t if batch.policy_mask_t is None else batch.policy_mask_t
        given = {"logp_t": logp_t, "advantages": advantages, "mask_t": kept_t}
        given["seed"] = seed_from(self._args.seed, *made.place)
        batch.statistics_t = statistics.over_processes(self._statistics, self._args, self._processes, **given)

    def count_and_log(self, made: GenerationBatch) -> None:
        """Sets what the loss divides by, and logs group metrics and the advantages. At most one collective call.

        The logged advantages replace TRL's. They are those that the loss uses, before a whitening by micro-batch; for
        chains, the sum over the segments of each response.
        """
        batch, columns = made.batch, {}
        kept_t = batch.mask_t if batch.policy_mask_t is None else batch.policy_mask_t
        recounts = self._normalizer.counts_batch and (kept_t is batch.policy_mask_t or batch.segment_ids is not None)
        if recounts or self._args.prompt_average:
            columns["kept"] = kept_t.sum(-1).long()
        if self._args.prompt_average:
            rows = torch.arange(len(kept_t), device=kept_t.device) + self._processes.rank * len(kept_t)
            # rows come prompt after prompt, and a group may begin on one process and end on the next
            columns["prompts"] = rows // self._engine.group_size if made.prompts is None else made.prompts
        if not made.is_logged:
            ids = batch.data[keys.COMPLETION_IDS]
            columns["hashes"] = response_hashes(ids, pad_token_id=self._engine.pad_token_id)
            columns["shown"] = shown_advantages(self._args, batch) if made.logged is None else made.logged
        if made.credited is not None:
            columns["credited"] = made.credited
        if not columns:
            return
        found = dict(zip(columns, self._processes.gather_columns(*columns.values()), strict=True))
        if recounts:
            batch.loss_tokens = found["kept"].sum()
        if self._args.prompt_average:
            batch.row_weight = batch.own_rows(prompt_weights(found["kept"], found["prompts"]))
        if not made.is_logged:
            self._engine.log.advantages(found["shown"].tolist())
            given = {"num_generations": self._engine.group_size, "credited": found.get("credited")}
            self._meter.append(group_statistics(batch.rewards, found["hashes"], **given).items())
