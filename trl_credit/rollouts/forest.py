"""The trees of a generation batch: grown, scored, turned into rows, and drawn from the replay buffer."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object

from ..config import CreditConfig
from ..credit.difficulty import group_accuracy
from ..segment_config import best_of
from .behavior import with_behavior_logps
from .policy import Policy
from .replay import ReplayBuffer, Row, question_key, question_number
from .tree import Tree, assign_tree_credit, grow_trees, packed_rows, sample_paths, training_rows


@dataclass
class Plan:
    """What a process trains on and logs in one generation batch.

    Attributes:
        rows: As many as the batch has on this process; those beyond `n_real` are fillers without credit.
        n_real: Rows with credit among `rows`.
        rewards: Shape (N, functions): rewards of N responses sampled from all processes' trees, in order of prompts.
        accuracy: Mean accuracy of all prompts in [0, 1], NaN if none was scored.
        has_replayed: Whether any process trains on rows of an earlier batch.
        is_empty: Whether no process has a row with credit.
        iteration: The buffer's, in which the rows were drawn.
        logged_texts, logged_advantages, logged_lengths, logged_truncated: Of the N responses.
        drawn: The rows with credit of all processes; this one has every `num_processes`-th, from its rank on.
        trees: Those that this process grew.
    """

    rows: list[Row]
    n_real: int
    rewards: torch.Tensor
    accuracy: float
    has_replayed: bool
    is_empty: bool
    iteration: int
    logged_texts: list
    logged_advantages: list[float]
    logged_lengths: list[int]
    logged_truncated: list[bool]
    drawn: list[Row]
    trees: list[Tree]


class TreeCredit(NamedTuple):
    """Credit of planned rows: advantages, segment numbers (−1: no loss), the quarter of the response (0 … 3, −1: not
    known) and π_old where it was stored with them (NaN: not known), all of shape (B, T), and whether they are replayed,
    p̂ and a number for their prompt, shape (B,)."""

    advantages: torch.Tensor
    segment_ids: torch.Tensor
    quarter_t: torch.Tensor
    behavior_logp_t: torch.Tensor
    replayed: torch.Tensor
    p_hat: torch.Tensor
    prompts: torch.Tensor


class Forest:
    """Plans generation batches of trees for a policy.

    Each process grows the trees of the prompts that begin on it; the rows of all trees then meet in one buffer, the
    same on every process, from which all draw the same rows and take equal shares. So trees may differ in size from
    process to process, and a checkpoint needs one buffer, whatever the number of processes.

    Args:
        policy ([`Policy`]):
            Continues prefixes, scores responses, records metrics.
        can_pack (`bool`, *optional*, defaults to `False`):
            Whether passes over branches side by side may stand for those over rows.
    """

    def __init__(self, policy: Policy, *, can_pack: bool = False) -> None:
        self.policy, self.can_pack = policy, can_pack
        config = policy.args
        self.buffer = ReplayBuffer(
            life=config.replay_iterations, cap=config.replay_cap, seed=config.seed, legacy=config.replay_legacy
        )

    def plan(self, inputs: list[dict[str, Any]]) -> Plan:
        """Grows and scores trees for the prompts of `inputs` (B rows, each prompt repeated `num_generations` times)."""
        policy, config = self.policy, self.policy.args
        processes, rank = policy.num_processes, policy.rank
        group = policy.group_size
        own = [i for i in range(len(inputs)) if (rank * len(inputs) + i) % group == 0]
        examples = [inputs[i] for i in own]
        prompt_ids = policy.tokenize([example["prompt"] for example in examples]) if examples else []
        trees = [Tree(example, ids) for example, ids in zip(examples, prompt_ids, strict=True)]

        with policy.timed("rollouts"):
            grow_trees(
                trees,
                branching=config.tree_branching,
                segment_length=config.tree_segment_length,
                budget=policy.remaining_budget,
                continue_prefixes=_with_label(policy.continue_prefixes, len(config.tree_branching)),
                is_finished=policy.is_finished,
            )
        self._score(trees, inputs[:1])
        low, high = config.reward_range
        assign_tree_credit(
            trees,
            kind=config.segment_advantage,
            process_weight=config.process_reward_weight,
            process_best_of=best_of(config),
            process_form=config.process_reward_form,
            to_unit=lambda value: (value - low) / (high - low),
        )
        self._record(trees)

        iteration, expired = self.buffer.iteration, self.buffer.expired
        # by prompt and batch, so that it does not matter which process a tree is on
        seeds = [f"{config.seed} {iteration} {question_key(tree.prompt_ids)}" for tree in trees]
        leaves = [
            (tree, leaf)
            for tree, seed in zip(trees, seeds, strict=True)
            for leaf in sample_paths(tree, group, rng=random.Random(seed))
        ]
        texts = policy.decode_responses(
            [tree.example["prompt"] for tree, _ in leaves], [leaf.written() for _, leaf in leaves]
        )
        logged = [
            (leaf.rewards, text, leaf.value - tree.root.value, len(leaf.written()), leaf.truncated)
            for (tree, leaf), text in zip(leaves, texts, strict=True)
        ]
        mine = self._new_rows(trees), logged, [row_accuracy(tree, config) for tree in trees]
        everyone = zip(*gather_object([mine]), strict=True)  # in the order of processes
        new_rows, logged, accuracies = ([x for part in parts for x in part] for parts in everyone)
        rewards, texts, advantages, lengths, truncated = map(list, zip(*logged, strict=True))
        scored = [accuracy for accuracy in accuracies if not math.isnan(accuracy)]
        self.buffer.add(new_rows)
        drawn = self.buffer.draw(len(inputs) * processes)
        share = drawn[rank::processes]
        self._record_draw(drawn, iteration, expired, len(inputs) * processes)
        return Plan(
            rows=share + [_filler(drawn, inputs, policy)] * (len(inputs) - len(share)),
            n_real=len(share),
            rewards=torch.tensor(rewards),
            accuracy=sum(scored) / len(scored) if scored else math.nan,
            has_replayed=any(row.birth < iteration for row in drawn),
            is_empty=not drawn,
            iteration=iteration,
            logged_texts=texts,
            logged_advantages=advantages,
            logged_lengths=lengths,
            logged_truncated=truncated,
            drawn=drawn,
            trees=trees,
        )

    def credit_tensors(self, plan: Plan, *, width: int) -> TreeCredit:
        """Credit of the planned rows, padded to `width` tokens."""
        rows, device = plan.rows, self.policy.device
        replayed = torch.tensor([i < plan.n_real and row.birth < plan.iteration for i, row in enumerate(rows)])
        advantages = torch.zeros(len(rows), width)
        ids = torch.full((len(rows), width), -1)
        quarters = torch.full((len(rows), width), -1)
        known = torch.full((len(rows), width), math.nan)
        for i, row in enumerate(rows[: plan.n_real]):
            n = len(row.completion_ids)
            advantages[i, :n] = torch.tensor(row.advantages)
            ids[i, :n] = torch.tensor(row.segments)
            if row.quarters is not None:
                quarters[i, :n] = torch.tensor(row.quarters)
            logps = row.behavior_logps
            if logps is None and replayed[i]:
                logps = row.sampling_logps
            if logps is not None:
                known[i, :n] = torch.tensor(logps)
        p_hat = torch.tensor([row.accuracy for row in rows])
        prompts = torch.tensor([question_number(row.question) for row in rows])
        return TreeCredit(*(x.to(device) for x in (advantages, ids, quarters, known, replayed, p_hat, prompts)))

    def _score(self, trees: list[Tree], filler: list[dict[str, Any]]) -> None:
        policy, config = self.policy, self.policy.args
        leaves = [(tree, leaf) for tree in trees for leaf in tree.root.leaves()]
        examples = [tree.example for tree, _ in leaves] or filler
        rewards = policy.score_responses(examples, [leaf.written() for _, leaf in leaves])
        total_correct = zip(policy.total_reward(rewards).tolist(), policy.correct_reward(rewards).tolist(), strict=True)
        for (_, leaf), by_function, (total, correct) in zip(leaves, rewards.tolist(), total_correct, strict=True):
            leaf.rewards, leaf.value, leaf.correct = by_function, total, correct
            if leaf.truncated and config.truncated_value is not None and not math.isnan(total):
                leaf.value = config.truncated_value

    def _new_rows(self, trees: list[Tree]) -> list[Row]:
        config = self.policy.args
        by_value = config.process_reward_weight != 0.0 and config.process_reward_form == "value"
        keep_zero = config.policy_loss != "clip" or by_value
        rows: list[list[Row]] = []
        for tree in trees:
            given = {"accuracy": row_accuracy(tree, config), "keep_zero": keep_zero}
            if config.tree_rows == "packed":
                rows.append(packed_rows(tree, max_rows=self.policy.group_size, **given))
            else:
                rows.append(training_rows(tree, form=config.tree_rows, **given))
        made = [row for own in rows for row in own]
        if config.replay_iterations == 1 or self.policy.use_vllm:
            return made
        # replayed rows need π_old of the policy that made them, which is the one at hand now
        row_logps, at_once = self.policy.row_logps, config.per_device_train_batch_size
        if self.can_pack and config.tree_rows != "packed":
            return with_behavior_logps(trees, rows, at_once=at_once, row_logps=row_logps)
        logps = row_logps(made, at_once=at_once)
        return [replace(row, behavior_logps=logp) for row, logp in zip(made, logps, strict=True)]

    def _record(self, trees: list[Tree]) -> None:
        nodes = [node for tree in trees for node in tree.root.walk()[1:]]
        one = 1 / self.policy.num_processes
        tokens = sum(len(node.segment.ids) for node in nodes)
        zero = sum(node.advantage == 0.0 for node in nodes)
        stats: dict[str, tuple[float, float]] = {
            "nodes": (len(nodes), one),
            "nodes_zero_advantage": (zero, len(nodes)),
            "rollouts": (len(nodes), one),
            "rollout_tokens": (tokens, one),
            "rollout_token_share": (tokens, tokens),
            "groups_without_signal": (
                sum(not any(n.advantage for n in tree.root.walk()) for tree in trees),
                len(trees),
            ),
            "unique_responses": _sums([len({tuple(leaf.written()) for leaf in t.root.leaves()}) for t in trees]),
            "tree_value": _sums([tree.root.value for tree in trees]),
            "segments_per_response": _sums([leaf.depth for tree in trees for leaf in tree.root.leaves()]),
        }
        for depth in range(1, len(self.policy.args.tree_branching) + 1):
            level = [node for node in nodes if node.depth == depth]
            stats[f"segment_value/level_{depth}"] = _sums([node.value for node in level])
            stats[f"segment_abs_advantage/level_{depth}"] = _sums([abs(node.advantage) for node in level])
        self.policy.record(stats)

    def _record_draw(self, drawn: list[Row], iteration: int, expired: int, wanted: int) -> None:
        one = 1 / self.policy.num_processes  # the same on every process
        ages = [iteration - row.birth for row in drawn]
        self.policy.record(
            {
                "rows": (len(drawn) * one, one),
                "nodes_trained": (sum(len({*row.segments} - {-1}) for row in drawn) * one, one),
                "rows_missing": ((wanted - len(drawn)) / wanted, 1),
                "replay/age": (sum(ages), len(ages)),
                "replay/size": (len(self.buffer) * one, one),
                "replay/expired": ((self.buffer.expired - expired) * one, one),
            }
        )


def row_accuracy(tree: Tree, config: CreditConfig) -> float:
    """p̂ of a tree's prompt: its leaves as they were scored, truncated or not, backed up to the root and mapped to
    [0, 1]; NaN where no difficulty weight asks for it."""
    if config.difficulty == "none":
        return math.nan
    value = torch.tensor([tree.root.mean_correct()])
    return group_accuracy(value, num_generations=1, reward_range=config.reward_range).item()


def _filler(drawn: list[Row], inputs: list[dict], policy: Policy) -> Row:
    """A row without credit, as short as can be, that keeps shapes and collective calls equal."""
    tokens = (drawn[0].prompt_ids[0], drawn[0].completion_ids[0]) if drawn else (0, 0)
    logps = (0.0,) if policy.use_vllm else None
    return Row("", tokens[:1], tokens[1:], (0.0,), (-1,), sampling_logps=logps)


def _sums(values: list[float]) -> tuple[float, float]:
    scored = [value for value in values if not math.isnan(value)]
    return sum(scored), len(scored)


def _with_label(continue_prefixes: Callable, levels: int) -> Callable:
    level = 0

    def labelled(prefixes: list[list[int]], *, n: int, budgets: list[int]) -> list:
        nonlocal level
        level += 1
        return continue_prefixes(prefixes, n=n, budgets=budgets, label=f"tree level {level} of {levels}")

    return labelled
