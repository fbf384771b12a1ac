"""Trees through the real trainer: rows, their gradients, and what is logged."""

import functools

import pytest
import torch
from segment_helpers import TREE, generation_batch, gradients, steps_of

from trl_credit.rollouts import forest
from trl_credit.rollouts.tree import packed_rows


def test_a_tree_of_one_level_is_grpo_to_the_last_bit(make_trainer, tmp_path):
    def distinct(completions, **kwargs):  # no advantage of 0, which would be a row less
        return [sum((i + 1) * ord(c) for i, c in enumerate(text)) % 97 / 97 for text in completions]

    common = {
        "reward_funcs": distinct,
        "loss_type": "dapo",
        "beta": 0.04,
        "scale_rewards": "none",
        "max_steps": 3,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "temperature": 1.3,
    }
    plain = make_trainer(**common, output_dir=str(tmp_path / "plain"))
    plain.train()
    tree = make_trainer(**common, rollouts="tree", tree_branching=[4], output_dir=str(tmp_path / "tree"))
    tree.train()
    left, right = steps_of(plain), steps_of(tree)
    assert all(row["credit/rows_missing"] == 0 for row in right)
    for a, b in zip(left, right, strict=True):
        for name in ("loss", "grad_norm", "reward", "reward_std", "completions/mean_length", "kl"):
            assert a[name] == b[name], name
        assert b["credit/rows"] == 8
    for name, p in plain.model.named_parameters():
        assert torch.equal(p, tree.model.get_parameter(name)), name


@pytest.mark.parametrize("knobs", [{}, {"token_mask": "probability"}, {"beta": 0.05}], ids=str)
def test_all_forms_of_rows_have_one_gradient(make_trainer, knobs, monkeypatch):
    found = {}
    one_row = functools.partial(packed_rows, max_rows=1)
    monkeypatch.setattr(forest, "packed_rows", lambda tree, max_rows, **given: one_row(tree, **given))
    for form in ("nodes", "paths", "packed"):
        settings = {**TREE, "tree_branching": [3, 2, 2], "tree_segment_length": 2, "per_device_train_batch_size": 64}
        trainer = make_trainer(**{**settings, "num_generations": 32}, tree_rows=form, **knobs)
        trainer.model.double()
        if trainer.ref_model is not None:
            trainer.ref_model.double()
            with torch.no_grad():
                for p in trainer.ref_model.parameters():
                    p.mul_(0.9)
        torch.manual_seed(11)
        output = generation_batch(trainer)
        rows = (output["tool_mask"].sum(1) > 0).sum().item()
        found[form] = rows, output["num_items_in_batch"].item(), gradients(trainer, output)
    (n_rows, n_items, nodes), (p_rows, p_items, paths) = found["nodes"], found["paths"]
    (k_rows, k_items, packed) = found["packed"]
    assert 1 <= k_rows <= 2 < p_rows < n_rows < 64 and n_items == p_items == k_items
    scale = max(g.abs().max().item() for g in nodes.values())
    assert scale > 1e-6
    for name, g in nodes.items():
        torch.testing.assert_close(paths[name], g, rtol=1e-6, atol=1e-6 * scale)
        torch.testing.assert_close(packed[name], g, rtol=1e-6, atol=1e-6 * scale)


def test_rows_hold_the_nodes_that_were_grown(make_trainer):
    trainer = make_trainer(**{**TREE, "per_device_train_batch_size": 32, "num_generations": 16})
    grown = []
    new_rows = trainer.forest._new_rows
    trainer.forest._new_rows = lambda trees: grown.extend(trees) or new_rows(trees)
    output = generation_batch(trainer)
    nodes = {}
    for tree in grown:
        for node in tree.root.walk()[1:]:
            prefix = tuple(tree.prompt_ids + node.parent.written())
            nodes.setdefault((prefix, tuple(node.segment.ids)), []).append(node.advantage)
    credited = [k for k, a in nodes.items() if any(a)]
    masks = output["tool_mask"].sum(1)
    assert (masks > 0).sum() == sum(sum(x != 0 for x in a) for a in nodes.values()) and credited
    for row in range(32):
        prompt = tuple(output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist())
        segment = tuple(output["completion_ids"][row][output["completion_mask"][row].bool()].tolist())
        advantage = output["advantages"][row][: len(segment)].tolist()
        if masks[row] > 0:
            assert len(set(advantage)) == 1 and any(a == pytest.approx(advantage[0]) for a in nodes[prompt, segment])
        else:
            assert not any(advantage)


def test_logged_responses_of_a_tree_are_whole(make_trainer):
    trainer = make_trainer(**TREE, log_completions=True, num_completions_to_print=0, max_steps=1)
    trainer.train()
    row = steps_of(trainer)[0]
    texts, rewards = list(trainer._logs["completion"]), list(trainer._logs["rewards"]["count_a"])
    assert len(texts) == len(rewards) == len(trainer._logs["advantages"]) == len(trainer._logs["prompt"]) == 16
    assert rewards == [pytest.approx(sum(c in "abc" for c in text[:4]) / 4) for text in texts]
    assert row["reward"] == pytest.approx(sum(rewards) / 16)
    assert row["completions/max_length"] > 3  # longer than a segment of an inner level


def test_an_empty_buffer_skips_the_update_and_says_so(make_trainer, caplog):
    trainer = make_trainer(
        **{**TREE, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 8},
        reward_funcs=lambda completions, **kwargs: [1.0] * len(completions),
        weight_decay=0.5,
        max_steps=3,
    )
    # momentum from an earlier step, which a gradient of zeros would act on
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.create_optimizer()
    for p in trainer.model.parameters():
        p.grad = torch.ones_like(p) * 1e-3
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    moved = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    assert any(not torch.equal(moved[name], before[name]) for name in moved)
    with caplog.at_level("WARNING"):
        trainer.train()
    assert trainer.state.global_step == 3
    assert all(torch.equal(p, moved[name]) for name, p in trainer.model.named_parameters())
    assert "no segment of this generation batch has an advantage" in caplog.text
    assert all(row["credit/rows"] == 0 and row["credit/rows_missing"] == 1 for row in steps_of(trainer))
