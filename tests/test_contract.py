"""The contract with TRL: what the seam relies on, as toy tensors through the real `_compute_loss`."""

import copy
import math

import pytest
import torch
import trl
from conftest import toy_inputs

import trl_credit
from trl_credit.trainer import refusals
from trl_credit.trainer.normalizer import prompt_weights


def toy(seed=0, batch=4, length=7, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    logps = (-2 * torch.rand(batch, length, generator=g, dtype=dtype)).requires_grad_()
    old = logps.detach() + 0.3 * torch.randn(batch, length, generator=g, dtype=dtype)
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, 4:], mask[1, 2:4] = 0, 0  # a short completion and tool tokens inside one
    return {
        "logps": logps,
        "old": old,
        "ref": old + 0.1 * torch.randn(batch, length, generator=g, dtype=dtype),
        "entropies": torch.rand(batch, length, generator=g, dtype=dtype),
        "advantages": torch.tensor([1.0, -0.5, 0.7, -1.2], dtype=dtype)[:batch],
        "mask": mask,
    }


def run(trainer, toy_loss, t, *, with_old=True, **tensors):
    inputs = toy_inputs(t["mask"], advantages=t["advantages"], ref_per_token_logps=t["ref"], **tensors)
    if with_old:
        inputs["old_per_token_logps"] = t["old"]
    loss = toy_loss(trainer, inputs, logps=t["logps"], entropies=t["entropies"])
    return loss, torch.autograd.grad(loss, t["logps"], retain_graph=True)[0]


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo"])
@pytest.mark.parametrize("with_old", [True, False])
def test_default_knobs_are_trl_to_the_last_bit(make_trainer, toy_loss, loss_type, with_old):
    settings = {"loss_type": loss_type, "beta": 0.04, "entropy_coef": 0.01, "top_entropy_quantile": 0.5}
    theirs = make_trainer((trl.GRPOConfig, trl.GRPOTrainer), **settings)
    ours = make_trainer("base", **settings)
    for left, right in zip(
        run(theirs, toy_loss, toy(), with_old=with_old), run(ours, toy_loss, toy(), with_old=with_old), strict=True
    ):
        assert torch.equal(left, right)


def test_sequence_is_trls_own_gspo_to_the_last_bit(make_trainer, toy_loss):
    theirs = make_trainer((trl.GRPOConfig, trl.GRPOTrainer), loss_type="grpo", importance_sampling_level="sequence")
    ours = make_trainer("base", loss_type="grpo", importance="sequence")
    for left, right in zip(run(theirs, toy_loss, toy()), run(ours, toy_loss, toy()), strict=True):
        assert torch.equal(left, right)


