"""Where a generation batch comes from: single responses, chains of rollouts, or trees. One object for each way.

All have the same methods, so that the trainer need not know which one it has.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate.logging import get_logger
from torch import nn

from ..assignment import baseline_function
from ..config import CreditConfig
from ..credit.difficulty import batch_accuracy, group_accuracy
from .attention import check_tree_attention, tree_attention
from .behavior import can_pack
from .chain import chain_credit
from .forest import Forest, Plan, TreeCredit
from .policy import Batch, Planned, Policy
from .rows import visible_columns


logger = get_logger(__name__)

REPLAY_FILE = "replay.safetensors"


class Made(NamedTuple):
    """A generation batch and its advantages, before the weights that do not depend on where it comes from.

    Attributes:
        batch: The rows of this process.
        advantages: Shape (B,), or (B, T) where the tokens of a row differ.
        p_hat: Accuracy (B,) of each row's prompt in [0, 1], or `None` where no difficulty weight asks for it.
        accuracy: Of the whole batch, NaN if nothing was scored.
        logged: Advantages (B,) for the table of completions, where they are not `advantages` themselves.
        is_logged: Whether the source has filled the table itself.
        is_empty: Whether no process has a row to learn from.
        prompts: A number (B,) for each row's prompt; `None` where rows come in whole groups, prompt after prompt.
        credited: Which responses (B,) have a token with an advantage other than 0, where that is not decided by whether
            the rewards of a group differ.
        values: V (B, T) where the segments of a chain begin, and the value (B,) at its end.
        plan: What the batch was made of where it came from trees.
    """

    batch: Batch
    advantages: torch.Tensor
    p_hat: torch.Tensor | None = None
    accuracy: float = float("nan")
    logged: torch.Tensor | None = None
    is_logged: bool = False
    is_empty: bool = False
    prompts: torch.Tensor | None = None
    credited: torch.Tensor | None = None
    values: tuple[torch.Tensor, torch.Tensor] | None = None
    plan: Plan | None = None


class Responses:
    """One row per response, with an advantage from its group; also the base of the other ways.

    Args:
        policy ([`Policy`]):
            Samples and scores.
    """

    state: dict[str, str] = {}  # what it keeps in a checkpoint → the setting that has it kept
    has_phases = False  # whether an engine is called more than once for a batch
    types_are_columns = False  # whether `token_type_ids` of its rows are those of `visible_columns`

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def check(self, inputs: list[dict[str, Any]]) -> None:
        """Raises a `ValueError` for rows of the data set that cannot be sampled this way."""

    def make(self, inputs: list[dict[str, Any]]) -> Made:
        """The batch for rows of the data set, every prompt repeated `group_size` times. Collective."""
        policy, config = self.policy, self.policy.args
        batch = policy.sample(inputs)
        advantages = batch.advantages
        if (baseline := baseline_function(config)) is not None:
            lengths = policy.gather(batch.mask_t.sum(-1))
            # a copy: a function of one's own may write into it. A response that is masked has length 0: it has no
            # gradient, of which a baseline could lower the variance
            found = baseline(batch.rewards.clone(), lengths=lengths, num_generations=policy.group_size)
            advantages = batch.own_rows(_checked_advantages(found, batch.rewards, config.baseline))
        return Made(batch, advantages, *_accuracies(policy, batch))

    @contextlib.contextmanager
    def forward(self, model: nn.Module, passed: tuple, named: dict[str, Any]) -> Iterator[None]:
        """Around each forward pass over its rows. `named` are the arguments by name, which it may change."""
        yield

    def save(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Writes what the next batches depend on; returns what is to be kept of each of `state`, as JSON types."""
        return {}

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""


class Chain(Responses):
    """Responses with credit by segment, valued by continuations from where the segments begin (SPO-chain, VinePPO)."""

    has_phases = True

    def check(self, inputs: list[dict[str, Any]]) -> None:
        _refuse_images(inputs, self.policy.args)

    def make(self, inputs: list[dict[str, Any]]) -> Made:
        policy = self.policy
        batch = policy.sample(inputs)
        policy.fill_old_logps(batch)
        credit = chain_credit(
            policy,
            inputs,
            prompt_ids=batch.prompt_ids,
            completion_ids=batch.completion_ids,
            old_logp_t=batch.old_logp_t,
            rewards=batch.rewards,
            mask_t=batch.written_t,
        )
        batch.segment_ids = credit.segment_ids
        if credit.unsplit.any():  # no steps, no credit, and no part in a count of tokens
            batch.show_loss((~credit.unsplit).unsqueeze(1))
        # equal final rewards can hide segments that were worth something, and other ones segments that were not
        credited = ((credit.advantages != 0) & batch.mask_t.bool()).any(-1)
        shown = {"logged": credit.per_response, "credited": credited, "values": (credit.value_t, credit.final_value)}
        return Made(batch, credit.advantages, *_accuracies(policy, batch), **shown)


