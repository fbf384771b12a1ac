"""Batches of groups with signal: others are replaced, or further prompts are sampled until the batch is full."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import gather_object

from ..credit.advantages import by_group
from ..credit.difficulty import batch_accuracy
from ..credit.groups import batch_scaled_advantages, has_difference
from ..credit.tokens import turn_numbers
from ..loss import keys
from ..loss.assignment import wide
from ..loss.batch import Batch, loss_mask
from ..loss.batch_rows import Row, join_rows, split_rows
from ..passes.model_traits import positions_of
from .chain import Chain
from .forest import Trees
from .policy import Policy
from .prompts import PromptOrder, Prompts
from .sources import GenerationBatch, Responses


logger = get_logger(__name__)


def make_source(policy: Policy, *, model_config: Any, data: Any) -> Responses:
    """The source that a configuration selects.

    Args:
        policy ([`Policy`]):
            Samples and scores.
        model_config (`PretrainedConfig`):
            The configuration of the model.
        data (`Dataset` or `None`):
            The training data, from which rows are drawn by number if the configuration asks for it.

    Raises:
        ValueError: the model does not support the attention of packed trees, or its log-probabilities depend on padding
            and the KL term compares them.
    """
    config, order = policy.args, None
    if config.draws_prompts and data is not None:
        order = PromptOrder(config, rows=len(data), prompt_of=lambda row: data[row].get("prompt"))
    prompts = Prompts(policy, order)
    if config.rollouts == "tree":
        return Trees(policy, model_config=model_config, prompts=prompts)
    source = Chain(policy) if config.rollouts == "chain" else Responses(policy)
    if not config.reads_signal and not config.draws_prompts:
        return source
    depends = positions_of(model_config.get_text_config()) != "relative"
    if depends and config.groups != "keep" and config.beta != 0.0:
        what = f"groups={config.groups!r} joins rows of different padding, on which the positions of this model depend"
        raise ValueError(f"{what}, and with them the KL term: set beta=0, or groups='keep'.")
    return SignalGroups(source, prompts, depends_on_padding=depends)


def fill_batch(has_signal: Sequence[bool], *, size: int, max_copies: int, draws: Random) -> tuple[list[int], int]:
    """The numbers of the `size` groups of a batch, and how many of them are copies: groups with signal, copies of them,
    others.

    Copies are drawn uniformly, at most `max_copies` of each group. If less than a third of the batch has signal there
    are none, or a few groups would be the whole batch (as in POLARIS).
    """
    useful = [group for group, flag in enumerate(has_signal) if flag]
    others = [group for group, flag in enumerate(has_signal) if not flag]
    missing = size - len(useful)
    copies: list[int] = []
    if missing > 0 and 3 * len(useful) >= size:
        sources = [group for group in useful for _ in range(max_copies)]
        copies = draws.sample(sources, min(missing, len(sources)))
    return [*useful, *copies, *others][:size], len(copies)


# what a `GenerationBatch` has for each row besides its batch
_PARTS = ("advantages", "p_hat", "logged", "credited", "value_t", "final_value")


def join_groups(
    policy: Policy, calls: Sequence[GenerationBatch], groups: Sequence[int], *, keeps_old_logps: bool = True
) -> GenerationBatch:
    """The batch of some groups, every process with an equal share of the rows. Collective.

    It has the credit that its groups have. The tokens that the loss divides by are counted again.

    Args:
        policy ([`Policy`]):
            Computes π_old where it must be computed again.
        calls (sequence of [`GenerationBatch`]):
            What the engine sampled, with the credit so far. Their groups are numbered through, call after call.
        groups (sequence of `int`):
            The groups of the batch in their order; a number that comes twice is a copy.
        keeps_old_logps (`bool`, *optional*, defaults to `True`):
            Whether π_old of a row is the same in every batch. If not, it is computed for the joined one.
    """
    processes, size, device = policy.processes, policy.group_size, policy.processes.device
    # TRL's correction for the engine may have one number per response
    is_per_row = getattr(policy.args, "vllm_importance_sampling_mode", "").startswith("sequence")
    per_row = (keys.ENGINE_RATIO,) if is_per_row and not policy.args.corrects_by_turn else ()
    layout = {"pad_token_id": policy.pad_token_id, "per_row": per_row}
    index = [group * size + i for group in groups for i in range(size)]
    share = len(index) // processes.count
    own = slice(processes.rank * share, (processes.rank + 1) * share)

    known = _taken(policy, calls, set(index), layout)
    rows = [dict(known[number][0]) for number in index]
    if any(keys.TURN_IDS in row for row in rows):  # the credit of some calls left tokens out
        for row in rows:
            row.setdefault(keys.TURN_IDS, turn_numbers(row[keys.COMPLETION_MASK].unsqueeze(0))[0])
    recomputes = not keeps_old_logps and keys.OLD_LOGPS in rows[0]
    if recomputes:
        rows = [{name: x for name, x in row.items() if name != keys.OLD_LOGPS} for row in rows]
    data: dict[str, Any] = join_rows(rows[own], **layout, multiple=policy.args.pad_to_multiple_of, device=device)
    parts = {name: data.pop(f"made/{name}", None) for name in _PARTS}
    data[keys.NUM_ITEMS] = torch.tensor(sum(int(loss_mask(row).sum()) for row in rows), device=device)
    turn_ids = data.get(keys.TURN_IDS)
    columns = ("rewards", "rewards_per_func", "correct")
    rewards = {name: torch.cat([getattr(call.batch, name) for call in calls])[index] for name in columns}
    batch = Batch(data, **rewards, rank=processes.rank)
    if turn_ids is not None:  # from the mask before credit changed it
        batch.turn_ids = turn_ids
    if recomputes:
        policy.fill_old_logps(batch)
    entries = [entry for call in calls for entry in call.entries]
    policy.log.show([entries[number] for number in index])
    return GenerationBatch(batch, examples=[known[number][1] for number in index[own]], **parts)


def _taken(
    policy: Policy, calls: Sequence[GenerationBatch], wanted: set[int], layout: dict[str, Any]
) -> dict[int, tuple[Row, dict[str, Any]]]:
    """Rows of all processes and calls, numbered through: their entries and their row of the data set. Collective."""
    mine, start = {}, 0
    for call in calls:
        first = start + policy.processes.rank * len(call.examples)
        numbers = [i for i in range(len(call.examples)) if first + i in wanted]
        parts = {f"made/{name}": x for name in _PARTS if (x := getattr(call, name)) is not None}
        rows = split_rows(call.batch.data | parts, rows=numbers, **layout)
        mine |= {first + i: (row, call.examples[i]) for i, row in zip(numbers, rows, strict=True)}
        start += policy.processes.count * len(call.examples)
    return {number: row for part in gather_object([mine]) for number, row in part.items()}


class SignalGroups(Responses):
    """A source whose batches have as many groups with signal as `groups` asks for. It wraps the source that samples.

    Args:
        source ([`Responses`]):
            Samples, and gives credit: to the full batch, so that no continuations are paid for groups that leave it;
            with `group_signal="advantage"` to what each call sampled.
        prompts ([`Prompts`]):
            The rows of the data set.
        depends_on_padding (`bool`, *optional*, defaults to `False`):
            Whether the model's log-probabilities do. π_old is then computed for the joined batch.
    """

    name = "groups"  # checkpoints name its state so

    def __init__(self, source: Responses, prompts: Prompts, *, depends_on_padding: bool = False) -> None:
        super().__init__(source.policy)
        self._source, self._prompts = source, prompts
        config = self._config = source.policy.args
        self.setting = f"groups={config.groups!r}"
        self.around_forward = source.around_forward
        self.calls_engine_again = source.calls_engine_again or config.groups == "refill"
        self.text_setting = source.text_setting or ("groups" if config.groups != "keep" else None)
        own = (self,) if config.groups != "keep" else ()
        self.stateful = (*source.stateful, *own, *prompts.stateful)
        self._keeps_old_logps = not depends_on_padding or config.behavior_logps == "sampler"
        self._judges_credit = config.group_signal == "advantage" and config.reads_signal
        # whether a group has credit exactly if the totals of its rewards differ
        self._credits_rewards = config.rollouts == "none" and config.returns == "outcome"
        self._credits_rewards &= "baseline" not in config.custom_functions()
        self._batches = 0

    def make(self, inputs: list[dict[str, Any]]) -> GenerationBatch:
        config, policy = self._config, self.policy
        with policy.log.pooled():
            calls, has_signal = self._prompts.fill(self._prompts.begin(inputs), self._call)
        size = len(inputs) * policy.processes.count // policy.group_size
        groups, copies = list(range(size)), 0
        if config.groups != "keep":
            draws = Random(f"{config.seed} {self._batches}")
            groups, copies = fill_batch(has_signal, size=size, max_copies=config.max_copies, draws=draws)
            if 3 * sum(has_signal) < size:
                what = f"less than a third of {size} groups have signal: such a batch is kept without copies"
                self._prompts.warn_once(what)
        self._batches += 1
        if sorted(groups) == list(range(len(has_signal))):  # as TRL made it
            joined, groups = calls[0], sorted(groups)
        else:
            joined = join_groups(policy, calls, groups, keeps_old_logps=self._keeps_old_logps)
            if config.scale_rewards == "batch" and self._credits_rewards and config.baseline == "group":
                scaled = batch_scaled_advantages(joined.batch.rewards, num_generations=policy.group_size)
                joined.batch.advantages = joined.advantages = joined.batch.own_rows(scaled)
        if not self._judges_credit:
            joined = self._source.credit(joined.batch, joined.examples)
        if config.difficulty != "none":  # the belief sees what was sampled, each response once
            correct = torch.cat([call.batch.correct for call in calls])
            joined.accuracy = batch_accuracy(correct, reward_range=config.reward_range)
        if config.dull_kl == "drop" and keys.REF_LOGPS in joined.batch.data:
            # by another reward a row may have credit, and then keeps its KL term
            has_credit = torch.tensor([has_signal[group] for group in groups], device=policy.processes.device)
            if self._credits_rewards:
                has_credit |= self._rewards_differ(joined.batch)
            has_credit = joined.batch.own_rows(has_credit.repeat_interleave(policy.group_size))
            if not self._credits_rewards:
                has_credit |= ((wide(joined.advantages) != 0) & joined.batch.mask_t.bool()).any(-1)
            joined.batch.data[keys.ZERO_VARIANCE_ROW] = ~has_credit
        self._prompts.record(copies=copies)
        return joined

    def _call(self, inputs: list[dict[str, Any]]) -> tuple[GenerationBatch, list[bool]]:
        """One call of the engine for rows of the data set, and whether each group has signal. Collective."""
        policy = self.policy
        self.check(inputs)
        batch = policy.sample(inputs)
        self.refuse_images(any(name in batch.data for name in keys.FORWARD))
        call = GenerationBatch(batch, batch.advantages, inputs)
        if self._judges_credit:
            call = self._source.credit(batch, inputs)
        self._prompts.note(batch.correct)
        call.entries = policy.log.entries(len(inputs) * policy.processes.count)
        return call, self._signal(call).tolist()

    def _signal(self, call: GenerationBatch) -> torch.Tensor:
        """Whether each group of a batch has signal: bool, shape (N/G,). Collective."""
        batch, config, size = call.batch, self._config, self.policy.group_size
        if not config.reads_signal:
            return torch.ones(len(batch.rewards) // size, dtype=torch.bool)
        if self._judges_credit:
            credited = ((wide(call.advantages) != 0) & batch.mask_t.bool()).any(-1)
            has_signal = by_group(self.policy.processes.gather(credited.int()), size).any(-1)
            # rounding leaves 1e-8 of equal rewards less their mean
            return has_signal & self._rewards_differ(batch) if self._credits_rewards else has_signal
        values = batch.correct if config.group_signal == "correct" else batch.rewards
        return has_difference(values, num_generations=size)

    def _rewards_differ(self, batch: Batch) -> torch.Tensor:
        """Whether the total rewards of each group differ: bool, shape (N/G,)."""
        return has_difference(batch.rewards, num_generations=self.policy.group_size)

    def state_dict(self, folder: Path) -> dict[str, Any]:
        """The number of batches so far, from which copies are drawn."""
        return {"batches": self._batches}

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        """Restores what `state_dict` returned."""
        self._batches = int(state["batches"])
        if state.get("waiting"):
            what = "of an earlier version: its groups that waited for the next batch are left out"
            logger.warning(f"the checkpoint is {what}, so the run is not the uninterrupted one")
