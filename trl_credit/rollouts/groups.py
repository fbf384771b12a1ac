"""Batches of groups with signal: others are replaced, or further prompts are sampled until the batch is full."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.logging import get_logger

from ..credit.advantages import by_group
from ..credit.difficulty import batch_accuracy
from ..credit.groups import batch_scaled_advantages, has_difference
from ..loss import keys
from ..loss.assignment import wide
from ..passes.model_traits import positions_of
from .forest import Trees
from .group_join import Call, join_groups
from .policy import Policy
from .prompt_order import PromptOrder
from .prompts import Prompts
from .sources import Chain, GenerationBatch, Responses, has_images


logger = get_logger(__name__)


def make_source(policy: Policy, *, model_config: Any, data: Any) -> "Responses | SignalGroups":
    """The source that a configuration selects.

    Args:
        policy ([`Policy`]):
            Samples and scores.
        model_config (`PretrainedConfig`):
            That of the model.
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


def fill_batch(
    has_signal: Sequence[bool], *, size: int, max_copies: int, draws: random.Random
) -> tuple[list[int], int]:
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


class SignalGroups:
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

    name = "groups"  # of its state in checkpoints

    def __init__(self, source: Responses, prompts: Prompts, *, depends_on_padding: bool = False) -> None:
        self._source, self._prompts, self._policy = source, prompts, source.policy
        config = self._config = source.policy.args
        self.setting = f"groups={config.groups!r}"
        self.around_forward = source.around_forward
        self.calls_engine_again = source.calls_engine_again or config.groups == "refill"
        own = (self,) if config.groups != "keep" else ()
        self.stateful = (*source.stateful, *own, *prompts.stateful)
        self._keeps_old_logps = not depends_on_padding or config.behavior_logps == "sampler"
        self._judges_credit = config.group_signal == "advantage" and config.reads_signal
        # whether a group has credit exactly if the totals of its rewards differ
        self._credits_rewards = config.rollouts == "none" and config.returns == "outcome"
        self._credits_rewards &= "baseline" not in config.custom_functions()
        self._batches = 0

    def check(self, inputs: list[dict[str, Any]]) -> None:
        """Raises a `ValueError` for rows of the data set that it cannot sample."""
        self._source.check(inputs)
        self._refuse_images(has_images(inputs))

    def make(self, inputs: list[dict[str, Any]]) -> GenerationBatch:
        """The batch for rows of the data set, every prompt repeated `group_size` times. Collective."""
        config, policy = self._config, self._policy
        with policy.log.pooled():
            calls = self._sample(inputs)
        has_signal, size = _flags(calls), len(calls[0].has_signal)
        groups, copies = list(range(size)), 0
        if config.groups != "keep":
            draws = random.Random(f"{config.seed} {self._batches}")
            groups, copies = fill_batch(has_signal, size=size, max_copies=config.max_copies, draws=draws)
            if 3 * sum(has_signal) < size:
                what = "%d of %d groups have signal, less than a third: a batch is kept without copies"
                self._prompts.warn_once(what, sum(has_signal), size)
        self._batches += 1
        if sorted(groups) == list(range(len(has_signal))):  # as TRL made it
            made, groups = calls[0].made, sorted(groups)
            made.examples = calls[0].examples
        else:
            made = join_groups(policy, calls, groups, keeps_old_logps=self._keeps_old_logps)
            if config.scale_rewards == "batch" and self._credits_rewards and config.baseline == "group":
                scaled = batch_scaled_advantages(made.batch.rewards, num_generations=policy.group_size)
                made.batch.advantages = made.advantages = made.batch.own_rows(scaled)
        if not self._judges_credit:
            examples, made = made.examples, self._source.credit(made.batch, made.examples)
            made.examples = examples
        if config.difficulty != "none":  # the belief sees what was sampled, each response once
            correct = torch.cat([call.made.batch.correct for call in calls])
            made.accuracy = batch_accuracy(correct, reward_range=config.reward_range)
        if config.dull_kl == "drop" and keys.REF_LOGPS in made.batch.data:
            is_zero_variance = torch.tensor([not has_signal[group] for group in groups], device=policy.processes.device)
            is_zero_variance = made.batch.own_rows(is_zero_variance.repeat_interleave(policy.group_size))
            # by another reward a row may have credit, and then keeps its KL term
            made.batch.data[keys.ZERO_VARIANCE_ROW] = is_zero_variance & ~self._has_credit(made)
        if config.groups != "keep":
            sampled = len(has_signal)
            stats = {"signal": (sum(has_signal), sampled), "sampled": (sampled, 1)}
            stats |= {"calls": (len(calls), 1), "copies": (copies, 1)}
            policy.record({f"groups/{name}": parts for name, parts in stats.items()})
        self._prompts.record()
        return made

    def _refuse_images(self, has_images: bool) -> None:
        if has_images and self._config.groups != "keep":
            what = f"groups={self._config.groups!r} joins rows of text, without their images"
            raise ValueError(f"{what}: use data, tools and environments without images, or set groups='keep'.")

    def _sample(self, inputs: list[dict[str, Any]]) -> list[Call]:
        """The calls of the engine for a batch."""
        calls = [self._call(self._prompts.begin(inputs))]
        if self._config.groups != "refill":
            return calls
        size = len(calls[0].has_signal)
        while True:
            has_signal = _flags(calls)
            rows = self._prompts.refill(useful=sum(has_signal), sampled=len(has_signal), wanted=size)
            if rows is None:
                return calls
            calls.append(self._call(rows))

    def _call(self, inputs: list[dict[str, Any]]) -> Call:
        policy = self._policy
        self.check(inputs)
        batch = policy.sample(inputs)
        self._refuse_images(any(name in batch.data for name in keys.FORWARD))
        made = self._source.credit(batch, inputs) if self._judges_credit else GenerationBatch(batch, batch.advantages)
        self._prompts.note(batch.correct)
        logged = policy.log.entries(len(inputs) * policy.processes.count)
        return Call(made, inputs, self._signal(made).tolist(), logged)

    def _signal(self, made: GenerationBatch) -> torch.Tensor:
        """Whether each group of a batch has signal: bool, shape (N/G,). Collective."""
        batch, config, size = made.batch, self._config, self._policy.group_size
        if not config.reads_signal:
            return torch.ones(len(batch.rewards) // size, dtype=torch.bool)
        gather, in_loss = self._policy.processes.gather, batch.mask_t.bool()
        if self._judges_credit:
            credited = ((wide(made.advantages) != 0) & in_loss).any(-1)
            has_signal = by_group(gather(credited.int()), size).any(-1)
            # rounding leaves 1e-8 of equal rewards less their mean
            return has_signal & self._rewards_differ(made) if self._credits_rewards else has_signal
        counted = gather(in_loss.any(-1).int()).bool()
        values = batch.correct if config.group_signal == "correct" else batch.rewards
        return has_difference(values, num_generations=size, counted=counted)

    def _rewards_differ(self, made: GenerationBatch) -> torch.Tensor:
        """Whether the total rewards of each group differ: bool, shape (N/G,)."""
        rewards = made.batch.rewards
        return has_difference(rewards, num_generations=self._policy.group_size, counted=~rewards.isnan())

    def _has_credit(self, made: GenerationBatch) -> torch.Tensor:
        """Rows of this process that may have a gradient besides that of the KL term: bool, shape (B,)."""
        if self._credits_rewards:
            return made.batch.own_rows(self._rewards_differ(made).repeat_interleave(self._policy.group_size))
        return ((wide(made.advantages) != 0) & made.batch.mask_t.bool()).any(-1)

    def state_dict(self, folder: Path) -> dict[str, Any]:
        """The number of batches so far, from which copies are drawn."""
        return {"batches": self._batches}

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        """Restores what `state_dict` returned."""
        self._batches = int(state["batches"])
        if state.get("waiting"):
            what = "of an earlier version: its groups that waited for the next batch are left out"
            logger.warning(f"the checkpoint is {what}, so the run is not the uninterrupted one")


def _flags(calls: Sequence[Call]) -> list[bool]:
    """Whether each group of some calls has signal."""
    return [flag for call in calls for flag in call.has_signal]
