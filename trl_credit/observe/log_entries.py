"""The entries of a rollout log: responses, trees and the header."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from trl import GRPOConfig

from .. import __version__
from ..config import CreditConfig, active_part, defaults
from ..config.knobs import knobs_of
from ..loss import keys
from ..loss.batch import unpadded
from ..rollouts.sources import GenerationBatch
from ..rollouts.tree import Tree
from ..runs.identity import FREE
from ..runs.model_identity import base_name, embedded_task, without_folder
from ..runs.resumable import ResumableTrainer
from ..support.digests import seed_from
from ..support.functions import short_name
from .banner import credit_name
from .captured import Row
from .schema import Shard, exact_columns, gold_answer
from .token_texts import TokenTexts


# TRL's fields that change credit
_OF_TRL = ("loss_type", "scale_rewards", "top_entropy_quantile", "mask_truncated_completions", "num_iterations")


@dataclass
class Origin:
    """Where the rows of a generation batch come from.

    Attributes:
        batch: The generation batch.
        tags: Numbers (B,) of this process's rows among those of all processes; −1 for fillers.
        places: Group of each row, and its number in the group, by tag.
        sizes: Number of rows of each group.
        hidden: Token ids of truncated responses that the loss does not see, by tag.
        examples: Rows of the data set of this process's rows that are not of trees, by tag.
    """

    batch: GenerationBatch
    tags: torch.Tensor
    places: dict[int, tuple[int, int]]
    sizes: list[int]
    hidden: dict[int, list[int]] = field(default_factory=dict)
    examples: dict[int, dict[str, Any]] = field(default_factory=dict)


def origin_of(trainer: ResumableTrainer, batch: GenerationBatch, examples: Sequence[dict[str, Any]] = ()) -> Origin:
    """Numbers the groups of a generation batch in its order, the same on all processes.

    `examples` are the rows of the data set that this process sampled the batch from.

    Trees that were grown in this batch come before replayed ones, since `log_credit_groups` takes the first groups.
    """
    rows, rank, processes = batch.batch.written_t.size(0), trainer.processes.rank, trainer.processes.count
    if batch.plan is None:
        size = trainer.engine.group_size
        places = {tag: divmod(tag, size) for tag in range(rows * processes)}
        own = {rank * rows + i: example for i, example in enumerate(examples)}
        tags, sizes = torch.arange(rank * rows, (rank + 1) * rows), [size] * (rows * processes // size)
        # passes of the loss may cut off what it does not see, with the padding
        ids_t = batch.batch.data[keys.COMPLETION_IDS]
        ids = unpadded(ids_t, (ids_t != trainer.tokenizer.pad_token_id).flip(1).cumsum(1).flip(1))
        unseen = (batch.batch.written_t.sum(1) == 0).nonzero().flatten().tolist()
        return Origin(batch, tags, places, sizes, {rank * rows + i: ids[i] for i in unseen}, own)
    drawn, born = batch.plan.drawn, batch.plan.iteration
    fresh = {row.question for row in drawn if row.birth == born}
    questions = sorted(dict.fromkeys(row.question for row in drawn), key=lambda question: question not in fresh)
    number = {question: i for i, question in enumerate(questions)}
    sizes, places = [0] * len(number), {}
    for tag, row in enumerate(batch.plan.drawn):
        group = number[row.question]
        places[tag] = group, sizes[group]
        sizes[group] += 1
    tags = torch.arange(rows) * processes + rank
    tags[batch.plan.n_real :] = -1
    return Origin(batch, tags, places, sizes)


def response_of(
    trainer: ResumableTrainer, origin: Origin, row: Row, texts: TokenTexts, prompts: Mapping[tuple[int, ...], str]
) -> dict[str, Any]:
    """The entry of a row, with arrays where the log has lists. `prompts`: texts by token ids."""
    if (ids := origin.hidden.get(row.tag)) is not None:  # they have no credit, segment or turn
        outside = {"segment_ids": -1, "turn_ids": -1, "step_rewards": np.nan, "teacher_logprobs": np.nan}
        known = {name: x.dtype for name, x in row.lists.items() if x is not None}
        lists = {name: np.full(len(ids), outside.get(name, 0), dtype=dtype) for name, dtype in known.items()}
        row = row._replace(token_ids=ids, lists=row.lists | lists)
    batch, engine = origin.batch, trainer.engine
    group, index = origin.places[row.tag]
    example = origin.examples.get(row.tag, {})
    entry: dict[str, Any] = {
        "group": group,
        "index": index,
        "prompt": prompts[tuple(row.prompt_ids)],
        "completion": engine.decode(row.token_ids),
        "answer": gold_answer(example),
        "columns": exact_columns(example),
        **{"reward": None, "rewards": {}, "truncated": False},
        "token_ids": row.token_ids,
        "tokens": texts.of(row.token_ids),
        **row.lists,
        **{"segment_values": None, "nodes": None, "segment_nodes": None},
    }
    if batch.plan is not None:
        drawn = batch.plan.drawn[row.tag]
        if drawn.birth == batch.plan.iteration:  # not replayed from an earlier batch
            entry |= {"nodes": drawn.nodes, "segment_nodes": drawn.segment_nodes}
        return entry
    entry["reward"] = batch.batch.rewards[row.tag].item()
    entry["rewards"] = dict(zip(trainer.reward_func_names, batch.batch.rewards_per_func[row.tag].tolist(), strict=True))
    budget = engine.remaining_budget(len(row.prompt_ids), 0)
    entry["truncated"] = not row.token_ids or not engine.is_finished(row.token_ids, budget)
    if batch.value_t is not None:
        value_t, final_value = (x[row.tag - int(origin.tags[0])] for x in (batch.value_t, batch.final_value))
        ids = row.lists["segment_ids"].tolist()
        starts = [ids.index(k) for k in range(max(ids, default=-1) + 1)]
        entry["segment_values"] = [*value_t[starts].tolist(), final_value.item()]
    return entry


def trees_of(trainer: ResumableTrainer, origin: Origin) -> list[tuple[int, list[dict[str, Any]], str | None]]:
    """Group, nodes and gold answer of each logged tree that this process grew."""
    if (plan := origin.batch.plan) is None:
        return []
    trained: dict[str, set[int]] = defaultdict(set)
    for row in plan.drawn:
        if row.birth == plan.iteration and row.segment_nodes is not None:
            trained[row.question].update(row.segment_nodes[s] for s in {*row.segments} - {-1})
    groups = {row.question: origin.places[tag][0] for tag, row in enumerate(plan.drawn)}
    most = trainer.args.log_credit_groups
    kept = [tree for tree in plan.trees if groups.get(tree.question, most) < most]
    return [(groups[x.question], _nodes(trainer, x, trained[x.question]), gold_answer(x.example)) for x in kept]


def _nodes(trainer: ResumableTrainer, tree: Tree, trained: set[int]) -> list[dict[str, Any]]:
    number, nodes = tree.numbers(), []
    for i, node in enumerate(tree.root.walk()):
        is_leaf = i > 0 and not node.children
        entry = {
            "id": i,
            "parent": None if node.parent is None else number[node.parent],
            "depth": node.depth,
            "text": trainer.engine.decode(node.segment.ids),
            "tokens": len(node.segment.ids),
            "value": node.value,
            "advantage": node.advantage if i > 0 else None,
            "trained": i in trained,
            "reward": node.value if is_leaf else None,
            "rewards": dict(zip(trainer.reward_func_names, node.rewards, strict=True)) if is_leaf else {},
            "truncated": node.truncated,
        }
        nodes.append(entry)
    return nodes


def shard_of(
    trainer: ResumableTrainer, origin: Origin, parts: list[tuple[list, list]], *, step: int, steps: list[int]
) -> Shard:
    """Joins the entries of all processes to the shard of optimizer step `step`, whose rows were trained on from
    `steps[0]` to `steps[1]`. Only complete groups are kept, in order."""
    grown = [tree for _, own in parts for tree in own]
    # of a prompt with two trees, rows do not record which tree they are from
    times = Counter(group for group, *_ in grown)
    trees = {group: nodes for group, nodes, _ in grown if times[group] == 1}
    answers = {group: answer for group, _, answer in grown}
    responses = sorted((row for own, _ in parts for row in own), key=lambda row: (row["group"], row["index"]))
    rows = Counter(row["group"] for row in responses)
    responses = [row for row in responses if rows[row["group"]] == origin.sizes[row["group"]]]
    logged = {row["group"] for row in responses}
    for row in responses:
        row["answer"] = answers.get(row["group"], row["answer"])
        if (nodes := trees.get(row["group"])) is None:
            row |= {"nodes": None, "segment_nodes": None}
        elif row["nodes"] and trainer.args.tree_rows != "packed":
            last = nodes[row["nodes"][-1]]
            if last["reward"] is not None:
                row |= {name: last[name] for name in ("reward", "rewards", "truncated")}
        row |= {name: x.tolist() for name, x in row.items() if isinstance(x, np.ndarray)}
    header = _header(trainer, origin) | {"step": step, "steps": steps, "groups_logged": len(logged)}
    return Shard(header, {group: nodes for group, nodes in trees.items() if group in logged}, responses)


def _header(trainer: ResumableTrainer, origin: Origin) -> dict[str, Any]:
    args, config = trainer.args, trainer.accelerator.unwrap_model(trainer.model).config
    return {
        "algorithm": credit_name(trainer),
        "trainer": type(trainer).__name__,
        "trl_credit": __version__,
        "run": trainer.run_id,
        "model": base_name(config) if embedded_task(config) is None else "the embedded model",
        "settings": settings_of(args),
        "trace_decay": args.trace_decay if args.has_trace or args.loss_weight != "none" else None,
        "clip": [1 - args.clip_range[0], args.clip_range[1] - 1],
        "beta": args.beta,
        "temperature": args.temperature,
        "eos_token": trainer.tokenizer.eos_token,
        "groups_total": len(origin.sizes),
        "difficulty_belief": origin.batch.prior,
        "batch_seed": seed_from(args.seed, *origin.batch.place),
    }


def settings_of(args: CreditConfig) -> dict[str, Any]:
    """The active knobs of credit that differ from plain GRPO's; functions and the teacher without their folders."""
    knobs, plain = knobs_of(type(args)), defaults(CreditConfig)
    kept = plain.keys() - {f.name for f in fields(GRPOConfig)} - FREE | {*_OF_TRL}
    kept |= {name for name, knob in knobs.items() if knob.changes_loss}
    active = active_part({f.name: getattr(args, f.name) for f in fields(args) if f.name in kept}, vars(args), knobs)
    # a knob of the preset alone is always a difference
    settings = {name: value for name, value in active.items() if name not in plain or value != plain[name]}
    if "teacher" in settings:
        settings["teacher"] = without_folder(settings["teacher"])
    return settings | {name: short_name(settings[name]) for name in settings.keys() & args.custom_functions().keys()}
