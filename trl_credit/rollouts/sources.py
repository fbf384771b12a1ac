"""The sources of a generation batch, which the trainer treats alike: here single responses; see `chain`, `forest`."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..credit.difficulty import batch_accuracy, group_accuracy
from ..loss.batch import Batch
from ..loss.order import outcome_advantages
from .policy import Plan, Policy


@dataclass
class GenerationBatch:
    """A generation batch and its advantages, before the steps that all sources share (difficulty weight, M, whitening).

    Attributes:
        batch: The rows of this process.
        advantages: Shape (B,), or (B, T) if the tokens of a row differ.
        examples: This process's rows of the data set.
        p_hat: Accuracy of each row's prompt in [0, 1], shape (B,), or `None` without difficulty weights.
        accuracy: Accuracy of the whole batch, NaN if nothing was scored.
        logged: Advantages (B,) for the table of completions, if they are not `advantages` themselves.
        prompts: A number for each row's prompt, shape (B,); `None` if rows come in whole groups, prompt after prompt.
        credited: Which responses (B,) have a token with an advantage other than 0. `None` if the rewards tell it: a
            group then has such a response if and only if its rewards differ.
        value_t, final_value: For a chain: V (B, T) where segments begin, and the value (B,) at the end.
        plan: For trees: the plan of the batch, which has filled that table.
        entries: What TRL's table of completions shows of it, of all processes, if groups of several calls are joined.
        moves_belief: Whether its accuracy moves the difficulty belief.
        prior: HA-DW's belief before the batch, or `None`.
        place: Optimizer steps before it, and micro-batches since the last one: the same after a resume.
    """

    batch: Batch
    advantages: torch.Tensor
    examples: list[dict[str, Any]]
    p_hat: torch.Tensor | None = None
    accuracy: float = float("nan")
    logged: torch.Tensor | None = None
    prompts: torch.Tensor | None = None
    credited: torch.Tensor | None = None
    value_t: torch.Tensor | None = None
    final_value: torch.Tensor | None = None
    plan: Plan | None = None
    entries: list[dict[str, Any]] | None = None
    moves_belief: bool = True
    prior: float | None = None
    place: tuple[int, int] = (0, 0)


class Responses:
    """One row per response, with an advantage from its group; also the base class of the other sources.

    Args:
        policy ([`Policy`]):
            Samples and scores.
    """

    calls_engine_again = False  # whether a batch needs more than one call of an engine
    text_setting: str | None = None  # the field by which it takes text alone
    stateful: tuple[Any, ...] = ()  # parts whose state checkpoints keep: [`~trl_credit.runs.checkpoints.Stateful`]

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def check(self, inputs: list[dict[str, Any]]) -> None:
        """Raises a `ValueError` for rows of the data set that this source cannot sample."""
        self.refuse_images(any(row.get(name) is not None for row in inputs for name in ("image", "images")))

    def refuse_images(self, has_images: bool) -> None:
        """Raises a `ValueError` if there are images, and token ids alone are continued or joined."""
        if has_images and (name := self.text_setting) is not None:
            what = f"{name}={getattr(self.policy.args, name)!r} takes rows of text, without their images"
            fix = f"use data, tools and environments without images, or set {name}="
            raise ValueError(f"{what}: {fix}{'none' if name == 'rollouts' else 'keep'!r}.")

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
            return GenerationBatch(batch, along_t, inputs, *accuracies(policy, batch), credited=credited)
        return GenerationBatch(batch, advantages, inputs, *accuracies(policy, batch))

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


def accuracies(policy: Policy, batch: Batch) -> tuple[torch.Tensor | None, float]:
    """p̂ of this process's rows and the accuracy of the batch, if the configuration has difficulty weights.

    Every response counts as it was scored, even if the loss leaves it out because it is truncated. Otherwise prompts on
    which the policy runs out of tokens would look easy.
    """
    if policy.args.difficulty == "none":
        return None, float("nan")
    size, reward_range = policy.group_size, policy.args.reward_range
    p_hat = group_accuracy(batch.correct, num_generations=size, reward_range=reward_range)
    return batch.own_rows(p_hat.repeat_interleave(size)), batch_accuracy(batch.correct, reward_range=reward_range)
