"""The sources of a generation batch: single responses, chains of rollouts, or trees.

All have the same methods, so the trainer treats them alike.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.logging import get_logger
from torch import nn

from ..credit.difficulty import batch_accuracy, group_accuracy
from ..loss import keys
from ..loss.batch import Batch
from ..loss.order import outcome_advantages
from ..passes.attention import check_tree_attention, tree_attention
from .chain import chain_credit
from .forest import Forest, can_pack
from .policy import Plan, Policy
from .prompts import Prompts
from .replay import padded, question_number, visible_columns


logger = get_logger(__name__)

REPLAY_FILE = "replay.safetensors"


@dataclass
class GenerationBatch:
    """A generation batch and its advantages, before the steps that all sources share (difficulty weight, M, whitening).

    Attributes:
        batch: The rows of this process.
        advantages: Shape (B,), or (B, T) if the tokens of a row differ.
        p_hat: Accuracy of each row's prompt in [0, 1], shape (B,), or `None` without difficulty weights.
        accuracy: Accuracy of the whole batch, NaN if nothing was scored.
        logged: Advantages (B,) for the table of completions, if they are not `advantages` themselves.
        is_logged: Whether the source has already filled that table.
        is_empty: Whether no process has a row to learn from.
        prompts: A number for each row's prompt, shape (B,); `None` if rows come in whole groups, prompt after prompt.
        credited: Which responses (B,) have a token with an advantage other than 0. `None` if the rewards tell it: a
            group then has such a response if and only if its rewards differ.
        values: For a chain: V (B, T) where segments begin, and the value (B,) at the end.
        plan: For trees: the plan of the batch.
        moves_belief: Whether its accuracy moves the difficulty belief.
        examples: This process's rows of the data set, where they are not those that the trainer gave.
        prior: HA-DW's belief before the batch, or `None`.
        place: Optimizer steps before it, and micro-batches since the last one: the same after a resume.
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
    moves_belief: bool = True
    prior: float | None = None
    examples: list[dict[str, Any]] | None = None
    place: tuple[int, int] = (0, 0)


def has_images(inputs: list[dict[str, Any]]) -> bool:
    """Whether rows of the data set have images."""
    return any(example.get(name) is not None for example in inputs for name in ("image", "images"))


class Responses:
    """One row per response, with an advantage from its group; also the base class of the other sources.

    Args:
        policy ([`Policy`]):
            Samples and scores.
    """

    calls_engine_again = False  # whether a batch needs more than one call of an engine
    stateful: tuple[Any, ...] = ()  # parts whose state checkpoints keep: [`~trl_credit.runs.resumable.Stateful`]

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def check(self, inputs: list[dict[str, Any]]) -> None:
        """Raises a `ValueError` for rows of the data set that this source cannot sample."""
        if self.calls_engine_again and has_images(inputs):
            what = f"rollouts={self.policy.args.rollouts!r} continues responses from token ids, without their images"
            raise ValueError(f"{what}: use a data set without image columns, or set rollouts='none'.")

    def make(self, inputs: list[dict[str, Any]]) -> GenerationBatch:
        """The batch for rows of the data set, every prompt repeated `group_size` times. Collective."""
        return self.credit(self.policy.sample(inputs), inputs)

    def credit(self, batch: Batch, inputs: list[dict[str, Any]]) -> GenerationBatch:
        """A sampled batch with its advantages. `inputs` are its rows of the data set. Collective."""
        policy, config = self.policy, self.policy.args
        advantages = batch.advantages
        if config.baseline != "group":
            # a masked response has length 0: it has no gradient whose variance a baseline could lower
            lengths = policy.processes.gather(batch.mask_t.sum(-1))
            of_all = outcome_advantages(config, batch.rewards, lengths=lengths, num_generations=policy.group_size)
            advantages = batch.own_rows(of_all)
        if (along_t := batch.take_returns()) is not None:
            credited = ((along_t != 0) & batch.mask_t.bool()).any(-1)  # equal rewards may lie at different steps
            return GenerationBatch(batch, along_t, *_accuracies(policy, batch), credited=credited)
        return GenerationBatch(batch, advantages, *_accuracies(policy, batch))

    def around_forward(
        self, model: nn.Module, args: tuple, kwargs: dict[str, Any], *, planned: Plan | None
    ) -> AbstractContextManager[None]:
        """Wraps each forward pass over its rows.

        Args:
            model (`nn.Module`):
                The model of the pass.
            args (`tuple`), kwargs (`dict[str, Any]`):
                The arguments of the pass. It may change `kwargs`.
            planned ([`Plan`] or `None`):
                The plan that TRL makes a batch from at the moment.
        """
        return nullcontext()


