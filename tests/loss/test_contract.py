"""The contract with TRL: toy tensors through the real `_compute_loss`."""

import copy

import pytest
import torch
import trl
from conftest import toy_inputs
from custom_functions import custom
from toy_loss import check_close, check_same, run, toy

import trl_credit


LEVELS = [(name, "token") for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")]
LEVELS += [(name, "sequence") for name in ("grpo", "luspo")]


@pytest.mark.parametrize(("loss_type", "level"), LEVELS)
@pytest.mark.parametrize("with_old", [True, False])
def test_default_knobs_are_trl_to_the_last_bit(make_trainer, toy_loss, loss_type, level, with_old):
    settings = {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.04, "entropy_coef": 0.01}
    settings |= {} if loss_type == "luspo" else {"top_entropy_quantile": 0.5}
    theirs = make_trainer((trl.GRPOConfig, trl.GRPOTrainer), **settings)
    ours = make_trainer("base", **settings)
    assert ours.args.importance == level
    check_same(*(run(trainer, toy_loss, toy(), with_old=with_old) for trainer in (theirs, ours)))


@pytest.mark.parametrize("algo", [*sorted(trl_credit.ALGORITHMS), "custom"])
def test_inputs_stay_unchanged_and_an_evaluation_has_the_same_value_and_nothing_has_none(make_trainer, toy_loss, algo):
    trainer = make_trainer(credit=custom("later_is_less")) if algo == "custom" else make_trainer(algo)
    t = toy()
    logps = {"ref_per_token_logps": t["ref"], "old_per_token_logps": t["old"]}
    inputs = toy_inputs(t["mask"], advantages=t["advantages"], **logps)
    before = copy.deepcopy(inputs)
    loss = toy_loss(trainer, inputs, logps=t["logps"], entropies=t["entropies"])
    torch.testing.assert_close(inputs, before, rtol=0, atol=0)
    with torch.no_grad():  # with the same inputs, as in the next of num_iterations
        again = toy_loss(trainer, inputs, logps=t["logps"].detach(), entropies=t["entropies"])
    assert torch.equal(loss.detach(), again)
    # tests/hostile/test_hostile_tokens.py has tokens and rows outside of the loss beside others
    t["mask"][:] = 0
    assert all(x.abs().max() == 0 for x in run(trainer, toy_loss, t))


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


@pytest.mark.parametrize("algo", sorted(trl_credit.ALGORITHMS))
def test_the_order_of_rows_does_not_matter(make_trainer, toy_loss, algo):
    trainer, t = make_trainer(algo, beta=0.0), toy()
    loss, grad = run(trainer, toy_loss, t)
    order = torch.tensor([2, 0, 3, 1])
    permuted = {name: x.detach()[order] for name, x in t.items()}
    permuted["logps"].requires_grad_()
    check_close(run(trainer, toy_loss, permuted), (loss, grad[order]), rtol=1e-13, atol=1e-15)