class Trees(Responses):
    """Rows from trees of segments, each judged against its siblings, fresh or replayed (SPO-tree)."""

    state = {"replay": "rollouts='tree'"}
    has_phases = True
    types_are_columns = True

    def __init__(self, policy: Policy, *, model_config: Any) -> None:
        super().__init__(policy)
        self.forest = Forest(policy, can_pack=can_pack(model_config))
        self.planned: Planned | None = None
        self._packed = policy.args.tree_rows == "packed"
        if self._packed:
            check_tree_attention(model_config)

    def check(self, inputs: list[dict[str, Any]]) -> None:
        _refuse_images(inputs, self.policy.args)

    def make(self, inputs: list[dict[str, Any]]) -> Made:
        policy = self.policy
        plan = self.planned = self.forest.plan(inputs)
        try:
            batch = policy.sample(inputs, planned=plan)
        finally:
            self.planned = None
        credit = self.forest.credit_tensors(plan, width=batch.width)
        batch.segment_ids, batch.quarter_t = credit.segment_ids, credit.quarter_t
        batch.show_loss(credit.segment_ids >= 0)
        if self._packed:
            batch.branch(visible_columns(plan.rows, prompt_width=batch.prompt_width, width=batch.width))
        replayed = credit.replayed.unsqueeze(1)
        if batch.engine_ratio_t is not None:
            policy.correct_by_segment(batch)
            # the π_old of replayed rows is already that of what sampled them
            batch.engine_ratio_t = batch.engine_ratio_t.masked_fill(replayed, 1.0)
        if plan.has_replayed:  # the same on all processes
            self._fill_old_logps(batch, plan, credit)
        policy.log_planned(plan)
        if plan.is_empty:
            logger.warning("no segment of this generation batch has an advantage: there is no update on any process")
        shown = {"is_logged": True, "is_empty": plan.is_empty, "prompts": credit.prompts, "plan": plan}
        return Made(batch, credit.advantages, credit.p_hat, plan.accuracy, **shown)

    def _fill_old_logps(self, batch: Batch, plan: Plan, credit: TreeCredit) -> None:
        """π_old as it was stored with the rows; what was not is computed. Where TRL has computed it, that is kept for
        new rows. Collective."""
        stored, known = credit.behavior_logp_t, ~credit.behavior_logp_t.isnan()
        if batch.old_logp_t is not None:
            known = known & credit.replayed.unsqueeze(1)
        else:
            batch.old_logp_t = torch.zeros_like(stored)
            lengths = [len(row.completion_ids) for row in plan.rows]
            missing = [i for i in range(plan.n_real) if not known[i, : lengths[i]].all()]
            at_once = self.policy.args.per_device_train_batch_size
            logps = self.policy.row_logps([plan.rows[i] for i in missing], at_once=at_once)
            for i, logp in zip(missing, logps, strict=True):
                batch.old_logp_t[i, : lengths[i]] = torch.tensor(logp)
        batch.old_logp_t = torch.where(known, stored, batch.old_logp_t)

    @contextlib.contextmanager
    def forward(self, model: nn.Module, passed: tuple, named: dict[str, Any]) -> Iterator[None]:
        if not self._packed and named.get("token_type_ids") is None:  # which passes over trees alone have
            yield
            return
        if self._packed and self.planned is not None:  # passes over the rows before they are in a batch
            input_ids, width = passed[0], passed[2]
            columns = visible_columns(self.planned.rows, prompt_width=input_ids.size(1) - width, width=width)
            named["token_type_ids"] = columns.to(input_ids.device)
        if named.get("token_type_ids") is None:  # rows of a single branch
            named["token_type_ids"] = torch.full_like(passed[0], passed[0].size(1))
        with tree_attention(model, is_compiled=self.policy.args.torch_compile):
            yield

    def save(self, folder: Path) -> dict[str, dict[str, Any]]:
        self.forest.buffer.save(folder / REPLAY_FILE)
        return {"replay": {"file": REPLAY_FILE, "rows": len(self.forest.buffer)}}

    def load(self, folder: Path) -> None:
        self.forest.buffer.load(folder / REPLAY_FILE)


def make_source(policy: Policy, *, model_config: Any) -> Responses:
    """The source that a configuration asks for.

    Raises:
        ValueError: the model cannot attend as packed trees ask of it.
    """
    if policy.args.rollouts == "tree":
        return Trees(policy, model_config=model_config)
    return Chain(policy) if policy.args.rollouts == "chain" else Responses(policy)


def _accuracies(policy: Policy, batch: Batch) -> tuple[torch.Tensor | None, float]:
    """p̂ of this process's rows, and the accuracy of the batch, where a difficulty weight asks for them.

    Every response votes as it was scored, also one that the loss leaves out because it is truncated: to leave it out of
    p̂ too would make prompts on which the policy runs out of tokens look easy.
    """
    if policy.args.difficulty == "none":
        return None, float("nan")
    given = {"reward_range": policy.args.reward_range}
    p_hat = group_accuracy(batch.correct, num_generations=policy.group_size, **given)
    everyone = p_hat.repeat_interleave(policy.group_size)
    return batch.own_rows(everyone), batch_accuracy(batch.correct, **given)


def _checked_advantages(found: object, rewards: torch.Tensor, name: str) -> torch.Tensor:
    if not isinstance(found, torch.Tensor) or found.shape != rewards.shape or not found.isfinite().all():
        shape = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise ValueError(
            f"baseline {name!r} must return a finite advantage for each of the {len(rewards)} rewards, shape "
            f"{tuple(rewards.shape)}, and 0 where a reward is NaN; it returned {shape}"
            f"{' with NaN or infinity' * (shape == f'shape {tuple(rewards.shape)}')}."
        )
    return found.detach().to(rewards.dtype)


def _refuse_images(inputs: list[dict[str, Any]], config: CreditConfig) -> None:
    if any(example.get(name) is not None for example in inputs for name in ("image", "images")):
        raise ValueError(
            f"rollouts={config.rollouts!r} continues responses from token ids, without their images: use a data "
            "set without image columns, or set rollouts='none'."
        )