class Chain(Responses):
    """Responses with credit per segment, from values of the states where segments begin (SPO-chain, VinePPO)."""

    calls_engine_again = True

    def credit(self, batch: Batch, inputs: list[dict[str, Any]]) -> GenerationBatch:
        policy = self.policy
        policy.fill_old_logps(batch)
        credit = chain_credit(
            policy,
            inputs,
            prompt_ids=batch.prompt_ids,
            completion_ids=batch.completion_ids,
            old_logp_t=batch.old_logp_t,
            rewards=batch.rewards,
            # turns have a tool's tokens between them
            mask_t=batch.mask_t if policy.args.segmentation == "turns" else batch.written_t,
        )
        batch.segment_ids, advantages = credit.segment_ids, credit.advantages
        if (along_t := batch.take_returns()) is not None:
            advantages = advantages + along_t
        if credit.unsplit.any():  # without steps there is no credit, and their tokens do not count
            batch.show_loss((~credit.unsplit).unsqueeze(1))
        # whether the final rewards of a group differ does not tell whether its segments have credit
        credited = ((advantages != 0) & batch.mask_t.bool()).any(-1)
        shown = {"logged": credit.per_response, "credited": credited, "values": (credit.value_t, credit.final_value)}
        return GenerationBatch(batch, advantages, *_accuracies(policy, batch), **shown)


