"""The entries of a rollout log: responses, trees and the header."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from datasets import Dataset, IterableDataset, Value
from trl import GRPOConfig

from .. import __version__
from ..config import CreditConfig, active_part, defaults
from ..config.knobs import knobs_of
from ..loss import keys
from ..rollouts.replay import question_key
from ..rollouts.sources import GenerationBatch
from ..rollouts.tree import Tree
from ..runs.identity import FREE
from ..runs.model_identity import base_name, embedded_task
from ..support.functions import short_name
from .banner import credit_name
from .captured import LoggedTrainer, Row
from .schema import Shard, gold_answer
from .token_texts import TokenTexts


# TRL's fields that change credit
_OF_TRL = ("loss_type", "scale_rewards", "top_entropy_quantile", "mask_truncated_completions", "num_iterations")


@dataclass
class Origin:
    """Where the rows of a generation batch come from.

    Attributes:
        made: The generation batch.
        tags: Numbers (B,) of this process's rows among those of all processes; −1 for fillers.
        places: Group of each row, and its number in the group, by tag.
        sizes: Number of rows of each group.
        hidden: Token ids of truncated responses that the loss does not see, by tag.
        answers: Gold answers of this process's rows that are not of trees, by tag.
    """

    made: GenerationBatch
    tags: torch.Tensor
    places: dict[int, tuple[int, int]]
    sizes: list[int]
    hidden: dict[int, list[int]] = field(default_factory=dict)
    answers: dict[int, str | None] = field(default_factory=dict)

    def group(self, tag: int) -> float:
        """The group of a row; infinity for a filler."""
        return self.places[tag][0] if tag in self.places else float("inf")


def origin_of(trainer: LoggedTrainer, made: GenerationBatch, examples: Sequence[dict[str, Any]] = ()) -> Origin:
    """Numbers the groups of a generation batch in its order, the same on all processes.

    `examples` are the rows of the data set that this process sampled the batch from.

    Trees that were grown in this batch come before replayed ones, since `log_credit_groups` takes the first groups.
    """
    rows, rank, processes = made.batch.written_t.size(0), trainer.processes.rank, trainer.processes.count
    if made.plan is None:
        size = trainer.engine.group_size
        places = {tag: divmod(tag, size) for tag in range(rows * processes)}
        tags, sizes = torch.arange(rank * rows, (rank + 1) * rows), [size] * (rows * processes // size)
        hidden = _hidden_responses(made.batch.data, tags.tolist(), pad_token_id=trainer.tokenizer.pad_token_id)
        answers = {rank * rows + i: gold_answer(example) for i, example in enumerate(examples)}
        return Origin(made, tags, places, sizes, hidden, answers)
    drawn, born = made.plan.drawn, made.plan.iteration
    fresh = {row.question for row in drawn if row.birth == born}
    questions = sorted(dict.fromkeys(row.question for row in drawn), key=lambda question: question not in fresh)
    number = {question: i for i, question in enumerate(questions)}
    sizes, places = [0] * len(number), {}
    for tag, row in enumerate(made.plan.drawn):
        group = number[row.question]
        places[tag] = group, sizes[group]
        sizes[group] += 1
    tags = torch.arange(rows) * processes + rank
    tags[made.plan.n_real :] = -1
    return Origin(made, tags, places, sizes)


def _hidden_responses(batch: dict[str, Any], tags: list[int], *, pad_token_id: int) -> dict[int, list[int]]:
    found = {}
    for i in (batch[keys.COMPLETION_MASK].sum(1) == 0).nonzero().flatten().tolist():
        ids = batch[keys.COMPLETION_IDS][i]
        used = (ids != pad_token_id).nonzero()
        found[tags[i]] = ids[: int(used[-1]) + 1 if len(used) else 0].tolist()
    return found


def _with_tokens(row: Row, ids: list[int]) -> Row:
    """Fills an empty row with the tokens that the loss did not see: without credit, segment or turn."""
    outside = {"segment_ids": -1, "turn_ids": -1, "step_rewards": np.nan}
    lists = {
        name: None if x is None else np.full(len(ids), outside.get(name, 0), dtype=x.dtype)
        for name, x in row.lists.items()
    }
    return row._replace(token_ids=ids, lists=lists)


def response_of(
    trainer: LoggedTrainer, origin: Origin, row: Row, texts: TokenTexts, prompts: Mapping[tuple[int, ...], str]
) -> dict[str, Any]:
    """The entry of a row, with arrays where the log has lists. `prompts`: texts by token ids."""
    if (hidden := origin.hidden.get(row.tag)) is not None:
        row = _with_tokens(row, hidden)
    made, engine = origin.made, trainer.engine
    group, index = origin.places[row.tag]
    found: dict[str, Any] = {
        "group": group,
        "index": index,
        "prompt": prompts[tuple(row.prompt_ids)],
        "completion": engine.decode(row.token_ids),
        "answer": origin.answers.get(row.tag),
        "reward": None,
        "rewards": {},
        "truncated": False,
        "token_ids": row.token_ids,
        "tokens": texts.of(row.token_ids),
        **row.lists,
        "segment_values": None,
        "nodes": None,
        "segment_nodes": None,
    }
    if made.plan is not None:
        drawn = made.plan.drawn[row.tag]
        if drawn.birth == made.plan.iteration:  # not replayed from an earlier batch
            found |= {"nodes": drawn.nodes, "segment_nodes": drawn.segment_nodes}
        return found
    found["reward"] = made.batch.rewards[row.tag].item()
    found["rewards"] = dict(zip(trainer.reward_func_names, made.batch.rewards_per_func[row.tag].tolist(), strict=True))
    budget = engine.remaining_budget(len(row.prompt_ids), 0)
    found["truncated"] = not row.token_ids or not engine.is_finished(row.token_ids, budget)
    if made.values is not None:
        value_t, final_value = (x[row.tag - int(origin.tags[0])] for x in made.values)
        ids = row.lists["segment_ids"].tolist()
        starts = [ids.index(k) for k in range(max(ids, default=-1) + 1)]
        found["segment_values"] = [*value_t[starts].tolist(), final_value.item()]
    return found


def trees_of(trainer: LoggedTrainer, origin: Origin) -> list[tuple[int, list[dict[str, Any]], str | None]]:
    """Group, nodes and gold answer of each logged tree that this process grew."""
    if (plan := origin.made.plan) is None:
        return []
    trained: dict[str, set[int]] = {}
    groups: dict[str, int] = {}
    for tag, row in enumerate(plan.drawn):
        groups[row.question] = origin.places[tag][0]
        if row.birth == plan.iteration and row.segment_nodes is not None:
            trained.setdefault(row.question, set()).update(row.segment_nodes[s] for s in {*row.segments} - {-1})
    found = []
    for tree in plan.trees:
        question = question_key(tree.prompt_ids)
        if groups.get(question, trainer.args.log_credit_groups) < trainer.args.log_credit_groups:
            nodes = _nodes(trainer, tree, trained.get(question, set()))
            found.append((groups[question], nodes, gold_answer(tree.example)))
    return found


def _nodes(trainer: LoggedTrainer, tree: Tree, trained: set[int]) -> list[dict[str, Any]]:
    number, found = tree.numbers(), []
    for i, node in enumerate(tree.root.walk()):
        is_leaf = i > 0 and not node.children
        found.append(
            {
                "id": i,
                "parent": None if node.parent is None else number[id(node.parent)],
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
        )
    return found


def joined(parts: list[tuple[list, list]], sizes: list[int], *, packed: bool) -> Shard:
    """Joins the entries of all processes to a shard without a header. Only complete groups are kept, in order."""
    trees: dict[int, list[dict[str, Any]]] = {}
    twice: set[int] = set()
    answers: dict[int, str | None] = {}
    for group, nodes, answer in (tree for _, own in parts for tree in own):
        if group in trees:
            twice.add(group)  # a prompt with two trees: rows do not record which tree they are from
        trees[group], answers[group] = nodes, answer
    by_group: dict[int, list[dict[str, Any]]] = {}
    for response in sorted((r for own, _ in parts for r in own), key=lambda r: (r["group"], r["index"])):
        by_group.setdefault(response["group"], []).append(response)
    shard = Shard({})
    for group, responses in by_group.items():
        if len(responses) != sizes[group]:
            continue
        nodes = None if group in twice else trees.get(group)
        if nodes is not None:
            shard.trees[group] = nodes
        for response in responses:
            response["answer"] = answers.get(group, response["answer"])
            if nodes is None:
                response |= {"nodes": None, "segment_nodes": None}
            elif response["nodes"] and not packed:
                last = nodes[response["nodes"][-1]]
                if last["reward"] is not None:
                    response |= {name: last[name] for name in ("reward", "rewards", "truncated")}
            shard.responses.append({n: x.tolist() if isinstance(x, np.ndarray) else x for n, x in response.items()})
    return shard


def header_of(trainer: LoggedTrainer, *, step: int, steps: list[int]) -> dict[str, Any]:
    """The header of a shard of optimizer step `step`, whose rows were trained on from `steps[0]` to `steps[1]`."""
    args, config = trainer.args, trainer.accelerator.unwrap_model(trainer.model).config
    return {
        "step": step,
        "steps": steps,
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
        "has_answer_column": _has_answer_column(trainer.train_dataset),
    }


def _has_answer_column(data: Any) -> bool:
    """Whether reward functions get `answer` as text, as it is logged."""
    features = data.features if isinstance(data, (Dataset, IterableDataset)) else None
    return features is not None and features.get("answer") == Value("string")


def settings_of(args: CreditConfig) -> dict[str, Any]:
    """The active knobs of credit that differ from plain GRPO's; functions without their folders."""
    of_trl = {f.name for f in fields(GRPOConfig)} - {*_OF_TRL}
    knobs, plain = knobs_of(type(args)), defaults(CreditConfig)
    kept = {name for name in plain if name not in of_trl and name not in FREE}
    kept.update(name for name, knob in knobs.items() if knob.changes_loss)
    alive = active_part({f.name: getattr(args, f.name) for f in fields(args) if f.name in kept}, vars(args), knobs)
    # a knob of the preset alone is always a difference
    found = {name: value for name, value in alive.items() if name not in plain or value != plain[name]}
    for name in found.keys() & args.custom_functions().keys():
        found[name] = short_name(found[name])
    return found
