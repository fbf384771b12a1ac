"""The trees of a generation batch: growing, scoring, and the rows to train on, new or from the replay buffer."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import gather_object
from torch import nn

from ..config import CreditConfig
from ..credit.difficulty import group_accuracy
from ..loss import keys
from ..loss.batch import Batch
from ..passes.attention import branch_problem, tree_attention
from .policy import LoggedResponse, Plan, Policy
from .prompts import Prompts
from .replay import ReplayBuffer, Row, padded, question_number, visible_columns
from .sources import GenerationBatch, Responses
from .tree import Tree, assign_tree_credit, grow_trees, packed_rows, sample_paths, training_rows, with_behavior_logps


logger = get_logger(__name__)

REPLAY_FILE = "replay.safetensors"
# model types for which the output of a token depends only on its own branch; otherwise π_old is computed unpacked
PACKED_MODELS = ("gemma", "llama", "qwen2", "qwen3")


def can_pack(config: Any) -> bool:
    """Whether a model of this configuration gives packed branches the log-probabilities of plain rows."""
    return config.get_text_config().model_type in PACKED_MODELS and branch_problem(config) is None


class Trees(Responses):
    """Rows from trees of segments, each compared with its siblings, new or replayed (SPO-tree).

    Each process grows the trees of the prompts that begin on it. The rows of all trees then go into one buffer, the
    same on every process; all processes draw the same rows from it and take equal shares. So trees may differ in size
    between processes, and a checkpoint needs one buffer, whatever the number of processes.

    Args:
        policy ([`Policy`]):
            Continues prefixes, scores responses, records metrics.
        model_config (`PretrainedConfig`):
            The configuration of the model.
        prompts ([`Prompts`]):
            Further prompts, for `groups="refill"`.

    Raises:
        ValueError: the model does not support the attention of packed rows.
    """

    calls_engine_again, text_setting = True, "rollouts"
    name, setting = "replay", "rollouts='tree'"  # checkpoints name its state so

    def __init__(self, policy: Policy, *, model_config: Any, prompts: Prompts) -> None:
        super().__init__(policy)
        config = policy.args
        self._prompts, self.can_pack = prompts, can_pack(model_config)
        self.stateful = (self, *prompts.stateful)
        self._is_packed = config.tree_rows == "packed"
        if self._is_packed and (problem := branch_problem(model_config)) is not None:
            raise ValueError(f"tree_rows='packed' {problem}; or set tree_rows='paths'.")
        limits = {"life": config.replay_iterations, "cap": config.replay_cap}
        self.buffer = ReplayBuffer(**limits, seed=config.seed, legacy=config.uses_released_code("spo_replay"))

    def make(self, inputs: list[dict[str, Any]]) -> GenerationBatch:
        policy, inputs = self.policy, self._prompts.begin(inputs)
        plan = self.plan(inputs)
        self._prompts.record()
        batch = policy.sample(inputs, planned=plan)
        rows = plan.rows
        batch.segment_ids = self._padded([row.segments for row in rows], value=-1, width=batch.width)
        batch.data[keys.QUARTERS] = self._padded([row.quarters or [] for row in rows], value=-1, width=batch.width)
        batch.show_loss(batch.segment_ids >= 0)
        if self._is_packed:
            widths = {"prompt_width": batch.data[keys.PROMPT_IDS].size(1), "width": batch.width}
            batch.data[keys.VISIBLE_UNTIL] = visible_columns(rows, **widths).to(policy.processes.device)
        is_old = [i < plan.n_real and row.birth < plan.iteration for i, row in enumerate(rows)]
        replayed = torch.tensor(is_old, device=policy.processes.device).unsqueeze(1)
        if batch.engine_ratio_t is not None:
            policy.correct_by_part(batch, batch.segment_ids)
            # π_old of replayed rows is already that of the policy that sampled them
            batch.engine_ratio_t = batch.engine_ratio_t.masked_fill(replayed, 1.0)
        if any(row.birth < plan.iteration for row in plan.drawn):  # the same on all processes
            self._fill_old_logps(batch, plan, replayed)
        policy.log.planned(plan)
        if not plan.drawn:
            logger.warning("no segment of this generation batch has an advantage: no process makes an update")
        advantages = self._padded([row.advantages for row in rows], value=0.0, width=batch.width)
        p_hat = torch.tensor([row.accuracy for row in rows], device=policy.processes.device)
        prompts = torch.tensor([question_number(row.question) for row in rows], device=policy.processes.device)
        return GenerationBatch(batch, advantages, inputs, p_hat, plan.accuracy, prompts=prompts, plan=plan)

    def _padded(self, rows: list, *, value: float, width: int) -> torch.Tensor:
        return padded(rows, value=value, width=width).to(self.policy.processes.device)

    def _fill_old_logps(self, batch: Batch, plan: Plan, replayed: torch.Tensor) -> None:
        """Takes π_old from the rows, or from a pass where they lack it. New rows keep what TRL computed. Collective."""
        rows = list(zip(plan.rows, replayed.flatten().tolist(), strict=True))
        stored = [row.behavior_logps or (is_old and row.sampling_logps) or [] for row, is_old in rows]
        stored_t = self._padded(stored, value=math.nan, width=batch.width)
        known = ~stored_t.isnan()
        if batch.old_logp_t is not None:
            known = known & replayed
        elif self.policy.processes.max(int(((batch.segment_ids >= 0) & ~known).any())):
            self.policy.fill_old_logps(batch)
        batch.old_logp_t = stored_t.where(known, 0.0 if batch.old_logp_t is None else batch.old_logp_t)

    def around_forward(
        self, model: nn.Module, args: tuple, kwargs: dict[str, Any], *, planned: Plan | None
    ) -> AbstractContextManager[None]:
        # only packed rows have token types: rows of the batch, or rows that compute π_old of plain rows
        if not self._is_packed and kwargs.get(keys.VISIBLE_UNTIL) is None:
            return nullcontext()
        input_ids = args[0]
        if self._is_packed and planned is not None:  # the batch does not have its columns yet
            width = args[2]
            columns = visible_columns(planned.rows, prompt_width=input_ids.size(1) - width, width=width)
            kwargs[keys.VISIBLE_UNTIL] = columns.to(input_ids.device)
        if kwargs.get(keys.VISIBLE_UNTIL) is None:  # rows of a single branch
            kwargs[keys.VISIBLE_UNTIL] = torch.full_like(input_ids, input_ids.size(1))
        return tree_attention(model, is_compiled=self.policy.args.torch_compile)

    # Plans

    def plan(self, inputs: list[dict[str, Any]]) -> Plan:
        """Grows and scores trees for the prompts of `inputs`: B rows, each prompt repeated `num_generations` times."""
        policy, config = self.policy, self.policy.args
        processes, rank, group = policy.processes.count, policy.processes.rank, policy.group_size
        # trees without signal have no rows once as many have signal as the batch has prompts
        calls, flags = self._prompts.fill(inputs, self._grow)
        trees = useful = [tree for call in calls for tree in call]
        if config.groups != "keep" and sum(flags) >= len(inputs) * processes // group:
            useful = [tree for tree in trees if has_signal(tree, config)]

        iteration, expired = self.buffer.iteration, self.buffer.expired
        seed = f"{config.seed} {iteration}"
        leaves = [(tree, leaf) for tree in calls[0] for leaf in sample_paths(tree, group, seed=seed)]
        prompts = [tree.example["prompt"] for tree, _ in leaves]
        texts = policy.decode_responses(prompts, [leaf.written() for _, leaf in leaves])
        logged = [
            LoggedResponse(leaf.rewards, text, leaf.value - tree.root.value, len(leaf.written()), leaf.truncated)
            for (tree, leaf), text in zip(leaves, texts, strict=True)
        ]
        mine = self._new_rows(useful), logged, [row_accuracy(tree, config) for tree in trees]
        everyone = zip(*gather_object([mine]), strict=True)  # in the order of processes
        new_rows, logged, accuracies = ([x for part in parts for x in part] for parts in everyone)
        total, scored = _sums(accuracies)
        self.buffer.add(new_rows)
        drawn = self.buffer.draw(len(inputs) * processes)
        share = drawn[rank::processes]
        self._record(trees, drawn, iteration, requested=len(inputs) * processes, expired=self.buffer.expired - expired)
        rows = share + [_filler(drawn, policy)] * (len(inputs) - len(share))
        accuracy = total / scored if scored else math.nan
        return Plan(rows, len(share), logged, accuracy, iteration=iteration, drawn=drawn, trees=trees)

    def _grow(self, inputs: list[dict[str, Any]]) -> tuple[list[Tree], list[bool]]:
        """Scored trees for the prompts that begin on this process. If prompts are drawn, also whether each tree of all
        processes has signal. Collective."""
        policy, config, size = self.policy, self.policy.args, self.policy.group_size
        start = policy.processes.rank * len(inputs)
        examples = [example for i, example in enumerate(inputs) if (start + i) % size == 0]
        prompt_ids = policy.tokenize([example["prompt"] for example in examples]) if examples else []
        trees = [Tree(example, ids) for example, ids in zip(examples, prompt_ids, strict=True)]
        with policy.timed("rollouts"):
            grow_trees(trees, policy, branching=config.tree_branching, segment_length=config.tree_segment_length)
        self._score(trees, inputs[:1])
        assign_tree_credit(trees, config)
        if not config.draws_prompts:
            return trees, []
        own = [(tree.root.mean_correct(), has_signal(tree, config)) for tree in trees]
        correct, flags = zip(*(pair for part in gather_object([own]) for pair in part), strict=True)
        self._prompts.note(torch.tensor(correct))
        return trees, list(flags)

    def _score(self, trees: list[Tree], filler: list[dict[str, Any]]) -> None:
        policy, truncated_value = self.policy, self.policy.args.truncated_value
        leaves = [(tree, leaf) for tree in trees for leaf in tree.root.leaves()]
        examples = [tree.example for tree, _ in leaves] or filler
        rewards = policy.score_responses(examples, [leaf.written() for _, leaf in leaves])
        columns = rewards.tolist(), policy.total_reward(rewards).tolist(), policy.correct_reward(rewards).tolist()
        for (_, leaf), by_function, total, correct in zip(leaves, *columns, strict=True):
            leaf.rewards, leaf.value, leaf.correct = by_function, total, correct
            if leaf.truncated and truncated_value is not None and not math.isnan(total):
                leaf.value = truncated_value

    def _new_rows(self, trees: list[Tree]) -> list[Row]:
        config, policy = self.policy.args, self.policy
        by_value = config.process_reward_weight != 0.0 and config.process_reward_form == "value"
        keep_zero = config.policy_loss != "clip" or by_value
        form = {"max_rows": policy.group_size} if self._is_packed else {"form": config.tree_rows}
        rows_of = partial(packed_rows if self._is_packed else training_rows, keep_zero=keep_zero, **form)
        by_tree = [rows_of(tree, accuracy=row_accuracy(tree, config)) for tree in trees]
        rows = [row for own in by_tree for row in own]
        if config.replay_iterations == 1 or policy.use_vllm:
            return rows
        # replayed rows need π_old of the policy that made them, which is the current one
        if self.can_pack and not self._is_packed:
            return with_behavior_logps(policy, trees, by_tree)
        logps = policy.row_logps(rows, at_once=config.per_device_train_batch_size)
        return [replace(row, behavior_logps=logp) for row, logp in zip(rows, logps, strict=True)]

    def _record(self, trees: list[Tree], drawn: list[Row], iteration: int, *, requested: int, expired: int) -> None:
        nodes = [node for tree in trees for node in tree.root.walk()[1:]]
        leaves = [leaf for tree in trees for leaf in tree.root.leaves()]
        one = 1 / self.policy.processes.count  # sums over processes are totals then
        tokens = sum(len(node.segment.ids) for node in nodes)
        without_signal = sum(not any(node.advantage for node in tree.root.walk()) for tree in trees)
        stats: dict[str, tuple[float, float]] = {
            "nodes": (len(nodes), one),
            "nodes_zero_advantage": (sum(node.advantage == 0.0 for node in nodes), len(nodes)),
            "rollouts": (len(nodes), one),
            "rollout_tokens": (tokens, one),
            "rollout_token_share": (tokens, tokens),
            "groups_without_signal": (without_signal, len(trees)),
            "unique_responses": _sums([len({tuple(leaf.written()) for leaf in t.root.leaves()}) for t in trees]),
            "tree_value": _sums([tree.root.value for tree in trees]),
            "segments_per_response": _sums([leaf.depth for leaf in leaves]),
            # the same on every process
            "rows": (len(drawn) * one, one),
            "nodes_trained": (sum(len({*row.segments} - {-1}) for row in drawn) * one, one),
            "rows_missing": ((requested - len(drawn)) / requested, 1),
            "replay/age": (sum(iteration - row.birth for row in drawn), len(drawn)),
            "replay/size": (len(self.buffer) * one, one),
            "replay/expired": (expired * one, one),
        }
        for depth in range(1, len(self.policy.args.tree_branching) + 1):
            level = [node for node in nodes if node.depth == depth]
            stats[f"segment_value/level_{depth}"] = _sums([node.value for node in level])
            stats[f"segment_abs_advantage/level_{depth}"] = _sums([abs(node.advantage) for node in level])
        self.policy.record(stats)

    # State

    def state_dict(self, folder: Path) -> dict[str, Any]:
        """Writes the replay buffer to a file of its own, and returns what a checkpoint keeps beside it."""
        self.buffer.save(folder / REPLAY_FILE)
        return {"file": REPLAY_FILE, "rows": len(self.buffer)}

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        """Reads the replay buffer."""
        self.buffer.load(folder / REPLAY_FILE)


def has_signal(tree: Tree, config: CreditConfig) -> bool:
    """Whether a tree's leaves differ by `group_signal`, or with "advantage", whether a node has an advantage."""
    if config.group_signal == "advantage":
        return any(node.advantage for node in tree.root.walk())
    values = [leaf.correct if config.group_signal == "correct" else leaf.value for leaf in tree.root.leaves()]
    return len({value for value in values if not math.isnan(value)}) > 1


def row_accuracy(tree: Tree, config: CreditConfig) -> float:
    """p̂ of a tree's prompt in [0, 1]: the accuracy of its leaves, backed up to the root. Truncated leaves count with
    their score. NaN without difficulty weights."""
    if config.difficulty == "none":
        return math.nan
    value = torch.tensor([tree.root.mean_correct()])
    return group_accuracy(value, num_generations=1, reward_range=config.reward_range).item()


def _filler(drawn: list[Row], policy: Policy) -> Row:
    """The shortest row without credit, which keeps shapes and collective calls equal."""
    tokens = (drawn[0].prompt_ids[0], drawn[0].completion_ids[0]) if drawn else (0, 0)
    return Row("", tokens[:1], tokens[1:], (0.0,), (-1,), sampling_logps=(0.0,) if policy.use_vllm else None)


def _sums(values: list[float]) -> tuple[float, float]:
    scored = [value for value in values if not math.isnan(value)]
    return sum(scored), len(scored)
