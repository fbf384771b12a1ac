"""The metrics under `credit/`: sizes of advantages, groups without signal, and the reach of a trace."""

import pytest
import torch
from conftest import toy_inputs
from segment_helpers import TREE, generation_batch, gradients
from toy_loss import at_ratio_1

from trl_credit.loss.batch_metrics import group_statistics, response_hashes


def quarters_of(trainer):
    """The last |A| of each quarter, NaN where it has no token."""
    metrics = trainer._metrics["train" if trainer.model.training else "eval"]
    return [metrics[f"credit/abs_advantage/quarter_{q}"][-1] for q in (1, 2, 3, 4)]


MASK = {"token_mask": "probability"}
PLAIN, KEPT = [0.2, 0.2, 0.6, 0.6], [0.2, 0.2, torch.nan, torch.nan]
SIZES = [({"loss_weight": "trace_past", "trace_lambda": 0.9}, PLAIN)]
SIZES += [({"clip_form": "ratio"}, PLAIN)]
SIZES += [({"rollouts": "chain", "policy_loss": "policy_iteration", "beta": 0.1, "loss_type": "dapo"}, PLAIN)]
for loss in ("grpo", "bnpo", "dr_grpo", "dapo"):
    # quarters are those of the response, also where the loss sees only the kept tokens
    SIZES += [({"loss_type": loss}, PLAIN), ({"loss_type": loss, **MASK}, KEPT)]
    SIZES += [({"loss_type": loss, **MASK, "released_code": ["spo_normalizer"]}, KEPT)]


@pytest.mark.parametrize(("knobs", "quarters"), SIZES, ids=str)
def test_the_size_of_an_advantage_is_that_before_any_normaliser_loss_or_weight(make_trainer, toy_loss, knobs, quarters):
    """The mask keeps every second token of the first half."""
    trainer = make_trainer("base", **knobs)
    old = torch.tensor([[0.5, 0.95, 0.5, 0.95] + [0.95] * 4], dtype=torch.float64).log()
    advantages = torch.tensor([[0.2] * 4 + [-0.6] * 4], dtype=torch.float64)
    tensors = {"old_per_token_logps": old, "ref_per_token_logps": 2 * old, "advantages": advantages}
    tensors["num_items_in_batch"] = torch.tensor(2 if quarters is KEPT else 8)
    inputs = toy_inputs(torch.ones(1, 8, dtype=torch.long), segment_ids=torch.tensor([[0] * 4 + [1] * 4]), **tensors)
    logps = (old + 0.5 * (torch.arange(8) % 2)).requires_grad_()  # every second token is clipped
    toy_loss(trainer, inputs, logps=logps, entropies=torch.ones_like(old))
    assert quarters_of(trainer) == pytest.approx(quarters, nan_ok=True)


@pytest.mark.parametrize("form", ["nodes", "paths", "packed"])
def test_the_advantages_of_a_tree_by_quarter_of_the_response(make_trainer, form):
    settings = {**TREE, "tree_branching": [3, 2, 2], "tree_segment_length": 2, "per_device_train_batch_size": 64}
    trainer = make_trainer(**{**settings, "num_generations": 32}, tree_rows=form)
    trees, grow = [], trainer.forest._new_rows
    trainer.forest._new_rows = lambda grown: trees.extend(grown) or grow(grown)
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


# Clipped tokens


@pytest.mark.parametrize("mask", ["none", "probability"])
def test_clipped_tokens_of_all_and_within_responses(make_trainer, toy_loss, mask):
    """Rows with 1 of 8 tokens clipped, 1 of 1, and no token: 2 of 9, and the mean of 1/8 and 1."""
    knobs = {} if mask == "none" else {"token_mask": "probability", "probability_threshold": 0.9}
    trainer = make_trainer("base", **knobs)
    mask_t = torch.zeros(3, 12, dtype=torch.long)
    mask_t[0, :8] = mask_t[1, 1] = 1
    old = torch.full((3, 12), -1.0, dtype=torch.float64)
    if mask != "none":  # two more clipped tokens, outside of the mask
        mask_t[:2, 8:10] = 1
        old[:2, 8:10] = -0.01
    logps = old.clone()
    logps[0, 3] = logps[1, 1] = -0.5
    logps[1, 8] = logps[0, 9] = 1.0
    inputs = toy_inputs(mask_t, advantages=torch.tensor([1.0, 0.5, 1.0]), old_per_token_logps=old)
    toy_loss(trainer, inputs, logps=logps.requires_grad_(), entropies=torch.ones_like(old))
    metrics = trainer._metrics["eval"]
    assert metrics["credit/clip_fraction"] == pytest.approx([2 / 9])
    assert metrics["credit/clip_fraction/response_mean"] == pytest.approx([(1 / 8 + 1) / 2])