class Trees(Responses):
    """Rows from trees of segments, each compared with its siblings, new or replayed (SPO-tree)."""

    calls_engine_again = True
    name, setting = "replay", "rollouts='tree'"  # of its state in checkpoints

    def __init__(self, policy: Policy, *, model_config: Any, prompts: Prompts) -> None:
        super().__init__(policy)
        self._prompts = prompts
        self.forest = Forest(policy, can_pack=can_pack(model_config), prompts=prompts)
        self.stateful = (self, *prompts.stateful)
        self._packed = policy.args.tree_rows == "packed"
        if self._packed:
            check_tree_attention(model_config)

    def make(self, inputs: list[dict[str, Any]]) -> GenerationBatch:
        policy, inputs = self.policy, self._prompts.begin(inputs)
        plan = self.forest.plan(inputs)
        self._prompts.record()
        batch = policy.sample(inputs, planned=plan)
        rows = plan.rows
        batch.segment_ids = self._padded([row.segments for row in rows], value=-1, width=batch.width)
        batch.quarter_t = self._padded([row.quarters or [] for row in rows], value=-1, width=batch.width)
        batch.show_loss(batch.segment_ids >= 0)
        if self._packed:
            widths = {"prompt_width": batch.data[keys.PROMPT_IDS].size(1), "width": batch.width}
            batch.visible_until = visible_columns(rows, **widths).to(policy.processes.device)
        is_old = [i < plan.n_real and row.birth < plan.iteration for i, row in enumerate(rows)]
        replayed = torch.tensor(is_old, device=policy.processes.device).unsqueeze(1)
        if batch.engine_ratio_t is not None:
            policy.correct_by_segment(batch)
            # π_old of replayed rows is already that of the policy that sampled them
            batch.engine_ratio_t = batch.engine_ratio_t.masked_fill(replayed, 1.0)
        if plan.has_replayed:  # the same on all processes
            self._fill_old_logps(batch, plan, replayed)
        policy.log.planned(plan)
        if not plan.drawn:
            logger.warning("no segment of this generation batch has an advantage: no process makes an update")
        advantages = self._padded([row.advantages for row in rows], value=0.0, width=batch.width)
        p_hat = torch.tensor([row.accuracy for row in rows], device=policy.processes.device)
        prompts = torch.tensor([question_number(row.question) for row in rows], device=policy.processes.device)
        shown = {"is_logged": True, "is_empty": not plan.drawn, "prompts": prompts, "plan": plan}
        return GenerationBatch(batch, advantages, p_hat, plan.accuracy, examples=inputs, **shown)

    def _padded(self, rows: list, *, value: float, width: int) -> torch.Tensor:
        return padded(rows, value=value, width=width).to(self.policy.processes.device)

    def _fill_old_logps(self, batch: Batch, plan: Plan, replayed: torch.Tensor) -> None:
        """Takes π_old from the rows and computes it where they lack it. New rows keep what TRL computed. Collective."""
        rows = list(zip(plan.rows, replayed.flatten().tolist(), strict=True))
        stored = [row.behavior_logps or (is_old and row.sampling_logps) or [] for row, is_old in rows]
        stored_t = self._padded(stored, value=math.nan, width=batch.width)
        known = ~stored_t.isnan()
        if batch.old_logp_t is not None:
            known = known & replayed
        else:
            real = enumerate(plan.rows[: plan.n_real])
            missing = [i for i, row in real if not known[i, : len(row.completion_ids)].all()]
            at_once = self.policy.args.per_device_train_batch_size
            logps = self.policy.row_logps([plan.rows[i] for i in missing], at_once=at_once)
            batch.old_logp_t = torch.zeros_like(stored_t)
            for i, logp in zip(missing, logps, strict=True):
                batch.old_logp_t[i, : len(logp)] = torch.tensor(logp)
        batch.old_logp_t = torch.where(known, stored_t, batch.old_logp_t)

    def around_forward(
        self, model: nn.Module, args: tuple, kwargs: dict[str, Any], *, planned: Plan | None
    ) -> AbstractContextManager[None]:
        # only packed rows have token types: rows of the batch, or rows that compute π_old of plain rows
        if not self._packed and kwargs.get(keys.VISIBLE_UNTIL) is None:
            return nullcontext()
        input_ids = args[0]
        if self._packed and planned is not None:  # the batch does not have its columns yet
            width = args[2]
            columns = visible_columns(planned.rows, prompt_width=input_ids.size(1) - width, width=width)
            kwargs[keys.VISIBLE_UNTIL] = columns.to(input_ids.device)
        if kwargs.get(keys.VISIBLE_UNTIL) is None:  # rows of a single branch
            kwargs[keys.VISIBLE_UNTIL] = torch.full_like(input_ids, input_ids.size(1))
        return tree_attention(model, is_compiled=self.policy.args.torch_compile)

    def state_dict(self, folder: Path) -> dict[str, Any]:
        """Writes the replay buffer to a file of its own, and returns what a checkpoint keeps beside it."""
        self.forest.buffer.save(folder / REPLAY_FILE)
        return {"file": REPLAY_FILE, "rows": len(self.forest.buffer)}

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        """Reads the replay buffer."""
        self.forest.buffer.load(folder / REPLAY_FILE)


def _accuracies(policy: Policy, batch: Batch) -> tuple[torch.Tensor | None, float]:
    """p̂ of this process's rows and the accuracy of the batch, if the configuration has difficulty weights.

    Every response counts as it was scored, even if the loss leaves it out because it is truncated. Otherwise prompts on
    which the policy runs out of tokens would look easy.
    """
    if policy.args.difficulty == "none":
        return None, float("nan")
    given = {"reward_range": policy.args.reward_range}
    p_hat = group_accuracy(batch.correct, num_generations=policy.group_size, **given)
    everyone = p_hat.repeat_interleave(policy.group_size)
    return batch.own_rows(everyone), batch_accuracy(batch.correct, **given)
