"""Weights per turn and the average over turns through TRL's `_compute_loss`, against closed forms in float64."""

import functools
from dataclasses import replace

import pytest
import torch
from passes_helpers import tool_rollout
from toy_loss import check_close, check_loss, check_same, k3, run, surrogate, toy
from turn_helpers import TURN_FORMS, mean_of_turns, turn_jacobian

from trl_credit import Credit, CreditConfig, assign_credit
from trl_credit.credit.tokens import turn_numbers
from trl_credit.testing import made_up_tokens


@pytest.fixture
def make_trainer(make_trainer):
    """A trainer of conversations, without which knobs of turns are refused."""
    return functools.partial(make_trainer, trainer_kwargs={"rollout_func": tool_rollout})


# three turns; a short row of two; one turn; turns of one token
WRITTEN = torch.tensor([[1, 1, 0, 1, 1, 0, 1], [1, 0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 1, 0, 1]])


def turned(mask=WRITTEN):
    return toy() | {"mask": mask}


PLAIN_KL = {"beta": 0.3, "use_bias_correction_kl": False}
MASK = {"token_mask": "probability", "probability_threshold": 0.4}


# Advantages that differ


def test_advantages_may_differ_between_turns_and_not_inside_of_one(make_trainer, toy_loss):
    t = turned()
    ids = turn_numbers(t["mask"])
    t["advantages"] = t["advantages"].unsqueeze(1) * (1.0 + ids)
    turn, token = (make_trainer(importance=name, loss_type="grpo") for name in ("turn", "turn_token"))
    check_close(run(turn, toy_loss, t), run(token, toy_loss, t))
    t["advantages"][1, 3] += 0.5
    with pytest.raises(ValueError, match="importance='turn' would average away .*: set importance='turn_tok"):
        run(turn, toy_loss, t)
    run(token, toy_loss, t)
    t["advantages"][1, 3] -= 0.5
    t["advantages"][0, 2] = 7.0  # a tool's token
    run(turn, toy_loss, t)

    def own_weight(config, tokens):
        by_token = torch.randn_like(tokens.logp_t.detach())
        return Credit(tokens.logp_t - tokens.old_logp_t, by_token)

    run(make_trainer(importance="turn", credit=own_weight, loss_type="grpo"), toy_loss, t)


# The average over turns


def double_loop(t, ids, kept, *, beta, policy_t, weight_t=1.0):
    loss = -mean_of_turns(policy_t, ids, kept_t=kept)
    return loss + beta * mean_of_turns(k3(t) * weight_t, ids, kept_t=kept, counted_t=t["mask"])


AVERAGED = [
    (name, kl) for name in ("token", "sequence", "turn", "turn_token") for kl in (None, False, True)
    if name != "sequence" or kl is not None  # nothing would differ within a response, so it is refused
]  # fmt: skip


@pytest.mark.parametrize(("importance", "corrected"), AVERAGED)
def test_the_average_over_turns_is_a_double_loop(make_trainer, toy_loss, importance, corrected):
    t = turned()
    ids, mask, logps = turn_numbers(t["mask"]), t["mask"].double(), t["logps"]
    knobs = {} if corrected is None else {"beta": 0.3, "use_bias_correction_kl": corrected}
    trainer = make_trainer("base", loss_type="grpo", turn_average=True, importance=importance, **knobs)
    w = (logps - t["old"]) * mask
    if importance == "sequence":
        w = (w.sum(1, keepdim=True) / mask.sum(1, keepdim=True)).expand_as(w)
    elif importance != "token":
        config = CreditConfig(output_dir="unused", report_to="none", importance="turn")
        rows = zip(ids.tolist(), t["mask"].tolist(), strict=True)
        mean = torch.einsum("btk,bk->bt", torch.stack([turn_jacobian(config, *row) for row in rows]), w)
        w = mean if importance == "turn" else mean.detach() + logps - logps.detach()
    policy_t = surrogate(t, t["advantages"].unsqueeze(1), ratio_t=w.exp())
    beta = 0.0 if corrected is None else 0.3
    right = double_loop(t, ids, t["mask"], beta=beta, policy_t=policy_t, weight_t=w.exp() if corrected else 1.0)
    check_loss(run(trainer, toy_loss, t), right, logps)
    plain = make_trainer("base", loss_type="grpo", importance=importance, **knobs)
    assert not torch.allclose(run(plain, toy_loss, t)[1], run(trainer, toy_loss, t)[1], atol=1e-4)