# The effective coefficient of tokens, and where noise and credit lie


ON_POLICY = {"beta": 0.0, "loss_type": "dr_grpo"}
KEEPS = {**MASK, "probability_threshold": 0.8}
TRACE = {"trace_lambda": 0.7}
SELECTED = {**TRACE, "selective_rate": 0.3}
WEIGHTED = {**TRACE, "loss_weight": "trace_past", "loss_weight_confidence": "sigmoid_grad"}
CASES = {
    "s_trace": ("s_trace", SELECTED | KEEPS),
    "p_trace": ("p_trace", TRACE),
    "own term selected too": ("s_trace", {**SELECTED, "leave_own_out": False}),
    "grpo_lambda": ("grpo_lambda", TRACE | KEEPS),
    "both": ("grpo_lambda", {**TRACE, "trace_style": "both"}),
    "loss weight": ("grpo_lambda", {**WEIGHTED, "importance": "token"}),
    "a weight of tanh": ("grpo_lambda", {**WEIGHTED, "importance": "token", "loss_weight_confidence": "tanh_grad"}),
    "a trace and a gradient": ("grpo_lambda", WEIGHTED),
    "grpo": ("grpo", {}),
    "mask": ("grpo", KEEPS),
    "top fifth": ("grpo", {"top_entropy_quantile": 0.2}),
    "a trace from the top fifth": ("s_trace", {**SELECTED, "top_entropy_quantile": 0.2}),
}


@pytest.mark.parametrize("case", CASES)
def test_coefficients_and_shares_are_those_of_the_gradient_of_the_loss(make_trainer, toy_loss, case):
    """Rows of 45, 13 and no tokens at ratio 1, in float64. The coefficient of a token is its gradient over its
    advantage. Both shares are computed by hand too; the metrics themselves are summed in float32."""
    algo, knobs = CASES[case]
    trainer = make_trainer(algo, **knobs, **ON_POLICY)
    toys = at_ratio_1(trainer, toy_loss, 45, 13, 0)
    gradient, entropies, metrics = toys["gradient"], toys["entropies"], trainer._metrics["eval"]
    size = gradient * 3 * trainer.args.max_completion_length / toys["advantages"].abs().unsqueeze(1)
    kept = toys["mask"].bool() & ((toys["logps"].exp() < 0.8) if "token_mask" in knobs else True)
    quantile = torch.quantile(entropies[toys["mask"].bool()].float(), 0.8).item()
    by_decile, by_quarter = {}, {}
    above = below = outside = noise = 0.0
    for i, n in enumerate((45, 13)):  # nothing comes of the third, nor a division by 0
        ranked = entropies[i, :n].argsort(descending=True).tolist()
        for rank, t in enumerate(ranked):
            if kept[i, t]:
                by_decile.setdefault(9 - 10 * rank // n, []).append(size[i, t].item())
                by_quarter.setdefault(4 * t // n, []).append(size[i, t].item())
        m = min(20, n)
        above += gradient[i, n - m : n].sum().item()
        below += m / n * gradient[i].sum().item()
        top = ranked[: -int(-knobs.get("selective_rate", 0.2) * n // 1)]
        if case == "top fifth":
            top = [t for t in ranked if entropies[i, t] >= quantile]
        values = (1 - toys["logps"].exp())[i, :n]
        outside += values.sum().item() - values[top].sum().item()
        noise += values.sum().item()
    assert metrics["credit/last_tokens_share"] == pytest.approx([above / below], rel=1e-5)
    assert metrics["credit/noise_share"] == pytest.approx([outside / noise], rel=1e-5)
    if "fifth" in case or algo == "grpo":
        return
    for prefix, parts in (("entropy_decile", by_decile), ("quarter", by_quarter)):
        for part, values in parts.items():
            shown = metrics[f"credit/coefficient/{prefix}_{part + (prefix == 'quarter')}"][-1]
            assert shown == pytest.approx(sum(values) / len(values), rel=1e-5), (prefix, part)
    assert len(by_quarter) == 4 and max(map(max, by_quarter.values())) > 1.5


# Groups without signal


def test_groups_by_hand():
    """Two different responses of three, padded by 0, then three equal ones with equal rewards."""
    ids = torch.tensor([[5, 6, 0], [5, 6, 0], [5, 7, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]])
    rewards, hashes = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 0.0]), response_hashes(ids, pad_token_id=0)
    stats = group_statistics(rewards, hashes, num_generations=3)
    assert stats == {"groups_without_signal": 0.5, "unique_responses": 1.5}
