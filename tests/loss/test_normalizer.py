"""Normalisers of masks and KL, and averages over prompts, in closed form through TRL's `_compute_loss`."""

import math

import pytest
import torch
from conftest import toy_inputs
from segment_helpers import CHAIN, TREE, batches, generation_batch, gradients, in_double, plans, steps_of
from toy_loss import check_loss, k3, run, toy

from trl_credit.loss.normalizer import prompt_weights


def probability_case(toy_loss, make_trainer, loss_type, **knobs):
    """Spec 10.4: p_old = [0.5, 0.95, 0.8, 0.99], ratio = [1.1, 1, 1.3, 0.9], A = 0.5; another row keeps one token."""
    p_old = torch.tensor([[0.5, 0.95, 0.8, 0.99], [0.5, 0.95, 0.95, 0.95]], dtype=torch.float64)
    ratio = torch.tensor([[1.1, 1.0, 1.3, 0.9], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    old = p_old.log()
    logps = (old + ratio.log()).requires_grad_()
    d = torch.tensor([[0.1, 0.2, -0.1, 0.0], [0.0] * 4], dtype=torch.float64)
    trainer = make_trainer("base", loss_type=loss_type, token_mask="probability", **knobs)
    inputs = toy_inputs(
        torch.ones(2, 4, dtype=torch.long),
        advantages=torch.tensor([0.5, -1.0], dtype=torch.float64),
        old_per_token_logps=old,
        ref_per_token_logps=logps.detach() + d,
        num_items_in_batch=torch.tensor(3),
    )
    return toy_loss(trainer, inputs, logps=logps, entropies=torch.ones_like(old)).item()


@pytest.mark.parametrize(("beta", "corrected"), [(0.0, True), (2.0, False), (2.0, True)])
def test_normalisers_of_the_mask_and_of_the_kl(make_trainer, toy_loss, beta, corrected):
    knobs = {"beta": beta, "use_bias_correction_kl": corrected}
    ratio = [1.1, 1.0, 1.3, 0.9] if corrected else [1.0] * 4
    kl = [r * (math.exp(d) - d - 1) for d, r in zip([0.1, 0.2, -0.1, 0.0], ratio, strict=True)]
    every, kept = beta * sum(kl), beta * (kl[0] + kl[2])

    def case(loss_type, normalizer):
        released_code = ["spo_normalizer"] if normalizer == "code" else None
        return probability_case(toy_loss, make_trainer, loss_type, released_code=released_code, **knobs)

    assert case("grpo", "paper") == pytest.approx(((-1.15 + every) / 2 + 1.0) / 2)
    assert case("bnpo", "paper") == pytest.approx((-0.15 + every) / 3)
    assert case("dapo", "paper") == pytest.approx((-0.15 + every) / 3)
    assert case("dr_grpo", "paper") == pytest.approx((-0.15 + every) / 16)
    # the released code: summed over the kept tokens of a row, mean over rows, whatever the policy term is divided by
    assert case("grpo", "code") == pytest.approx((-1.15 / 2 + 1.0) / 2 + kept / 2)
    assert case("bnpo", "code") == pytest.approx(-0.15 / 3 + kept / 2)
    assert case("dapo", "code") == pytest.approx(-0.15 / 3 + kept / 2)
    assert case("dr_grpo", "code") == pytest.approx(-0.15 / 16 + kept / 2)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo"])
def test_the_masked_kl_is_divided_by_the_kept_tokens_and_is_none_without_any(make_trainer, toy_loss, loss_type):
    """Gradient of β Σ_t k3_t / Σ_t M_t per row or micro-batch, with A = 0: ∂k3/∂ℓ = 1 − exp(ref − ℓ)."""
    knobs = {"token_mask": "probability", "probability_threshold": 0.4, "beta": 0.3, "use_bias_correction_kl": False}
    trainer, t = make_trainer("base", loss_type=loss_type, **knobs), toy()
    t["advantages"] = torch.zeros_like(t["advantages"])
    t["old"][0], t["old"][0, 0] = -1e-6, -2.0  # a row with one kept token
    for without in (0, 3, 4):  # rows whose tokens all had a probability near 1
        t["old"][4 - without :] = -1e-6
        kept = ((t["old"].exp() < 0.4) * t["mask"]).sum(1, keepdim=True)
        assert (kept > 0).sum() == 4 - without
        slope = 0.3 * (1 - (t["ref"] - t["logps"].detach()).exp()) * t["mask"]
        # a row without a kept token has no KL of its own; with "bnpo" its micro-batch has one
        share = (kept > 0) / kept.clamp(min=1) / 4 if loss_type == "grpo" else (without < 4) / kept.sum().clamp(min=1)
        _, grad = run(trainer, toy_loss, t)
        torch.testing.assert_close(grad, slope * share, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("knobs", [{}, {"token_mask": "probability", "probability_threshold": 0.4}], ids=str)
@pytest.mark.parametrize("loss_type", ["dapo", "cispo"])
def test_an_average_over_prompts_in_closed_form(make_trainer, toy_loss, loss_type, knobs):
    """(1/Q) Σ_q (1/Z_q) Σ_{i∈q} Σ_t [M_it · policy term + β k3_it], Z_q the kept tokens of prompt q (SPO, Eq. 4)."""
    t = toy()
    settings = {"beta": 0.3, "use_bias_correction_kl": False, "epsilon_high": 9.0, **knobs}
    settings |= {"epsilon": 0.99} if loss_type == "dapo" else {}
    trainer = make_trainer("base", loss_type=loss_type, prompt_average=True, **settings)
    kept = t["mask"] * ((t["old"].exp() < 0.4) if knobs else 1)
    prompts = torch.tensor([5, -3, 5, -3])
    weight = prompt_weights(kept.sum(1), prompts)
    assert (weight * kept.sum(1)).sum() == pytest.approx(kept.sum().item())  # the mean weight of a token is 1
    logps = t["logps"]
    ratio = (logps - t["old"]).exp()
    policy_t = ratio.detach() * logps if loss_type == "cispo" else ratio
    loss_t = -policy_t * t["advantages"].unsqueeze(1) * kept + 0.3 * k3(t) * t["mask"]
    of_prompt = [loss_t[prompts == q].sum() / kept[prompts == q].sum() for q in (5, -3)]
    right = sum(of_prompt) / 2
    more = {"num_items_in_batch": kept.sum(), "row_weight": weight}
    check_loss(run(trainer, toy_loss, t, **more), right, logps, rtol=1e-6, atol=1e-7)  # its weights are float32


def test_weights_of_an_average_over_prompts():
    weight = prompt_weights(torch.tensor([2, 1, 3, 0, 0]), torch.tensor([7, 7, 1, 1, 4]))
    torch.testing.assert_close(weight, torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]))  # 6 tokens, 3 for each of two prompts
    weight = prompt_weights(torch.tensor([4, 0, 1, 1]), torch.tensor([0, 0, 1, 2]))
    torch.testing.assert_close(weight, torch.tensor([0.5, 0.5, 2.0, 2.0]))
    assert prompt_weights(torch.zeros(3), torch.arange(3)).tolist() == [0.0, 0.0, 0.0]


# A loss that is averaged over prompts, through the real trainer: single responses, chains and trees with replay


MASK = {"token_mask": "probability", "probability_threshold": 0.06}
SMALL = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_generations": 4, "temperature": 1.3}
CASES = {
    "responses": {"loss_type": "dapo", **SMALL},
    "chain": {**CHAIN, **SMALL, **MASK},
    "tree": {**TREE, "num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, **MASK},
    "packed": {**TREE, "tree_rows": "packed", "num_generations": 4, "per_device_train_batch_size": 16},
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_mean_of_the_means_of_prompts(make_trainer, case):
    """Against the means of all tokens of one prompt after the other, TRL's own, with the others out of the loss."""
    trainer = make_trainer(**CASES[case], prompt_average=True, beta=0.1, use_bias_correction_kl=False)
    in_double(trainer)
    torch.manual_seed(5)
    output = generation_batch(trainer)
    averaged = gradients(trainer, output)

    plain = {name: value for name, value in output.items() if name != "row_weight"}
    seen = plain["completion_mask"] * plain.get("tool_mask", 1)
    kept = plain.get("policy_mask", seen)
    if "responses" in case or case == "chain":
        prompts = torch.arange(len(seen)) // 4
    else:  # by the first tokens of prompt and prefix
        rows = zip(plain["prompt_ids"], plain["prompt_mask"], strict=True)
        heads = [tuple(ids[mask.bool()][:3].tolist()) for ids, mask in rows]
        prompts = torch.tensor([sorted(set(heads)).index(head) for head in heads])
    counts = torch.stack([kept[prompts == q].sum() for q in prompts.unique()])
    assert (counts > 0).sum() > 1 and len(counts[counts > 0].unique()) > 1  # or every mean would do
    sums = {}
    for q in prompts.unique()[counts > 0]:
        inside = (prompts == q).long().unsqueeze(1)
        part = {**plain, "tool_mask": plain.get("tool_mask", 1) * inside * torch.ones_like(seen)}
        part["policy_mask"] = kept * inside
        part["num_items_in_batch"] = (kept * inside).sum()
        for name, gradient in gradients(trainer, part).items():
            sums[name] = sums.get(name, 0) + gradient / (counts > 0).sum()
    torch.testing.assert_close(averaged, sums, rtol=1e-4, atol=1e-7)  # advantages are float32


def test_rows_of_a_replayed_prompt_weigh_alike(make_trainer):
    trainer = make_trainer("spo_tree", **{**TREE, "tree_rows": "nodes"}, replay_cap=4, max_steps=4)
    planned, kept = plans(trainer), batches(trainer)
    trainer.train()
    assert any(row.birth < plan.iteration for plan in planned for row in plan.drawn)
    for plan, output in zip(planned, kept, strict=True):
        n = output["policy_mask"].sum(1).float()
        share = output["row_weight"] * n / n.sum()
        of = {}
        for row, x in zip(plan.rows[: plan.n_real], share, strict=False):
            of[row.question] = of.get(row.question, 0.0) + x.item()
        shares = [x for x in of.values() if x]
        assert shares == pytest.approx([1 / len(shares)] * len(shares))
    assert all(row["credit/rows"] for row in steps_of(trainer))
