"""The contract with TRL: toy tensors through the real `_compute_loss`."""

import copy

import pytest
import torch
import trl
from conftest import toy_inputs
from custom_functions import custom
from toy_loss import check_close, check_same, run, toy

import trl_credit


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo"])
@pytest.mark.parametrize("with_old", [True, False])
def test_default_knobs_are_trl_to_the_last_bit(make_trainer, toy_loss, loss_type, with_old):
    settings = {"loss_type": loss_type, "beta": 0.04, "entropy_coef": 0.01, "top_entropy_quantile": 0.5}
    theirs = make_trainer((trl.GRPOConfig, trl.GRPOTrainer), **settings)
    ours = make_trainer("base", **settings)
    check_same(*(run(trainer, toy_loss, toy(), with_old=with_old) for trainer in (theirs, ours)))


@pytest.mark.parametrize("loss_type", ["grpo", "luspo"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_trls_levels_of_importance_are_trl_to_the_last_bit(make_trainer, toy_loss, loss_type, level):
    settings = {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.04}
    settings |= {} if loss_type == "luspo" else {"top_entropy_quantile": 0.5}
    ours, theirs = make_trainer("base", **settings), make_trainer((trl.GRPOConfig, trl.GRPOTrainer), **settings)
    assert ours.args.importance == level
    check_same(run(theirs, toy_loss, toy()), run(ours, toy_loss, toy()))


def test_sequence_token_equals_sequence_under_uniform_advantages(make_trainer, toy_loss):
    pair = [make_trainer("base", loss_type="grpo", importance=name) for name in ("sequence", "sequence_token")]
    check_close(*(run(trainer, toy_loss, toy()) for trainer in pair), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "knobs",
    [
        {"importance": "eligible", "trace_lambda": 0.0},
        {"importance": "eligible", "gamma": 0.0},
        {"importance": "eligible", "selector": "entropy", "selective_rate": 0.0},
        {"importance": "eligible", "selector": "entropy", "selective_rate": 0.5, "trace_lambda": 0.0},
        {"importance": "lambda_trace", "trace_lambda": 0.0},
        {"importance": "lambda_trace", "gamma": 0.0},
        {"loss_weight": "trace_past", "trace_lambda": 0.0},
        {"loss_weight": "trace_future", "gamma": 0.0},
        {"token_mask": "probability", "probability_threshold": 1e9},
        {"advantage_floor": -100.0},
    ],
    ids=str,
)
def test_limits_that_are_grpo(make_trainer, toy_loss, knobs):
    plain = make_trainer("base", loss_type="grpo", beta=0.04, use_bias_correction_kl=False)
    limit = make_trainer("base", loss_type="grpo", beta=0.04, use_bias_correction_kl=False, **knobs)
    check_close(run(limit, toy_loss, toy()), run(plain, toy_loss, toy()), rtol=1e-14, atol=1e-15)


def test_kl_never_carries_a_trace(make_trainer, toy_loss):
    t = toy()
    t["advantages"] = torch.zeros(4, dtype=torch.float64)
    plain = make_trainer("base", loss_type="grpo", beta=0.5, use_bias_correction_kl=False)
    traced = make_trainer("grpo_lambda", beta=0.5)
    assert torch.equal(run(plain, toy_loss, t)[1], run(traced, toy_loss, t)[1])


@pytest.mark.parametrize("algo", [*sorted(trl_credit.ALGORITHMS), "custom"])
def test_the_inputs_of_trl_stay_unchanged_and_an_evaluation_has_the_same_value(make_trainer, toy_loss, algo):
    trainer = make_trainer(credit=custom("later_is_less")) if algo == "custom" else make_trainer(algo)
    t = toy()
    inputs = toy_inputs(
        t["mask"], advantages=t["advantages"], ref_per_token_logps=t["ref"], old_per_token_logps=t["old"]
    )
    before = copy.deepcopy(inputs)
    loss = toy_loss(trainer, inputs, logps=t["logps"], entropies=t["entropies"])
    assert inputs.keys() == before.keys()
    for key, value in before.items():
        assert torch.equal(inputs[key], value), key
    with torch.no_grad():  # with the same inputs, as in the next of num_iterations
        again = toy_loss(trainer, inputs, logps=t["logps"].detach(), entropies=t["entropies"])
    assert torch.equal(loss.detach(), again)


@pytest.mark.parametrize(
    ("algo", "knobs"),
    [("s_trace", {}), ("grpo_lambda", {}), ("gspo_token", {}), ("base", {"loss_type": "dapo", "clip_form": "ratio"})],
)
def test_off_policy_mask_sees_the_true_behavior_policy(make_trainer, toy_loss, algo, knobs):
    t = toy()
    t["advantages"] = -torch.ones(4, dtype=torch.float64)
    kl = ((t["old"] - t["logps"].detach()) * t["mask"]).sum(-1) / t["mask"].sum(-1)
    threshold = kl.sort().values[1:3].mean().item()  # two rows above it, two below
    trainer = make_trainer(algo, beta=0.0, off_policy_mask_threshold=threshold, **knobs)
    _, grad = run(trainer, toy_loss, t)
    assert torch.equal(grad, run(trainer, toy_loss, t, sampling_per_token_logps=t["old"])[1])
    assert (grad.abs().sum(-1) > 0).tolist() == (kl <= threshold).tolist()


@pytest.mark.parametrize("times", [0, 2])
def test_a_hook_that_does_not_run_once_is_an_error(make_trainer, toy_loss, monkeypatch, times):
    def loss(self, model, inputs):
        for _ in range(times):
            self._get_per_token_logps_and_entropies(model)
        return torch.zeros(())

    trainer = make_trainer("s_trace")
    monkeypatch.setattr(trl.GRPOTrainer, "_compute_loss", loss)
    with pytest.raises(RuntimeError, match=f"{times} times in one loss"):
        run(trainer, toy_loss, toy())


def test_plain_grpo_config_is_refused(make_trainer):
    with pytest.raises(TypeError, match="STraceConfig"):
        make_trainer((trl.GRPOConfig, trl_credit.STraceTrainer))


@pytest.mark.parametrize("algo", sorted(trl_credit.ALGORITHMS))
def test_neither_the_order_of_rows_nor_entropies_of_padding_matter(make_trainer, toy_loss, algo):
    trainer, t = make_trainer(algo, beta=0.0), toy()
    loss, grad = clean = run(trainer, toy_loss, t)
    order = torch.tensor([2, 0, 3, 1])
    permuted = {name: x.detach()[order] for name, x in t.items()}
    permuted["logps"].requires_grad_()
    check_close(run(trainer, toy_loss, permuted), (loss, grad[order]), rtol=1e-13, atol=1e-15)
    t["entropies"] = torch.where(t["mask"].bool(), t["entropies"], 1e9)
    check_same(run(trainer, toy_loss, t), clean)


@pytest.mark.parametrize("algo", sorted(trl_credit.ALGORITHMS))
def test_tool_tokens_padding_and_rows_without_a_loss_token_never_get_credit(make_trainer, toy_loss, algo):
    trainer, t = make_trainer(algo), toy()
    _, grad = run(trainer, toy_loss, t)
    assert grad[t["mask"] == 0].abs().max() == 0 and grad[t["mask"] == 1].abs().max() > 0
    t["mask"][3] = 0
    loss, grad = run(trainer, toy_loss, t)
    assert loss.isfinite() and grad.isfinite().all() and grad[3].abs().max() == 0 and grad[2].abs().max() > 0
    t["mask"][:] = 0
    loss, grad = run(trainer, toy_loss, t)
    assert loss == 0 and grad.abs().max() == 0
