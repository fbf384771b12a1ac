"""Optimizer steps on a chain and on a tree 6-6-6, ours against ours: rows of `train_step.py`.

Continuations are random tokens that cost nothing, so that what is compared is all but generation.
"""

import random
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import transformers
from stepping import Case, Compared, Rows, compare, make_case, ours

from trl_credit import CreditConfig, CreditTrainer


HEAD = [
    "",
    "rows",
    "tokens",
    "rows of the other",
    "tokens",
    "FLOPs other / first",
    "CPU time other / first",
    "peak MB",
    "peak MB of the other",
    "collectives",
    "of the other",
    "largest gradient difference",
]
PROMPT = 32


def _prompts(count: int, vocabulary: int) -> list[tuple[int, ...]]:
    draw = random.Random(0)
    return [tuple(draw.randrange(3, vocabulary) for _ in range(PROMPT)) for _ in range(count)]


class Form(NamedTuple):
    """How a tree is trained on: its rows, at most `count` of them, in micro-batches of `size`."""

    rows: str
    count: int
    size: int
    shared_prefix: str


def tree_cases(model: str, folder: str, *forms: Form, branching: list[int], segment: int) -> list[Case]:
    """The tree of one prompt in each of the forms. All train on every node with an advantage."""
    vocabulary = transformers.AutoConfig.from_pretrained(model).get_text_config().vocab_size
    rows: Rows = {prompt: [] for prompt in _prompts(1, vocabulary)}
    cases = []
    for i, form in enumerate(forms):
        settings = {
            "per_device_train_batch_size": form.size,
            "gradient_accumulation_steps": -(-form.count // form.size),
            "num_generations": form.count,
            "max_completion_length": segment * len(branching),
            "rollouts": "tree",
            "tree_branching": branching,
            "tree_segment_length": segment,
            "tree_rows": form.rows,
            "beta": 0.0,
            "loss_type": "dapo",
            **ours(shared_prefix=form.shared_prefix),
        }
        cases.append(make_case(CreditConfig, CreditTrainer, model, rows, output_dir=f"{folder}/{i}", **settings))
    return cases


def chain_cases(model: str, folder: str, *, length: int, shared_prefix: str, batch: int) -> list[Case]:
    """Responses of half to all of `length` tokens whose segments are valued, and the same padded as TRL pads them."""
    vocabulary = transformers.AutoConfig.from_pretrained(model).get_text_config().vocab_size
    draw = random.Random(1)
    rows: Rows = {
        prompt: [
            [draw.randrange(3, vocabulary) for _ in range(draw.randint(length // 8, length))] for _ in range(2 * batch)
        ]
        for prompt in _prompts(2, vocabulary)
    }
    settings = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": 4,
        "num_generations": 2 * batch,
        "max_completion_length": length,
        "rollouts": "chain",
        "segmentation": "fixed_count",
        "num_segments": 4,
        "rollouts_per_state": 2,
        "beta": 0.0,
        "loss_type": "grpo",
    }
    knobs = (ours(shared_prefix=shared_prefix), ours(shared_prefix="off") | {"length_sort": "off"})
    return [
        make_case(CreditConfig, CreditTrainer, model, rows, output_dir=f"{folder}/{i}", **settings, **more)
        for i, more in enumerate(knobs)
    ]


def segment_line(label: str, cases: list[Case], compared: Compared) -> str:
    """A row of the table."""
    sides = compared.first, compared.second
    rows = [case.trainer.args.per_device_train_batch_size * case.trainer.args.steps_per_generation for case in cases]
    cells = [
        label,
        *(x for n, side in zip(rows, sides, strict=True) for x in (n, f"{side.tokens:,}")),
        f"{sides[1].flops / sides[0].flops:.2f}",
        f"{compared.time:.2f}",
        *(f"{side.peak / 1e6:,.1f}" for side in sides),
        *(side.collectives for side in sides),
        f"{compared.difference:.1e} of {compared.size:.1e}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def segment_rows(model: str, *, repeats: int, shared_prefix: str) -> Iterator[str]:
    """The table."""
    yield f"\n| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|"
    with tempfile.TemporaryDirectory() as folder:
        cases = chain_cases(model, folder, length=256, shared_prefix=shared_prefix, batch=4)
        yield segment_line("chain, against `length_sort=off`", cases, compare(*cases, repeats=repeats))
    # 258 nodes, in micro-batches of eight; or half a subtree in each
    nodes, packed = Form("nodes", 264, 8, "off"), Form("packed", 12, 1, "off")
    for label, form, other in (
        ("tree 6-6-6 packed, against a row per node", packed, nodes),
        ("tree 6-6-6, a row per node, `shared_prefix`, against `off`", nodes._replace(shared_prefix="auto"), nodes),
    ):
        with tempfile.TemporaryDirectory() as folder:
            cases = tree_cases(model, folder, form, other, branching=[6, 6, 6], segment=16)
            yield segment_line(label, cases, compare(*cases, repeats=repeats))
