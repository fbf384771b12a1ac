"""The sources of a generation batch: single responses, and chains of rollouts. Trees are in `forest`.

All have the same methods, so the trainer treats them alike.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..credit.difficulty import batch_accuracy, group_accuracy
from ..loss.batch import Batch
from ..loss.order import outcome_advantages
from .chain import chain_credit
from .policy import Plan, Policy


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
    stateful: tuple[Any, ...] = ()  # parts whose state checkpoints keep: [`~trl_credit.runs.checkpoints.Stateful`]

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


def _accuracies(policy: Policy, batch: Batch) -> tuple[torch.Tensor | None, float]:
    """p̂ of this process's rows and the accuracy of the batch, if the configuration has difficulty weights.

    Every response counts as it was scored, even if the loss leaves it out because it is truncated. Otherwise prompts on
    which the policy runs out of tokens would look easy.
    """
    if policy.args.difficulty == "none":
        return None, float("nan")
    size, reward_range = policy.group_size, policy.args.reward_range
    p_hat = group_accuracy(batch.correct, num_generations=size, reward_range=reward_range)
    return batch.own_rows(p_hat.repeat_interleave(size)), batch_accuracy(batch.correct, reward_range=reward_range)
