"""Batches of groups with signal: others are replaced, or further prompts are sampled until the batch is full."""

import math
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
from .group_join import Call, Place, join_groups, take_groups
from .group_store import Group, is_storable, load_groups, save_groups
from .policy import Policy
from .prompt_order import PromptOrder
from .prompts import Prompts
from .sources import Chain, GenerationBatch, Responses, Trees


logger = get_logger(__name__)

GROUPS_FILE = "waiting_groups.safetensors"
WAITED = -1  # the call of groups from an earlier batch


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
    useful: Sequence[Place], dull: Sequence[Place], *, size: int, max_copies: int, draws: random.Random
) -> tuple[list[Place], int]:
    """The `size` groups of a batch, and how many of them are copies: groups with signal, copies of them, others.

    Copies are drawn uniformly, at most `max_copies` of each group. If less than a third of the batch has signal there
    are none, or a few groups would be the whole batch (as in POLARIS).
    """
    missing = size - len(useful)
    copies: list[Place] = []
    if missing > 0 and 3 * len(useful) >= size:
        sources = [place for place in useful for _ in range(max_copies)]
        copies = draws.sample(sources, min(missing, len(sources)))
    return [*useful, *copies, *dull][:size], len(copies)


class SignalGroups:
    """A source whose batches have as many groups with signal as `groups` asks for. It wraps the source that samples.

    Args:
        source ([`Responses`]):
            Samples, and gives credit: to the full batch, so that no continuations are paid for groups that leave it;
            with `group_signal="advantage"` to what each call sampled.
        prompts ([`Prompts`]):
            The rows of the data set.
        depends_on_padding (`bool`, *optional*, defaults to `False`):
            Whether the model's log-probabilities do. π_old is then computed for the joined batch, and no group waits.
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
        # a group waits for one update at most, and a batch may feed several
        passes = config.steps_per_generation * config.num_iterations
        self._keeps_old_logps = not depends_on_padding or config.behavior_logps == "sampler"
        is_short = passes <= config.gradient_accumulation_steps
        self._keeps = config.refill_surplus == "keep" and is_short and self._keeps_old_logps
        self._batches = 0
        self._waiting: list[Group] = []
        self._said: set[str] = set()

    def check(self, inputs: list[dict[str, Any]]) -> None:
        """Raises a `ValueError` for rows of the data set that it cannot sample."""
        self._source.check(inputs)
        has_images = any(example.get(name) is not None for example in inputs for name in ("image", "images"))
        self._refuse_images(has_images)

    def make(self, inputs: list[dict[str, Any]]) -> GenerationBatch:
        """The batch for rows of the data set, every prompt repeated `group_size` times. Collective."""
        config, policy = self._config, self._policy
        waited = [group for group in self._waiting if policy.updates_done - group.born <= 1]
        with policy.log.pooled():
            inputs = self._prompts.begin(inputs, [group.examples[0] for group in waited])
            calls = self._sample(inputs, have=len(waited))
        sampled = [(Place(c, i), flag) for c, call in enumerate(calls) for i, flag in enumerate(call.has_signal)]
        fresh, dull = ([place for place, flag in sampled if flag == wanted] for wanted in (True, False))
        first = sum(place.call == 0 for place in fresh)  # before those that waited, which are older
        useful = [*fresh[:first], *(Place(WAITED, i) for i in range(len(waited))), *fresh[first:]]
        size = len(calls[0].has_signal)
        groups, copies = [place for place, _ in sampled][:size], 0
        if config.groups != "keep":
            draws = random.Random(f"{config.seed} {self._batches}")
            groups, copies = fill_batch(useful, dull, size=size, max_copies=config.max_copies, draws=draws)
            self._warn(len(useful), size, calls=len(calls))
        self._batches += 1
        surplus = [place for place in useful[size:] if place.call != WAITED] if self._keeps else []
        if sorted(groups) == [place for place, _ in sampled]:  # as TRL made it
            made, groups, self._waiting = calls[0].made, sorted(groups), []
            made.examples = calls[0].examples
        else:
            made = self._joined(calls, waited, groups, surplus)
        if not self._judges_credit:
            examples, made = made.examples, self._source.credit(made.batch, made.examples)
            made.examples = examples
        if config.difficulty != "none":  # the belief sees what was sampled, each response once
            correct = torch.cat([call.made.batch.correct for call in calls])
            made.accuracy = batch_accuracy(correct, reward_range=config.reward_range)
        if config.dull_kl == "drop" and keys.REF_LOGPS in made.batch.data:
            without = set(dull)
            is_dull = torch.tensor([place in without for place in groups], device=policy.processes.device)
            is_dull = made.batch.own_rows(is_dull.repeat_interleave(policy.group_size))
            # by another reward a row may have credit, and then keeps its KL term
            made.batch.data[keys.DULL_ROW] = is_dull & ~self._has_credit(made)
        if config.groups != "keep":
            stats = {"signal": (len(fresh), len(sampled)), "sampled": (len(sampled), 1), "calls": (len(calls), 1)}
            stats |= {"copies": (copies, 1), "waiting": (len(self._waiting), 1)}
            policy.record({f"groups/{name}": parts for name, parts in stats.items()})
        self._prompts.record()
        return made

    def _refuse_images(self, has_images: bool) -> None:
        if has_images and self._config.groups != "keep":
            what = f"groups={self._config.groups!r} joins rows of text, without their images"
            raise ValueError(f"{what}: use data, tools and environments without images, or set groups='keep'.")

    # Sampling

    @property
    def _judges_credit(self) -> bool:
        return self._config.group_signal == "advantage" and self._config.reads_signal

    @property
    def _credits_rewards(self) -> bool:
        """Whether a group has credit exactly if the totals of its rewards differ."""
        config = self._config
        return config.rollouts == "none" and config.returns == "outcome" and "baseline" not in config.custom_functions()

    def _sample(self, inputs: list[dict[str, Any]], *, have: int) -> list[Call]:
        """The calls of the engine for a batch, for which `have` groups have waited."""
        calls = [self._call(inputs)]
        size = len(calls[0].has_signal)
        while self._config.groups == "refill" and len(calls) <= self._config.max_refills:
            flags = [flag for call in calls for flag in call.has_signal]
            if (missing := size - have - sum(flags)) <= 0:
                break
            # enough if signal stays as frequent as in this batch, and one deviation more where groups may wait
            rate = max(sum(flags), 1) / len(flags)
            margin = math.sqrt(missing * (1 - rate)) if self._keeps else 0.0
            wanted = min(size, math.ceil((missing + margin) / rate))
            if (count := min(self._prompts.available(wanted), size)) == 0:
                self._say("the data set has no further prompts for a batch: give more rows, or lower the batch size")
                break
            calls.append(self._call(self._prompts.further(count)))
        return calls

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
        in_loss = batch.mask_t.bool()
        if self._judges_credit:
            credited = ((wide(made.advantages) != 0) & in_loss).any(-1)
            found = by_group(self._policy.processes.gather(credited.int()), size).any(-1)
            if self._credits_rewards:
                # rounding leaves 1e-8 of equal rewards less their mean
                found &= has_difference(batch.rewards, num_generations=size, counted=~batch.rewards.isnan())
            return found
        counted = self._policy.processes.gather(in_loss.any(-1).int()).bool()
        values = batch.correct if config.group_signal == "correct" else batch.rewards
        return has_difference(values, num_generations=size, counted=counted)

    def _has_credit(self, made: GenerationBatch) -> torch.Tensor:
        """Rows of this process that may have a gradient besides that of the KL term: bool, shape (B,)."""
        batch, size = made.batch, self._policy.group_size
        if self._credits_rewards:
            differs = has_difference(batch.rewards, num_generations=size, counted=~batch.rewards.isnan())
            return batch.own_rows(differs.repeat_interleave(size))
        return ((wide(made.advantages) != 0) & batch.mask_t.bool()).any(-1)

    def _joined(
        self, calls: list[Call], waited: list[Group], groups: list[Place], surplus: list[Place]
    ) -> GenerationBatch:
        """The batch of these groups, of any calls. Those of `surplus` wait from here on. Collective."""
        policy = self._policy
        for call in sorted({place.call for place in surplus}):  # π_old, before the policy moves
            policy.fill_old_logps(calls[call].made.batch)
        found = {Place(WAITED, i): group for i, group in enumerate(waited)}
        wanted = {place for place in (*groups, *surplus) if place.call != WAITED}
        found |= take_groups(policy, calls, wanted)
        self._waiting = [found[place] for place in surplus if is_storable(found[place])]
        if len(self._waiting) < len(surplus):
            self._say("surplus groups are dropped: rows of the data set that are not JSON types cannot wait")
        chosen = [found[place] for place in groups]
        policy.log.show([entry for group in chosen for entry in group.logged])
        mixes = any(place.call == WAITED for place in groups)
        made = join_groups(policy, chosen, mixes_policies=mixes, keeps_old_logps=self._keeps_old_logps)
        config = self._config
        if config.scale_rewards == "batch" and self._credits_rewards and config.baseline == "group":
            scaled = batch_scaled_advantages(made.batch.rewards, num_generations=policy.group_size)
            made.batch.advantages = made.advantages = made.batch.own_rows(scaled)
        return made

    # What is said, once each

    def _warn(self, useful: int, size: int, *, calls: int) -> None:
        if useful >= size:
            return
        if calls > self._config.max_refills:
            self._say("max_refills=%d further calls did not fill a batch of %d groups", self._config.max_refills, size)
        if 3 * useful < size:
            what = "%d of %d groups have signal, less than a third: a batch is kept without copies"
            self._say(what, useful, size)

    def _say(self, what: str, *values: int) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning(f"groups=%r: {what}", self._config.groups, *values)

    # State

    def state_dict(self, folder: Path) -> dict[str, Any]:
        """Writes the groups that wait to a file of their own, and returns what a checkpoint keeps beside it."""
        save_groups(folder / GROUPS_FILE, self._waiting)
        return {"file": GROUPS_FILE, "batches": self._batches, "waiting": len(self._waiting)}

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        """Restores the groups that wait."""
        self._waiting, self._batches = load_groups(folder / GROUPS_FILE), int(state["batches"])
