"""What the plug-in refuses in the configuration of verl, and a verl that it does not know.

`.ci/engines.sh verl` installs verl and runs these.
"""

import importlib
from dataclasses import replace

import pytest
import torch
from toy_loss import toy

from trl_credit import STEMS, Credit


pytest.importorskip("verl", reason="needs verl: .ci/engines.sh")

from hydra.errors import InstantiationException
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import PolicyLossConfig
from verl.workers.utils import losses
from verl_losses import AGGREGATIONS, actor_of, verl_loss

from trl_credit.engines import verl as plugin


IN_A_LOSS = "grpo dapo dr_grpo p_trace s_trace grpo_lambda fipo gspo gspo_token clip_cov kl_cov".split()
NOT_THERE = [name for name in STEMS if name not in IN_A_LOSS]


class Mine:
    by_row = True

    def credit(self, config, tokens):
        return Credit(None, -tokens.logp_t)


class WithState(Mine):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class WithStates(Mine):
    needs = ("hidden",)


class OfBatch(Mine):
    def statistics(self, config, batch):
        return batch.advantage_t


class ALoss(Mine):
    carries_loss = replaces_kl = replaces_correction = True


REFUSED = {WithState: "a state in checkpoints", WithStates: "a pass of its own", OfBatch: "statistics of the whole"}


@pytest.mark.parametrize(
    "algo, knobs, said",
    [
        ("s_trace", {"trace_lamda": 0.5}, "trace_lambda"),
        ("s_trace", {"trace_lambda": 1.5}, r"trace_lambda must be in \[0, 1\]"),
        ("grpo", {"trace_lambda": 0.5}, "trace_lambda=0.5 does nothing"),
        ("s_trace", {"epsilon": 0.1}, "epsilon=0.1 does nothing in a policy loss of verl, since it is TRL's"),
        ("grpo", {"baseline": "optimal"}, "advantage estimator"),
        ("grpo", {"log_credit": 5}, "log_credit=5 does nothing"),
        ("grpo", {"groups": "refill"}, "only this package's trainers"),
        ("s_trace", {"selector": "entropy_reference"}, "the entropies of the reference"),
        ("clip_cov", {"cov_statistics": "batch"}, "cov_statistics='batch' needs the whole batch"),
        ("clip_cov", {"clip_cov_ratio": 0.5}, "clip_cov_ratio of verl's own losses does nothing.*cov_share"),
        ("grpo", {"released_code": ["spo_replay"]}, "released_code"),
        ("grpo", {"output_dir": "x"}, "output_dir=.* does nothing"),
        ("s_tracee", {}, "loss_mode='trl_credit.s_tracee'"),
        ("custom", {"credit": "no.such.function"}, "no.such"),
        *[("custom", {"credit": f"{__file__}:{x.__name__}"}, said) for x, said in REFUSED.items()],
        *[(name, {}, "advantage estimator" if name in ("ha_dw", "opo") else "only") for name in NOT_THERE],
    ],
)
def test_refused_when_the_configuration_is_built(algo, knobs, said):
    with pytest.raises(InstantiationException, match=said):
        actor_of(algo, knobs=knobs)


@pytest.mark.parametrize(
    "algo, settings, said", [("spo_chain", {}, "rollouts='chain'"), ("kl_cov", {"ppo_kl_coef": 0.9}, "ppo_kl_coef")]
)
def test_refused_with_the_plain_class_of_verl_too(algo, settings, said):
    policy_loss = PolicyLossConfig(loss_mode=f"trl_credit.{algo}", **settings)
    with pytest.raises(ValueError, match=said):
        verl_loss(replace(actor_of("grpo"), policy_loss=policy_loss), toy())


def test_a_loss_of_yours_that_replaces_a_term_of_verl():
    knobs, t = {"credit": f"{__file__}:ALoss"}, toy()
    with pytest.raises(ValueError, match="set actor.use_kl_loss=False"):
        verl_loss(actor_of("custom", knobs=knobs, use_kl_loss=True), t)
    actor = actor_of("custom", knobs=knobs, loss_agg_mode="token-mean")
    assert verl_loss(actor, t)[0].item() == pytest.approx((t["logps"] * t["mask"]).sum().item() / 23)
    x = torch.ones(4, 7)
    of_loss = {"old_log_prob": x, "log_prob": x, "advantages": x, "response_mask": x, "config": actor}
    with pytest.raises(ValueError, match="leave out algorithm.rollout_correction"):
        get_policy_loss_fn("trl_credit.custom")(**of_loss, rollout_is_weights=x)


def test_algorithm_1_of_grpo_lambda_needs_room_below_the_dual_clip():
    knobs = {"clip_form": "ratio"}
    with pytest.raises(ValueError, match="clip_ratio_c above 3.0"):
        verl_loss(actor_of("grpo_lambda", knobs=knobs, clip_ratio_high=0.5, clip_ratio_c=3.0), toy())
    t = toy()
    value, _, _ = verl_loss(actor_of("custom", knobs=knobs, loss_agg_mode="token-mean", clip_ratio_c=3.0), t)
    ratio_t = (t["logps"] - t["old"]).exp()
    loss_t = -torch.minimum(ratio_t, ratio_t.clamp(0.8, 1.2)) * t["advantages"].unsqueeze(1)
    assert value.item() == pytest.approx(AGGREGATIONS["token-mean"](loss_t, t["mask"]).item(), rel=1e-12)


def test_another_signature_of_verl_is_a_clear_error(monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(losses, "ppo_loss", lambda config, outputs, data: None)
        with pytest.raises(ImportError, match="model_output: install verl>=0.9,<0.10"):
            importlib.reload(plugin)
    assert "verl knows no algorithm of trl_credit" in caplog.text