def test_sequence_token_equals_sequence_under_uniform_advantages(make_trainer, toy_loss):
    pair = [make_trainer("base", loss_type="grpo", importance=name) for name in ("sequence", "sequence_token")]
    for left, right in zip(*(run(trainer, toy_loss, toy()) for trainer in pair), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "knobs",
    [
        {"importance": "eligible", "trace_lambda": 0.0},
        {"importance": "eligible", "gamma": 0.0},
        {"importance": "eligible", "selector": "entropy", "selective_rate": 0.0},
        {"importance": "lambda_trace", "trace_lambda": 0.0},
        {"loss_weight": "trace_past", "trace_lambda": 0.0},
        {"token_mask": "probability", "probability_threshold": 1e9},
        {"advantage_floor": -100.0},
    ],
    ids=str,
)
def test_limits_that_are_grpo(make_trainer, toy_loss, knobs):
    plain = make_trainer("base", loss_type="grpo", beta=0.04, use_bias_correction_kl=False)
    limit = make_trainer("base", loss_type="grpo", beta=0.04, use_bias_correction_kl=False, **knobs)
    (loss, grad), (loss_l, grad_l) = run(plain, toy_loss, toy()), run(limit, toy_loss, toy())
    torch.testing.assert_close(loss_l, loss, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(grad_l, grad, rtol=1e-13, atol=1e-15)


def test_eligible_clips_exactly_where_grpo_clips(make_trainer, toy_loss):
    t = toy()
    plain, p_trace = make_trainer("base", loss_type="grpo"), make_trainer("p_trace", beta=0.0)
    run(plain, toy_loss, t), run(p_trace, toy_loss, t)
    name = "clip_ratio/region_mean"
    plain, p_trace = plain._metrics["eval"], p_trace._metrics["eval"]  # the mode that a model is loaded in
    assert plain[name] == p_trace[name] and plain[name][0] > 0
    assert p_trace["credit/clip_fraction"] == pytest.approx(plain[name])


def test_on_policy_past_identities(make_trainer, toy_loss):
    """On-policy, P-trace, the ε-trace and the ε-weight `future` have one gradient."""
    grads = []
    for knobs in ({"importance": "eligible"}, {"importance": "lambda_trace"}, {"loss_weight": "trace_future"}):
        trainer = make_trainer("base", loss_type="dr_grpo", **knobs)
        grads.append(run(trainer, toy_loss, toy(), with_old=False)[1])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(grads[0], grads[2], rtol=1e-12, atol=1e-14)


def test_kl_never_carries_a_trace(make_trainer, toy_loss):
    t = toy()
    t["advantages"] = torch.zeros(4, dtype=torch.float64)
    plain = make_trainer("base", loss_type="grpo", beta=0.5, use_bias_correction_kl=False)
    traced = make_trainer("grpo_lambda", beta=0.5)
    assert torch.equal(run(plain, toy_loss, t)[1], run(traced, toy_loss, t)[1])


@pytest.mark.parametrize("algo", sorted(trl_credit.ALGORITHMS))
def test_the_buffer_of_trl_is_left_alone(make_trainer, toy_loss, algo):
    trainer, t = make_trainer(algo), toy()
    inputs = toy_inputs(
        t["mask"], advantages=t["advantages"], ref_per_token_logps=t["ref"], old_per_token_logps=t["old"]
    )
    before = copy.deepcopy(inputs)
    first = toy_loss(trainer, inputs, logps=t["logps"], entropies=t["entropies"])
    assert inputs.keys() == before.keys()
    for key, value in before.items():
        assert torch.equal(inputs[key], value), key
    if trainer.args.selector != "random":  # the next of num_iterations sees the same π_old
        assert torch.equal(first, toy_loss(trainer, inputs, logps=t["logps"], entropies=t["entropies"]))


@pytest.mark.parametrize("algo", sorted(trl_credit.ALGORITHMS))
def test_evaluation_has_the_same_value_without_a_gradient(make_trainer, toy_loss, algo):
    trainer, t = make_trainer(algo), toy()
    loss, _ = run(trainer, toy_loss, t)
    with torch.no_grad():
        inputs = toy_inputs(
            t["mask"], advantages=t["advantages"], ref_per_token_logps=t["ref"], old_per_token_logps=t["old"]
        )
        value = toy_loss(trainer, inputs, logps=t["logps"].detach(), entropies=t["entropies"])
    assert torch.equal(loss.detach(), value)


@pytest.mark.parametrize("algo", ["s_trace", "grpo_lambda", "gspo_token"])
def test_off_policy_mask_sees_the_true_behavior_policy(make_trainer, toy_loss, algo):
    t = toy()
    t["advantages"] = -torch.ones(4, dtype=torch.float64)
    kl = ((t["old"] - t["logps"].detach()) * t["mask"]).sum(-1) / t["mask"].sum(-1)
    threshold = kl.sort().values[1:3].mean().item()  # two rows above it, two below
    trainer = make_trainer(algo, beta=0.0, off_policy_mask_threshold=threshold)
    _, grad = run(trainer, toy_loss, t)
    with_true = run(trainer, toy_loss, t, sampling_per_token_logps=t["old"])[1]
    assert torch.equal(grad, with_true)
    assert (grad.abs().sum(-1) > 0).tolist() == (kl <= threshold).tolist()


def test_vllm_correction_multiplies_the_traced_loss(make_trainer, toy_loss):
    t = toy()
    trainer = make_trainer("s_trace", beta=0.0)
    plain = run(trainer, toy_loss, t)[1]
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    halved = run(trainer, toy_loss, t, importance_sampling_ratio=torch.full((4, 1), 0.5, dtype=torch.float64))[1]
    torch.testing.assert_close(halved, 0.5 * plain, rtol=1e-14, atol=0)


@pytest.mark.parametrize("algo", sorted(trl_credit.ALGORITHMS))
def test_padding_may_hold_anything_finite_or_not(make_trainer, toy_loss, algo):
    trainer, t = make_trainer(algo, beta=0.0), toy()
    loss, grad = run(trainer, toy_loss, t)
    t["entropies"] = torch.where(t["mask"].bool(), t["entropies"], 1e9)
    loss2, grad2 = run(trainer, toy_loss, t)
    assert torch.equal(loss, loss2) and torch.equal(grad, grad2)


def probability_case(toy_loss, make_trainer, loss_type, **knobs):
    """Spec 10.4: p_old = [.5, .95, .8, .99], ratio = [1.1, 1, 1.3, .9], A = .5; a second row with one kept token."""
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


def test_probability_mask_normalisers(make_trainer, toy_loss):
    assert probability_case(toy_loss, make_trainer, "grpo") == pytest.approx((-0.575 + 1.0) / 2)  # Eq. 3: per sequence
    assert probability_case(toy_loss, make_trainer, "bnpo") == pytest.approx((-1.15 + 1.0) / 3)
    assert probability_case(toy_loss, make_trainer, "dapo") == pytest.approx((-1.15 + 1.0) / 3)
    assert probability_case(toy_loss, make_trainer, "dr_grpo") == pytest.approx((-1.15 + 1.0) / (2 * 8))


@pytest.mark.parametrize("corrected", [False, True])
def test_both_normalisers_of_the_kl(make_trainer, toy_loss, corrected):
    knobs = {"beta": 2.0, "use_bias_correction_kl": corrected}
    ratio = [1.1, 1.0, 1.3, 0.9] if corrected else [1.0] * 4
    kl = [r * (math.exp(d) - d - 1) for d, r in zip([0.1, 0.2, -0.1, 0.0], ratio, strict=True)]
    every, kept = 2.0 * sum(kl), 2.0 * (kl[0] + kl[2])

    def case(loss_type, normalizer):
        return probability_case(toy_loss, make_trainer, loss_type, mask_normalizer=normalizer, **knobs)

    assert case("grpo", "paper") == pytest.approx(((-1.15 + every) / 2 + 1.0) / 2)
    assert case("bnpo", "paper") == pytest.approx((-0.15 + every) / 3)
    assert case("dapo", "paper") == pytest.approx((-0.15 + every) / 3)
    assert case("dr_grpo", "paper") == pytest.approx((-0.15 + every) / 16)
    # the released code: summed over the kept tokens of a row, mean over rows, whatever the policy term is divided by
    assert case("grpo", "code") == pytest.approx((-1.15 / 2 + 1.0) / 2 + kept / 2)
    assert case("bnpo", "code") == pytest.approx(-0.15 / 3 + kept / 2)
    assert case("dapo", "code") == pytest.approx(-0.15 / 3 + kept / 2)
    assert case("dr_grpo", "code") == pytest.approx(-0.15 / 16 + kept / 2)
    if not corrected:  # the specification's figures, per β
        assert every / 2 / 2 == pytest.approx(0.0157055, abs=1e-7)
        assert kept / 2 == pytest.approx(0.0100083, abs=1e-7)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo"])
def test_where_the_mask_keeps_nothing_there_is_no_kl(make_trainer, toy_loss, loss_type):
    t = toy()
    knobs = {"token_mask": "probability", "beta": 0.3, "use_bias_correction_kl": False}
    t["old"] = t["logps"].detach().clone()
    t["advantages"] = torch.zeros_like(t["advantages"])
    t["old"][1:] = -1e-6  # sure of all but the first response
    rows = 4 if loss_type == "grpo" else 1
    _, grad = run(make_trainer("base", loss_type=loss_type, **knobs), toy_loss, t)
    slope = 0.3 * (1 - (t["ref"] - t["logps"].detach()).exp()) * t["mask"]
    kept = ((t["old"].exp() < 0.9) * t["mask"]).sum(1)
    assert kept[0] > 0 and not kept[1:].any()
    expected = slope / kept[0] / rows
    if loss_type == "grpo":  # of a micro-batch there is something to divide by
        expected = expected * (kept > 0).unsqueeze(1)
    torch.testing.assert_close(grad, expected, rtol=1e-6, atol=1e-8)
    t["old"][:] = -1e-6
    _, grad = run(make_trainer("base", loss_type=loss_type, **knobs), toy_loss, t)
    torch.testing.assert_close(grad, torch.zeros_like(grad), rtol=0, atol=1e-9)


def test_the_masked_kl_has_the_gradient_of_its_value(make_trainer, toy_loss):
    """Gradient of β Σ_t k3_t / Σ_t M_t per row, with A = 0: ∂k3/∂ℓ = 1 − exp(ref − ℓ)."""
    t = toy()
    t["mask"] = torch.ones_like(t["mask"])
    t["advantages"] = torch.zeros_like(t["advantages"])
    trainer = make_trainer(
        "base", loss_type="grpo", token_mask="probability", probability_threshold=0.4, beta=0.3,
        use_bias_correction_kl=False,
    )  # fmt: skip
    kept = (t["old"].exp() < 0.4).sum(1, keepdim=True)
    assert (kept > 0).all() and (kept < 7).any()
    _, grad = run(trainer, toy_loss, t)
    expected = 0.3 * (1 - (t["ref"] - t["logps"].detach()).exp()) / kept / len(kept)
    torch.testing.assert_close(grad, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("knobs", [{}, {"token_mask": "probability", "probability_threshold": 0.4}], ids=str)
@pytest.mark.parametrize("loss_type", ["dapo", "cispo"])
def test_an_average_over_prompts_in_closed_form(make_trainer, toy_loss, loss_type, knobs):
    """(1/Q) Σ_q (1/Z_q) Σ_{i∈q} Σ_t [M_it · policy term + β k3_it], Z_q the kept tokens of prompt q (SPO, Eq. 4)."""
    t = toy()
    settings = {"beta": 0.3, "use_bias_correction_kl": False, "epsilon": 0.99, "epsilon_high": 9.0, **knobs}
    trainer = make_trainer("base", loss_type=loss_type, prompt_average=True, **settings)
    kept = t["mask"] * ((t["old"].exp() < 0.4) if knobs else 1)
    prompts = torch.tensor([5, -3, 5, -3])
    weight = prompt_weights(kept.sum(1), prompts)
    assert (weight * kept.sum(1)).sum() == pytest.approx(kept.sum().item())  # twice the same mean, of the whole batch
    logps = t["logps"]
    ratio = (logps - t["old"]).exp()
    policy_t = ratio.detach() * logps if loss_type == "cispo" else ratio
    advantages = t["advantages"] if t["advantages"].dim() == 2 else t["advantages"].unsqueeze(1)
    difference = t["ref"] - logps
    loss_t = -policy_t * advantages * kept + 0.3 * (difference.exp() - difference - 1) * t["mask"]
    of_prompt = [loss_t[prompts == q].sum() / kept[prompts == q].sum() for q in (5, -3)]
    right = sum(of_prompt) / 2
    more = {"num_items_in_batch": kept.sum(), "row_weight": weight}
    loss, grad = run(trainer, toy_loss, t, **more)
    torch.testing.assert_close(loss, right, rtol=1e-6, atol=1e-7)  # its weights are float32
    torch.testing.assert_close(grad, torch.autograd.grad(right, logps)[0], rtol=1e-6, atol=1e-7)


def test_weights_of_an_average_over_prompts():
    weight = prompt_weights(torch.tensor([2, 1, 3, 0, 0]), torch.tensor([7, 7, 1, 1, 4]))
    torch.testing.assert_close(weight, torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]))  # 6 tokens, 3 for each of two prompts
    weight = prompt_weights(torch.tensor([4, 0, 1, 1]), torch.tensor([0, 0, 1, 2]))
    torch.testing.assert_close(weight, torch.tensor([0.5, 0.5, 2.0, 2.0]))
    assert prompt_weights(torch.zeros(3), torch.arange(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("half", [False, True], ids=["paper", "code"])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo"])
def test_policy_iteration_in_closed_form(make_trainer, toy_loss, loss_type, half):
    t = toy()
    ids = torch.tensor([[0, 0, 1, 1, -1, -1, -1], [0, 0, 0, 0, 1, 1, 1], [0] * 7, [-1, 0, 0, 1, 1, 2, 2]])
    table = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    t["advantages"] = table.gather(1, ids.clamp(min=0)) * (ids >= 0)
    name, factor = ("policy_iteration_code", 0.5) if half else ("policy_iteration", 1.0)
    trainer = make_trainer("base", policy_loss=name, beta=0.1, loss_type=loss_type)
    expected, rows = [], []
    logps = t["logps"]
    for row in range(4):
        losses = []
        for k in range(3):
            inside = (ids[row] == k) & t["mask"][row].bool()
            if inside.any():
                ratio = (logps[row] - t["ref"][row])[inside].sum()
                weight = (logps[row] - t["old"][row])[inside].sum().exp().clamp(max=10).detach()
                losses.append(factor * weight * (0.1 * ratio - table[row, k]).square())
        expected += losses
        rows.append(sum(losses) / len(losses))
    loss, grad = run(trainer, toy_loss, t, segment_ids=ids, num_items_in_batch=torch.tensor(len(expected)))
    right = sum(rows) / 4 if loss_type == "grpo" else sum(expected) / len(expected)
    torch.testing.assert_close(loss, right, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(grad, torch.autograd.grad(right, logps)[0], rtol=1e-10, atol=1e-12)


def test_policy_iteration_weighs_by_the_engine_that_sampled(make_trainer, toy_loss):
    t = toy()
    trainer = make_trainer("base", policy_loss="policy_iteration", beta=0.1, loss_type="dapo")
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    plain = run(trainer, toy_loss, t, importance_sampling_ratio=torch.full_like(t["old"], 3.0))
    sampler = t["old"] + 0.2
    sampler[2, 1] = math.nan  # which vLLM may give
    moved = run(
        trainer, toy_loss, t, importance_sampling_ratio=torch.full_like(t["old"], 3.0), sampling_per_token_logps=sampler
    )
    trainer.use_vllm = False
    assert torch.equal(plain[0], run(trainer, toy_loss, t)[0]) and not torch.equal(plain[0], moved[0])
    assert moved[1].isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_whitening_per_microbatch(make_trainer, toy_loss, masked):
    t = toy()
    knobs = {"token_mask": "probability", "probability_threshold": 0.4} if masked else {}
    white = make_trainer("base", loss_type="bnpo", whiten_advantages="microbatch", **knobs)
    kept = t["mask"] * (t["old"].exp() < 0.4 if masked else 1)
    values = t["advantages"].unsqueeze(1).expand(4, 7)[kept.bool()]
    got = run(white, toy_loss, t)
    t["advantages"] = (t["advantages"] - values.mean()) / (values.var() + 1e-8).sqrt()
    expected = run(make_trainer("base", loss_type="bnpo", **knobs), toy_loss, t)
    for left, right in zip(got, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)


def test_advantage_floor_and_loss_weight(make_trainer, toy_loss):
    t = toy()
    t["old"] = t["logps"].detach().clone()
    trainer = make_trainer("base", loss_type="dr_grpo", advantage_floor=-0.1, loss_weight="trace_past")
    _, grad = run(trainer, toy_loss, t)
    c = torch.zeros_like(t["old"])
    for b in range(4):
        for i in range(7):
            c[b, i] = sum(0.9 ** (i - k) for k in range(i + 1) if t["mask"][b, k])
    expected = -c * t["advantages"].clamp(min=-0.1)[:, None] * t["mask"] / (4 * 8)
    torch.testing.assert_close(grad, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("direction", ["past", "future"])
@pytest.mark.parametrize("style", ["recent", "both"])
def test_the_loss_weight_times_confidence(make_trainer, toy_loss, direction, style):
    """Off-policy: the weight multiplies PPO's loss of a token, and neither factor has a gradient."""
    t, g = toy(), 0.9
    trainer = make_trainer(
        "base", loss_type="dr_grpo", loss_weight=f"trace_{direction}", trace_style=style, loss_weight_confidence=True
    )
    loss, grad = run(trainer, toy_loss, t)
    expected = 0.0
    for b in range(4):
        for i in range(7):
            pairs = [(i, k) if direction == "past" else (k, i) for k in range(7) if t["mask"][b, k]]
            c = sum(max(g ** (j - k), g**k if style == "both" else 0.0) for j, k in pairs if k <= j)
            f = 1 + 1 / (1 + math.exp(1 - t["logps"][b, i].item()))
            ratio, a = (t["logps"][b, i] - t["old"][b, i]).exp(), t["advantages"][b]
            surrogate = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)
            expected = expected - c * f * t["mask"][b, i].item() * surrogate / (4 * 8)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(grad, torch.autograd.grad(expected, t["logps"])[0], rtol=1e-11, atol=1e-14)


def test_hook_that_does_not_run_is_an_error(make_trainer, toy_loss, monkeypatch):
    trainer, t = make_trainer("s_trace"), toy()
    monkeypatch.setattr(trl.GRPOTrainer, "_compute_loss", lambda self, model, inputs: torch.zeros(()))
    with pytest.raises(RuntimeError, match="0 times in one loss"):
        run(trainer, toy_loss, t)


def test_hook_that_runs_twice_is_an_error(make_trainer, toy_loss, monkeypatch):
    trainer, t = make_trainer("s_trace"), toy()
    real = trl.GRPOTrainer._compute_loss

    def twice(self, model, inputs):
        self._get_per_token_logps_and_entropies(model)
        return real(self, model, inputs)

    monkeypatch.setattr(trl.GRPOTrainer, "_compute_loss", twice)
    with pytest.raises(RuntimeError, match="2 times in one loss"):
        run(trainer, toy_loss, t)


def test_more_outputs_of_the_forward_pass_go_through(make_trainer, monkeypatch):
    trainer = make_trainer("s_trace")
    outputs = (torch.zeros(1, 1), torch.zeros(1, 1), None, "new in the next TRL")
    monkeypatch.setattr(trl.GRPOTrainer, "_get_per_token_logps_and_entropies", lambda self, *a, **k: outputs)
    assert trainer._get_per_token_logps_and_entropies(trainer.model, new_argument=1) is outputs


def test_a_newer_trl_warns(recwarn):
    refusals.check_trl_version(trl.__version__)
    assert not [w for w in recwarn if "trl_credit" in str(w.message)]
    with pytest.warns(UserWarning, match="newer than"):
        refusals.check_trl_version("1.99.0")


def test_liger_before_1_14_is_refused(make_trainer, monkeypatch):
    monkeypatch.setattr(trl, "__version__", "1.13.0")

    with pytest.raises(ValueError, match="use_liger_kernel=False"):
        make_trainer("base", use_liger_kernel=True)


def test_plain_grpo_config_is_refused(make_trainer):
    with pytest.raises(TypeError, match="STraceConfig"):
        make_trainer((trl.GRPOConfig, trl_credit.STraceTrainer))


@pytest.mark.parametrize("algo", sorted(trl_credit.ALGORITHMS))
def test_the_order_of_rows_does_not_matter(make_trainer, toy_loss, algo):
    trainer, t = make_trainer(algo, beta=0.0), toy()
    order = torch.tensor([2, 0, 3, 1])
    permuted = {name: x.detach()[order] for name, x in t.items()}
    permuted["logps"].requires_grad_()
    (loss, grad), (loss_p, grad_p) = run(trainer, toy_loss, t), run(trainer, toy_loss, permuted)
    torch.testing.assert_close(loss_p, loss, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(grad_p, grad[order], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("algo", sorted(trl_credit.ALGORITHMS))
def test_tool_tokens_and_padding_never_get_credit(make_trainer, toy_loss, algo):
    trainer, t = make_trainer(algo), toy()
    _, grad = run(trainer, toy_loss, t)
    assert grad[t["mask"] == 0].abs().max() == 0 and grad[t["mask"] == 1].abs().max() > 0


@pytest.mark.parametrize("algo", sorted(trl_credit.ALGORITHMS))
def test_a_row_without_a_loss_token_adds_nothing(make_trainer, toy_loss, algo):
    trainer, t = make_trainer(algo), toy()
    t["mask"][3] = 0
    loss, grad = run(trainer, toy_loss, t)
    assert loss.isfinite() and grad.isfinite().all() and grad[3].abs().max() == 0 and grad[2].abs().max() > 0
    t["mask"][:] = 0
    loss, grad = run(trainer, toy_loss, t)
    assert loss == 0 and grad.abs().max() == 0
