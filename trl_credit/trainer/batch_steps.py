"""What every generation batch goes through, wherever its rows come from: the order of A, statistics, counts."""

import math

import torch

from ..config.algorithm import Algorithm
from ..config.rules import no_batch_logps
from ..credit.difficulty import DifficultyBelief
from ..credit.tokens import BatchTokens
from ..loss import keys, statistics
from ..loss.batch import segments_of, shown_advantages
from ..loss.batch_metrics import difficulty_statistics, group_statistics, response_hashes
from ..loss.normalizer import counts_batch, hides_masked, prompt_weights
from ..loss.order import floored, in_batch
from ..rollouts.sources import GenerationBatch
from ..support.digests import seed_from
from .engine import TrlEngine
from .teacher import Teacher


class BatchSteps:
    """The steps that turn a source's batch into the one that TRL cuts into micro-batches, in their order.

    Args:
        engine ([`TrlEngine`]):
            The trainer's engine. Makes the pass for π_old where a step needs it.
        belief ([`~trl_credit.credit.difficulty.DifficultyBelief`] or `None`):
            HA-DW's belief.
        algorithm ([`~trl_credit.config.algorithm.Algorithm`]):
            May take statistics of the batch.

    Attributes:
        teacher: Scores the rows, if a run has one.
    """

    def __init__(self, engine: TrlEngine, belief: DifficultyBelief | None, algorithm: Algorithm) -> None:
        self._args, self._engine, self._belief = engine.args, engine, belief
        self._algorithm, self._meter, self._processes = algorithm, engine.meter, engine.processes
        self.teacher: Teacher | None = None

    def __call__(self, generation: GenerationBatch) -> None:
        """Applies all steps to a batch. Collective."""
        self._order(generation)
        if self.teacher is not None:
            self.teacher.score(generation)
        if self._algorithm.statistics is not None:
            self._take_statistics(generation)
        self._count_and_log(generation)

    def _order(self, generation: GenerationBatch) -> None:
        """Weighs advantages by difficulty, makes M and whitens over the batch, and moves the belief. Makes the pass for
        π_old only if that is needed now. A batch without a score has no difficulty."""
        batch, args, accuracy = generation.batch, self._args, generation.accuracy
        # a custom mask gets whole batches, whatever the loss: it may compare rows
        reads_batch = args.whiten_advantages == "batch" or "token_mask" in args.custom_functions()
        reads_batch |= self._algorithm.statistics is not None
        reads_batch |= counts_batch(args) or hides_masked(args)
        if args.token_mask != "none" and reads_batch:
            self._engine.fill_old_logps(batch)
        mask_t = batch.mask_t
        prior = None if self._belief is None or math.isnan(accuracy) else self._belief.prior(accuracy)
        generation.prior = prior
        tokens = {"old_logp_t": batch.old_logp_t, "segment_ids": segments_of(batch.data, mask_t), "mask_t": mask_t}
        weighing = {"p_hat": generation.p_hat, "prior": prior}
        ordered = in_batch(args, generation.advantages, **weighing, **tokens, reduce=self._processes.sum)
        batch.advantages = ordered.advantages
        if ordered.kept_t is not None and ordered.kept_t is not mask_t:  # else the loss makes M, from its own pass
            batch.policy_mask_t = ordered.kept_t
        if prior is None:
            return
        self._meter.append([("difficulty_belief", prior)])
        self._meter.record(difficulty_statistics(ordered.phi, generation.advantages, p_hat=ordered.p_hat, prior=prior))
        if generation.moves_belief and (step := self._belief.update(accuracy)) is not None:
            self._meter.append(zip(("difficulty_rate", "difficulty_floor"), map(float, step), strict=True))

    def _take_statistics(self, generation: GenerationBatch) -> None:
        """Sets what the algorithm takes of the whole batch. Collective."""
        batch, needs, is_tree = generation.batch, self._algorithm.needs, generation.plan is not None
        mask_t, logp_t = batch.mask_t, None
        if "logps" in needs:
            logp_t = batch.sampling_logp_t if batch.old_logp_t is None else batch.old_logp_t
            if logp_t is None:
                what = f"credit={self._args.credit!r}: statistics read the log-probabilities of a batch"
                raise ValueError(f"{what}, and {no_batch_logps(self._args)}.")
        segment_ids = segments_of(batch.data, mask_t)
        own = BatchTokens(
            advantage_t=floored(self._args, batch.advantages),
            logp_t=logp_t,
            rewards=None if is_tree else batch.rewards,
            reward_columns=None if is_tree else batch.rewards_per_func,
            columns=generation.examples if "columns" in needs and not is_tree else None,
            token_ids=batch.data[keys.COMPLETION_IDS],
            segment_ids=segment_ids,
            turn_ids=segment_ids if batch.turn_ids is None else batch.turn_ids,
            teacher_logp_t=batch.data.get(keys.TEACHER_LOGPS),
            group_ids=self._groups(generation),
            mask_t=mask_t if batch.policy_mask_t is None else batch.policy_mask_t,
            is_training=generation.moves_belief,
            generator=torch.Generator().manual_seed(seed_from(self._args.seed, *generation.place)),
        )
        batch.data[keys.STATISTICS] = statistics.over_processes(self._algorithm, self._args, self._processes, own)

    def _groups(self, generation: GenerationBatch) -> torch.Tensor:
        """A number for the prompt of each row of this process, shape (B,)."""
        rows = generation.batch.mask_t.size(0)
        number = torch.arange(rows, device=generation.batch.mask_t.device) + self._processes.rank * rows
        # rows come prompt after prompt, and a group may begin on one process and end on the next
        return number // self._engine.group_size if generation.prompts is None else generation.prompts

    def _count_and_log(self, generation: GenerationBatch) -> None:
        """Sets what the loss divides by, and logs group metrics and the advantages. At most one collective call.

        The logged advantages replace TRL's. They are those that the loss uses, before a whitening by micro-batch; for
        chains, the sum over the segments of each response.
        """
        batch, columns = generation.batch, {}
        kept_t = batch.mask_t if batch.policy_mask_t is None else batch.policy_mask_t
        recounts = counts_batch(self._args) and (kept_t is batch.policy_mask_t or batch.segment_ids is not None)
        if recounts or self._args.prompt_average:
            columns["kept"] = kept_t.sum(-1).long()
        if self._args.prompt_average:
            columns["prompts"] = self._groups(generation)
        if generation.plan is None:
            columns["hashes"] = response_hashes(batch.data[keys.COMPLETION_IDS], pad_token_id=self._engine.pad_token_id)
            columns["shown"] = shown_advantages(self._args, batch) if generation.logged is None else generation.logged
        if generation.credited is not None:
            columns["credited"] = generation.credited
        if not columns:
            return
        gathered = dict(zip(columns, self._processes.gather_columns(*columns.values()), strict=True))
        if recounts:
            batch.data[keys.NUM_ITEMS] = gathered["kept"].sum()
        if self._args.prompt_average:
            batch.data[keys.ROW_WEIGHT] = batch.own_rows(prompt_weights(gathered["kept"], gathered["prompts"]))
        if generation.plan is None:
            self._engine.log.advantages(gathered["shown"].tolist())
            of_group = {"num_generations": self._engine.group_size, "credited": gathered.get("credited")}
            self._meter.append(group_statistics(batch.rewards, gathered["hashes"], **of_group).items())
