"""`benchmarks/train_step.py` and `benchmarks/step.py`: one tiny row of each table, whose counts are known."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from trl_credit import ALGORITHMS
from trl_credit.passes import flops


sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import segment_steps
import step
import stepping
import train_step


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return stepping.random_model(str(tmp_path_factory.mktemp("model")), hidden=32, layers=1, vocabulary=64)


def arguments(model: str, *others: str):
    args = train_step.parse(["--model", model, "--batch", "2", "--repeats", "1", *others])
    args.shared_prefix = "off"
    return args


def test_counts_of_rows_of_one_length(model, tmp_path):
    args = arguments(model, "--shape", "6/5", "--beta", "0.1")
    rows = train_step.rectangular("6/5", group=4, windows=2, vocabulary=64)
    found = train_step.step_row(args, rows, windows=2, micro_batches=2, folder=str(tmp_path))
    real, unique = train_step.counts(rows)
    assert (real, unique) == (8 * 11, 2 * 6 + 8 * 5)
    assert found.first.tokens == found.second.tokens == 3 * real  # π_old, reference, loss
    cost, of = flops.cost_of(AutoConfig.from_pretrained(model)), flops.rows_pass(8, length=11, scored=10)
    forward = cost.forward(of)
    training = 3 * cost.layers(of) + 4 * cost.head * of.scored  # the fused head computes its logits again
    scores = cost.attention / 2 * of.squares  # which attention on CPUs makes again in its backward pass
    assert found.second.flops == 2 * forward + training + scores
    assert found.first.flops == found.second.flops and found.first.peak > 0
    assert found.difference <= 1e-6 * max(1.0, found.size) and found.size > 0
    assert found.first.collectives >= found.second.collectives > 0
    cells = train_step.line("6/5", rows, found, windows=2, beta=0.1).strip("| ").split(" | ")
    assert len(cells) == len(train_step.HEAD) and cells[:6] == ["6/5", "4", "2", "3", "264", "156"]


def test_ragged_rows_lose_their_padding(model, tmp_path):
    args = arguments(model, "--micro_batches", "4", "--prompt", "9")
    rows = train_step.ragged(args, cap=20, group=4, windows=1, vocabulary=64)
    found = train_step.step_row(args, rows, windows=1, micro_batches=4, folder=str(tmp_path))
    real, _ = train_step.counts(rows)
    widest = max(map(len, rows)) + max(len(ids) for group in rows.values() for ids in group)
    assert found.second.tokens == 2 * 8 * widest and 2 * real <= found.first.tokens < found.second.tokens
    assert found.difference <= 1e-6


def test_a_tree_has_the_gradient_of_its_nodes(model, tmp_path):
    forms = segment_steps.Form("packed", 2, 1, "off"), segment_steps.Form("nodes", 6, 2, "off")
    cases = segment_steps.tree_cases(model, str(tmp_path), *forms, branching=[2, 2], segment=3)
    found = stepping.compare(*cases, repeats=1)
    assert 0 < found.first.tokens < found.second.tokens and found.size > 0
    assert found.difference <= 1e-5 * found.size
    assert segment_steps.segment_line("tree", cases, found).count("|") == len(segment_steps.HEAD) + 1


def test_a_chain_beside_its_padding(model, tmp_path):
    cases = segment_steps.chain_cases(model, str(tmp_path), length=12, shared_prefix="off", batch=2)
    found = stepping.compare(*cases, repeats=1)
    assert found.first.tokens < found.second.tokens and found.difference <= 1e-5 * max(found.size, 1e-3)


def test_the_grid_is_that_of_the_goals():
    args = train_step.parse(["--grid"])
    assert args.group == [8, 16] and args.windows == [1, 4] and args.segments and args.cap == [512, 2048]
    assert {"128/128", "512/512", "2048/512", "256/2048"} <= set(args.shape) and args.model is None
    assert train_step.parse([]).cap == [512] and train_step.parse(["--shape", "4/4"]).cap == []


def test_products_in_place_are_counted():
    a, b, x = torch.ones(3, 4), torch.ones(4, 5), torch.zeros(3, 5)
    with torch.utils.flop_counter.FlopCounterMode(display=False, custom_mapping=stepping.MORE_OPERATIONS) as counter:
        x.addmm_(a, b)
        torch.nn.functional.scaled_dot_product_attention(*(torch.ones(2, 1, 6, 8) for _ in range(3)))
    assert counter.get_total_flops() == 2 * 3 * 4 * 5 + 4 * 2 * 6 * 6 * 8


def test_a_step_of_every_algorithm_is_measured(monkeypatch, capsys):
    sizes = "--repeats 1 --batch 4 --length 80 --layers 0"
    monkeypatch.setattr(sys, "argv", ["step.py", *sizes.split()])
    step.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert [name.strip("| `") for name, *_ in rows] == list(ALGORITHMS)
    operations = {name.strip("| `"): (int(ours), int(theirs)) for name, *_, ours, theirs, _, _ in rows}
    assert all(ours > theirs > 100 for ours, theirs in operations.values())
    cheapest = operations["grpo"][0]  # without a weight of its own
    assert all(operations[name][0] > cheapest for name in ("s_trace", "grpo_lambda", "fipo", "clip_cov", "kl_cov"))
