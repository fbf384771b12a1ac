"""What a run says of itself under `credit/`: sizes of advantages, groups without signal, and the reach of a trace."""

import pytest
import torch
from conftest import toy_inputs
from segment_helpers import TREE, generation_batch, gradients

from trl_credit.rollouts.policy import Continuation
from trl_credit.rollouts.replay import ReplayBuffer, Row
from trl_credit.rollouts.tree import Node, Tree, packed_rows, response_quarters, training_rows


def quarters_of(trainer, name="abs_advantage/quarter"):
    """The last value of the metric of each quarter, NaN where it has no token."""
    metrics = trainer._metrics["train" if trainer.model.training else "eval"]
    return [metrics[f"credit/{name}_{q}"][-1] for q in (1, 2, 3, 4)]


@pytest.mark.parametrize("normalizer", [None, "paper", "code"])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_the_size_of_an_advantage_is_that_before_any_normaliser(make_trainer, toy_loss, loss_type, normalizer):
    """Two rows of eight tokens with |A| = .4, of which the mask keeps every second one of the first half."""
    knobs = {} if normalizer is None else {"token_mask": "probability", "mask_normalizer": normalizer}
    p_old = torch.tensor([[0.5, 0.95, 0.5, 0.95] + [0.95] * 4] * 2, dtype=torch.float64)
    trainer = make_trainer("base", loss_type=loss_type, **knobs)
    inputs = toy_inputs(
        torch.ones(2, 8, dtype=torch.long),
        advantages=torch.tensor([0.4, -0.4], dtype=torch.float64),
        old_per_token_logps=p_old.log(),
        num_items_in_batch=torch.tensor(16 if normalizer is None else 4),
    )
    toy_loss(trainer, inputs, logps=p_old.log().requires_grad_(), entropies=torch.ones_like(p_old))
    found = quarters_of(trainer)
    assert found[:2] == pytest.approx([0.4, 0.4])
    # a quarter is one of the response, also where the loss sees the kept tokens alone
    assert found[2:] == (
        pytest.approx([0.4, 0.4]) if normalizer is None else pytest.approx([torch.nan] * 2, nan_ok=True)
    )


def test_a_loss_in_the_place_of_an_advantage_is_none(make_trainer, toy_loss):
    trainer = make_trainer("base", rollouts="chain", policy_loss="policy_iteration", beta=0.1, loss_type="dapo")
    old = torch.full((1, 8), -1.0, dtype=torch.float64)
    inputs = toy_inputs(
        torch.ones(1, 8, dtype=torch.long),
        advantages=torch.tensor([[0.2] * 4 + [-0.6] * 4], dtype=torch.float64),
        old_per_token_logps=old,
        ref_per_token_logps=old - 1,
        segment_ids=torch.tensor([[0] * 4 + [1] * 4]),
    )
    toy_loss(trainer, inputs, logps=old.clone().requires_grad_(), entropies=torch.ones_like(old))
    assert quarters_of(trainer)[1::2] == pytest.approx([0.2, 0.6])  # at the last tokens of the segments


def grown(parent, lengths, advantage=0.5):
    """Children of a node with so many tokens each."""
    for n in lengths:
        parent.children.append(Node(parent, Continuation([7] * n, None), parent.depth + 1, advantage=advantage))
    return parent.children


def test_quarters_of_a_node_are_those_of_the_responses_through_it():
    tree = Tree({}, [1, 2])
    short, long = grown(tree.root, [2, 2])
    grown(short, [2, 2])  # responses of 4 tokens
    grown(long, [6, 14])  # of 8 and 16: 12 on average
    assert response_quarters(short) == [0, 1] and response_quarters(short.children[1]) == [2, 3]
    assert response_quarters(long) == [0, 0]
    assert response_quarters(long.children[0]) == [1, 1, 2, 2, 3, 3]  # of its own 8
    for rows in (training_rows(tree, form="nodes"), training_rows(tree, form="paths"), packed_rows(tree, max_rows=1)):
        by_length = {}
        for row in rows:
            assert len(row.quarters) == len(row.segments) == len(row.completion_ids)
            for segment in set(row.segments) - {-1}:
                found = [q for q, s in zip(row.quarters, row.segments, strict=True) if s == segment]
                by_length.setdefault(len(found), []).append(found)
        assert sorted(by_length[2]) == [[0, 0], [0, 1], [2, 3], [2, 3]] and by_length[6] == [[1, 1, 2, 2, 3, 3]]


@pytest.mark.parametrize("form", ["nodes", "paths", "packed"])
def test_the_advantages_of_a_tree_by_quarter_of_the_response(make_trainer, form):
    settings = {**TREE, "tree_branching": [3, 2, 2], "tree_segment_length": 2, "per_device_train_batch_size": 64}
    trainer = make_trainer(**{**settings, "num_generations": 32}, tree_rows=form)
    trees, grow = [], trainer.forest._new_rows
    trainer.forest._new_rows = lambda found: trees.extend(found) or grow(found)
    torch.manual_seed(11)
    gradients(trainer, generation_batch(trainer))
    sizes = {q: [] for q in range(4)}
    for node in (node for tree in trees for node in tree.root.walk()[1:] if node.advantage):
        begin, leaves = len(node.written()) - len(node.segment.ids), node.leaves()
        mean = sum(len(leaf.written()) for leaf in leaves) / len(leaves)
        for i in range(len(node.segment.ids)):
            sizes[int(4 * (begin + i) / mean)].append(abs(node.advantage))
    assert all(map(len, sizes.values()))
    expected = [sum(values) / len(values) for values in sizes.values()]
    assert quarters_of(trainer) == pytest.approx(expected, rel=1e-5)


def test_quarters_outlive_a_checkpoint_and_old_ones_have_none(tmp_path):
    row = Row("q", (1,), (2, 3), (0.5, 0.5), (0, 0), quarters=(1, 3))
    buffer, again = ReplayBuffer(life=3, cap=None), ReplayBuffer(life=3, cap=None)
    buffer.add([row, Row("q", (1,), (2,), (0.5,), (0,))])
    buffer.save(tmp_path / "replay.safetensors")
    again.load(tmp_path / "replay.safetensors")
    assert [r.quarters for r in again.draw(2)] == [(1, 3), None]