@pytest.mark.parametrize("released_code", [None, ["spo_normalizer"]], ids=["paper", "code"])
def test_the_average_over_turns_counts_the_tokens_of_the_mask(make_trainer, toy_loss, released_code):
    t = turned()
    old = t["old"]
    old[0, 3:5], old[0, 6], old[2] = -1e-3, -2.0, -1e-3  # a turn and a row of which nothing is kept
    kept = ((old.exp() < 0.4) * t["mask"]).long()
    ids = turn_numbers(t["mask"])
    assert 0 < kept.sum() < t["mask"].sum() and not kept[2].any() and kept[0, :2].any() and kept[0, 6]
    knobs = {**MASK, **PLAIN_KL, "loss_type": "grpo", "released_code": released_code}
    trainer = make_trainer("base", turn_average=True, **knobs)
    policy_t = surrogate(t, t["advantages"].unsqueeze(1))
    if released_code:
        right = 0.3 * (k3(t) * kept).sum(1).mean() - mean_of_turns(policy_t, ids, kept_t=kept)
    else:
        right = double_loop(t, ids, kept, beta=0.3, policy_t=policy_t)
    check_loss(run(trainer, toy_loss, t), right, t["logps"])


@pytest.mark.parametrize("knobs", [{}, MASK, {"importance": "eligible", "selector": "entropy"}], ids=str)
def test_the_average_over_single_turns_changes_no_bit(make_trainer, toy_loss, knobs):
    t = turned(WRITTEN.where(turn_numbers(WRITTEN) == 0, 0))
    both = [make_trainer("base", loss_type="grpo", turn_average=x, **knobs, **PLAIN_KL) for x in (False, True)]
    check_same(*(run(trainer, toy_loss, t) for trainer in both))
    t["mask"] = WRITTEN  # the row of one turn beside others
    rows = [run(trainer, toy_loss, t)[1] for trainer in both]
    assert not torch.equal(rows[0][0], rows[1][0])
    torch.testing.assert_close(rows[0][2], rows[1][2], rtol=1e-12, atol=1e-15)


def test_rows_without_a_kl_term_lose_it_turn_by_turn(make_trainer, toy_loss):
    t = turned()
    trainer = make_trainer("base", loss_type="grpo", turn_average=True, **PLAIN_KL)
    zero_variance = torch.tensor([True, False, False, True])
    gradient = run(trainer, toy_loss, t, zero_variance_row=zero_variance)[1]
    t["ref"] = torch.where(zero_variance.unsqueeze(1), t["logps"].detach(), t["ref"])
    check_close([gradient], [run(trainer, toy_loss, t)[1]], rtol=1e-10)


@pytest.mark.parametrize("unit", ["turn", "token"])
@pytest.mark.parametrize("form", [form for form in TURN_FORMS if not form.startswith("turn")])
def test_the_reach_of_a_trace(make_trainer, toy_loss, form, unit):
    """Against the matrix: how far back credit travels. A row without advantage does not count."""
    t = turned()
    t["advantages"][1] = 0.0
    trainer = make_trainer("base", loss_type="grpo", trace_lambda=0.7, **TURN_FORMS[form] | {"trace_unit": unit})
    run(trainer, toy_loss, t, with_old=False)
    place, mask_t = torch.arange(7, dtype=torch.float64), t["mask"].double()
    turns = turn_numbers(t["mask"])
    with torch.no_grad():
        tensors = {name: t[short] for name, short in (("logp_t", "logps"), ("entropy_t", "entropies"))}
        tensors |= {"policy_mask_t": mask_t, "mask_t": mask_t, "turn_ids": turns, "old_logp_t": t["logps"]}
        tokens = replace(made_up_tokens(), **tensors, advantages=t["advantages"])
        z = assign_credit(trainer.args, tokens).selected.tolist()
    ids = (turns if unit == "turn" else place.long().expand_as(turns)).tolist()
    jacobian = torch.stack([turn_jacobian(trainer.args, *row) for row in zip(ids, mask_t.tolist(), z, strict=True)])
    size = t["advantages"].abs().unsqueeze(1) * t["mask"]
    moved = torch.einsum("bt,btk,tk->", size, jacobian, place.unsqueeze(1) - place)
    landed = torch.einsum("bt,btk->bk", size, jacobian)
    shown = trainer._metrics["eval"]["credit/effective_horizon"]
    assert shown == pytest.approx([(moved / landed.sum()).item()], rel=1e-5)
