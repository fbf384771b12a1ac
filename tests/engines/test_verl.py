"""The plug-in's losses through the real verl: registry, loss and gradient, updates, examples.

`.ci/engines.sh verl` installs verl and runs these.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from golden import CASES, KNOBS, differs_inside_a_row, tensors
from processes import TORCHRUN, results
from processes import run as processes_run
from scripts import ROOT
from slow_trace import slow_gains
from toy_loss import run, toy

from trl_credit import STEMS


pytest.importorskip("verl", reason="needs verl: .ci/engines.sh")

import ray
from hydra import compose, initialize_config_module
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import FSDPActorConfig
from verl_losses import AGGREGATIONS, LOSS, actor_of, verl_loss

from trl_credit.engines import verl as plugin


IN_A_LOSS = "grpo dapo dr_grpo p_trace s_trace grpo_lambda fipo gspo gspo_token clip_cov kl_cov".split()


def test_installed_it_is_registered_and_imports_nothing_of_trl():
    code = """
import logging, sys, verl
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as A, POLICY_LOSS_REGISTRY as L
print(*sorted(x[11:] for x in L if x.startswith("trl_credit.")), "|", *(x for x in A if x.startswith("trl_credit.")))
print(*({"trl", "trl_credit.config", "verl.workers.engine"} & {*sys.modules}))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    names = " ".join(sorted([*STEMS, "custom"])) + " | trl_credit.grpo trl_credit.opo trl_credit.ha_dw"
    assert said[-2:] == [names, ""]


@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("name", KNOBS)
def test_golden_loss_and_gradient(name, is_packed):
    for case in CASES:
        values = tensors(case, torch.float64)
        t = {"logps": values["logps"].requires_grad_(), "old": values["old_logps"], "ref": values["ref_logps"]}
        t |= {name: values[name] for name in ("entropies", "advantages", "mask")}
        clip = {"clip_ratio_low": case["epsilon_low"], "clip_ratio_high": case["epsilon_high"]}
        kl = {"use_kl_loss": case["beta"] != 0, "kl_loss_coef": case["beta"], "loss_agg_mode": "seq-mean-token-mean"}
        knobs = dict(KNOBS[name])
        if knobs["importance"] in ("eligible", "lambda_trace"):
            knobs["trace_lambda"] = case["gamma_lambda"]
        if "selector" in knobs:
            knobs["selective_rate"] = case["selective_rate"]
        actor = actor_of("custom", knobs={"credit": None} | knobs, **clip, **kl)
        if name == "sequence" and differs_inside_a_row(values):
            with pytest.raises(ValueError, match="sequence_token"):
                verl_loss(actor, t, is_packed=is_packed)
            continue
        value, gradient, _ = verl_loss(actor, t, is_packed=is_packed)
        expected = case["results"][name]
        # verl adds 1e-8 to the number of tokens of a row
        assert abs(value.item() - expected["loss"]) < 2e-8 * max(1.0, abs(expected["loss"]))
        expected = torch.tensor(expected["grad"], dtype=torch.float64)
        torch.testing.assert_close(gradient, expected, rtol=2e-8, atol=1e-12)


COV = {"clip_cov": {"cov_share": 1.0, "cov_range": [0.0, 9.0]}, "kl_cov": {"cov_share": 0.3}}
WEIGHTED = {"importance": "token", "loss_weight": "trace_past", "loss_weight_confidence": "sigmoid_grad"}
# by turns, and GRPO-λ's other forms; one of the rows has two turns
FORMS = [("s_trace", {"trace_unit": "turn"}), ("grpo", {"importance": "turn_token"}), ("grpo_lambda", WEIGHTED)]
FORMS += [("fipo", {"future_clip": [0.5, 2.0], "importance": "turn_token"}), ("p_trace", {"gamma": 0.5})]


@pytest.mark.parametrize("algo, knobs", [*((algo, COV.get(algo, {})) for algo in IN_A_LOSS), *FORMS])
def test_an_algorithm_gives_the_loss_of_its_trainer(make_trainer, toy_loss, algo, knobs):
    """On one batch, with TRL's own loss: value, gradient and metrics."""
    settings = {"beta": 0.1, **knobs} | ({"cov_statistics": "microbatch"} if algo in COV else {})
    unit = settings.pop("trace_unit", "token")  # which trainers without tools refuse
    trainer = make_trainer(algo, **settings)
    trainer.args.trace_unit = unit
    trainer.args.max_completion_length = trainer.max_completion_length = 16
    t = toy()
    left, (value, gradient) = verl_loss(actor_of(algo, like=trainer.args, knobs=knobs), t), run(trainer, toy_loss, t)
    assert abs(left[0] - value) < 1e-6 * abs(value) and (left[1] - gradient).abs().max() < 1e-6 * gradient.abs().max()
    logged = {name: x for name, x in left[2].items() if name.startswith("actor/credit/")}
    assert all(isinstance(x.aggregate(), float) for x in logged.values())
    trained = left[2]["actor/credit/trained_tokens_per_row"].aggregate() * len(t["mask"])
    assert 0 < trained < 23 if algo == "clip_cov" else trained == t["mask"].sum() == 23
    drift = (t["old"] - t["logps"])[t["mask"].bool()].mean().item()
    assert left[2]["actor/ppo_kl"].aggregate() == pytest.approx(drift, abs=1e-7)
    is_traced = algo in ("p_trace", "s_trace", "grpo_lambda") and knobs != WEIGHTED
    assert ("actor/credit/selected_fraction" in logged) == is_traced


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_aggregation_stays_that_of_verl(mode):
    """S-trace and GRPO by mode; GRPO equals verl's own loss to the last bit, also with its dual clip."""
    t = toy()
    own = actor_of("s_trace", loss_agg_mode=mode, clip_ratio_c=3.0)
    plain = FSDPActorConfig(strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=2, loss_agg_mode=mode)
    plain = replace(plain, loss_scale_factor=16, clip_ratio_c=1.3)
    vanilla, grpo = verl_loss(plain, t), verl_loss(actor_of("grpo", loss_agg_mode=mode, clip_ratio_c=1.3), t)
    assert vanilla[0].equal(grpo[0]) and vanilla[1].equal(grpo[1])
    assert vanilla[2]["actor/pg_clipfrac_lower"].aggregate() > 0  # tokens that only the dual clip bounds
    toy_rows = {"mask_t": t["mask"], "drift_t": (t["logps"] - t["old"]).detach()}
    toy_rows["advantage_t"] = t["advantages"].unsqueeze(1).expand_as(t["logps"])
    settings = {"uncertainty_t": t["entropies"], "decay": 0.9, "rate": 0.2}
    loss_t, m = -slow_gains(t["logps"], **settings, batch=SimpleNamespace(**toy_rows)), t["mask"].double()
    expected = AGGREGATIONS[mode](loss_t, m)
    assert verl_loss(own, t)[0].item() == pytest.approx(expected.item(), rel=1e-8)
    gradient = torch.autograd.grad(expected, t["logps"])[0]
    torch.testing.assert_close(verl_loss(own, t)[1], gradient, rtol=1e-7, atol=1e-12)


def test_masks_and_weights_of_a_custom_function(tmp_path):
    """Its settings come from verl's configuration, and a token outside of M counts in what verl divides by."""
    (tmp_path / "mine.py").write_text("""
from dataclasses import dataclass
import torch
from trl_credit import Credit
@dataclass
class Later:
    skipped: int = 1
    by_row = True
    def credit(self, config, tokens):
        kept_t = (tokens.mask_t.cumsum(-1) > self.skipped).to(tokens.mask_t.dtype)
        return Credit(tokens.logp_t - tokens.old_logp_t, tokens.advantages, mask=kept_t)
    def metrics(self, config, tokens, credit):
        numbers = (tokens.token_ids + tokens.segment_ids).float()
        drifts = {"sampled": tokens.sampling_logp_t - tokens.old_logp_t, "from_ref": tokens.logp_t - tokens.ref_logp_t}
        return {"turns": tokens.turn_ids.amax(-1).float() + 1, "ids": numbers, **drifts}
""")
    t = toy()
    t["old"] = t["old"].masked_fill(t["mask"] == 0, torch.nan)  # nothing outside of the loss is read
    actor = actor_of(
        "custom", knobs={"credit": f"{tmp_path}/mine.py:Later", "skipped": 3}, loss_agg_mode="seq-mean-token-mean"
    )
    value, gradient, metrics = verl_loss(actor, t)
    kept_t = (t["mask"].cumsum(-1) > 3) & t["mask"].bool()
    ratio_t, a = (t["logps"] - t["old"]).exp(), t["advantages"].unsqueeze(1)
    loss_t = torch.maximum(-a * ratio_t, -a * ratio_t.clamp(0.8, 1.2)).nan_to_num()
    expected = AGGREGATIONS["seq-mean-token-mean"](loss_t * kept_t, t["mask"])
    assert value.item() == pytest.approx(expected.item(), rel=1e-7)
    assert (gradient != 0)[~kept_t].sum() == 0 and (gradient != 0).any()
    assert metrics["actor/credit/kept_fraction"].aggregate() == pytest.approx((kept_t.sum() / t["mask"].sum()).item())
    assert metrics["actor/credit/turns"].aggregate() == 1.25  # one row of four has two
    assert metrics["actor/credit/sampled"].aggregate() == pytest.approx(0.25)
    from_ref = (t["logps"] - t["ref"])[t["mask"].bool()].mean().item()
    assert metrics["actor/credit/from_ref"].aggregate() == pytest.approx(from_ref, rel=1e-5)
    assert plugin._pass.get(None) is None
    ids = torch.arange(t["mask"].numel()).view_as(t["mask"])[t["mask"].bool()]
    assert metrics["actor/credit/ids"].aggregate() == pytest.approx(ids.float().mean().item())


def test_random_numbers_follow_the_batch():
    """Ranks that share a batch make the same choice, and the next micro-batch another one."""
    knobs, t = {"selector": "random", "selective_rate": 0.5}, toy()
    first, other = (actor_of("s_trace", knobs=knobs) for _ in range(2))
    one = verl_loss(first, t)[1]
    assert one.equal(verl_loss(other, t)[1]) and not one.equal(verl_loss(first, t)[1])


def test_tokens_that_verl_rejects_make_no_turns():
    t = toy()
    t["written"] = torch.ones_like(t["mask"])
    by_turn, by_response = (verl_loss(actor_of("grpo", knobs={"importance": x}), t) for x in ("turn", "sequence"))
    torch.testing.assert_close(by_turn[1], by_response[1])
    torch.testing.assert_close(by_turn[0], by_response[0])
    cut = verl_loss(actor_of("grpo", knobs={"importance": "turn"}), t | {"written": t["mask"]})
    assert not torch.allclose(cut[1], by_turn[1])


def test_without_entropies_surprise_is_used_and_said_once(caplog):
    plugin.say.cache_clear()
    t = toy()
    surprise = verl_loss(actor_of("s_trace"), t, with_entropies=False)
    said = [record.message for record in caplog.records if "surprise" in record.message]
    verl_loss(actor_of("s_trace"), t, with_entropies=False)
    assert said == [record.message for record in caplog.records if "surprise" in record.message] and len(said) == 1
    assert "calculate_entropy=True" in said[0]
    assert surprise[1].equal(verl_loss(actor_of("s_trace"), t | {"entropies": -t["old"]})[1])
    assert not surprise[1].equal(verl_loss(actor_of("s_trace"), t)[1])
    with pytest.raises(ValueError, match="calculate_entropy=True"):
        verl_loss(actor_of("s_trace", knobs={"require_entropy": True}), t, with_entropies=False)
    verl_loss(actor_of("p_trace", knobs={"require_entropy": True}), t, with_entropies=False)


@pytest.fixture(scope="module")
def updated():
    """`updated(loss_mode, processes)`: one update by verl's `TrainingWorker`."""

    @cache
    def run_worker(loss_mode, processes):
        launcher = TORCHRUN if processes == 2 else []
        return results(processes_run(*launcher, "run_verl.py", loss_mode))

    return run_worker


def test_an_update_of_verls_worker_is_the_same_on_two_processes(updated):
    (alone,), both = updated("trl_credit.s_trace", 1), updated("trl_credit.s_trace", 2)
    assert both[0]["weights"] == both[1]["weights"] == pytest.approx(alone["weights"], rel=1e-5, abs=1e-5)
    for name in ("actor/pg_loss", "actor/credit/abs_advantage", "actor/ppo_kl"):
        assert both[0]["metrics"][name] == pytest.approx(alone["metrics"][name], rel=1e-5), name
    assert alone["moved"] > 1e-2


def test_grpo_updates_a_model_as_verls_own_loss_does(updated):
    (ours,), (theirs,), (s_trace,) = (updated(x, 1) for x in ("trl_credit.grpo", "vanilla", "trl_credit.s_trace"))
    assert ours["weights"] == theirs["weights"] != s_trace["weights"]
    # verl takes the mean over its micro-batches of two rows: of 5 and 3 tokens, of 7 and 4, …
    expected = (2 / 8 + 3 / 11 + 3 / 8 + 3 / 12) / 4
    assert s_trace["metrics"]["actor/credit/selected_fraction"] == pytest.approx(expected)


def test_what_differs_from_the_preset_is_said_once(caplog):
    plugin.say.cache_clear()
    settings = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    for _ in range(2):
        verl_loss(actor_of("gspo", **settings), toy())
    said = "clip_ratio_low=0.2 (0.0003), clip_ratio_high=0.2 (0.0004), clip_ratio_c=3.0 (None), loss_agg_mode="
    assert [said in record.message for record in caplog.records if "gspo" in record.message] == [True]


@pytest.fixture
def composed(tmp_path):
    """The configuration of verl that the command in examples/verl asks for, with further settings."""
    (tmp_path / "python3").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python3").chmod(0o755)

    def compose_command(*settings):
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        command = ["bash", ROOT / "examples" / "verl" / "gsm8k_s_trace.sh", *settings]
        words = subprocess.run(command, capture_output=True, text=True, env=path, check=True).stdout.splitlines()
        assert words[:2] == ["-m", "verl.trainer.main_ppo"]
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("ppo_trainer", overrides=words[2:])

    return compose_command


def test_the_example_has_the_setting_of_s_trace(composed, caplog):
    plugin.say.cache_clear()
    config = composed()
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert actor.calculate_entropy and actor.policy_loss.knobs == {"trace_lambda": 0.9}
    verl_loss(actor, toy())
    assert [record.message.partition("(in brackets): ")[2] for record in caplog.records] == ["clip_ratio_c=3.0 (None)."]
    with pytest.raises(InstantiationException, match=r"trace_lambda must be in \[0, 1\]"):
        omega_conf_to_dataclass(composed("actor_rollout_ref.actor.policy_loss.trace_lambda=2").actor_rollout_ref.actor)


def test_the_example_of_a_custom_function(composed):
    example = ROOT / "examples" / "verl" / "own_credit.py"
    said = example.read_text().replace("$actor", "actor_rollout_ref.actor").replace("examples/", f"{ROOT}/examples/")
    settings = re.findall(r"\S*policy_loss\.\S+=\S+", said.partition("actor=")[2].partition("The same file")[0])
    actor = omega_conf_to_dataclass(composed(*settings).actor_rollout_ref.actor)
    t = toy()
    value, _, metrics = verl_loss(actor, t)
    m = t["mask"].double()
    a = t["advantages"].unsqueeze(1) * (0.25 + 0.75 * m.cumsum(-1) / m.sum(-1, keepdim=True))
    ratio_t = (t["logps"] - t["old"]).exp()
    loss_t = torch.maximum(-a * ratio_t, -a * ratio_t.clamp(0.8, 1.2))
    k3_t = (t["ref"] - t["logps"]).exp() - (t["ref"] - t["logps"]) - 1
    expected = AGGREGATIONS["seq-mean-token-mean"](loss_t + 0.001 * k3_t, m)
    assert len(settings) == 3 and value.item() == pytest.approx(expected.item(), rel=1e-7)
    size = (a.abs() * m).sum().item() / 23
    assert metrics["actor/credit/abs_credit"].aggregate() == pytest.approx(size)


def test_the_page_has_the_setting_of_each_algorithm():
    page = (ROOT / "docs" / "verl.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|[^|]*\|$", page, re.MULTILINE))
    assert [*rows] == [*IN_A_LOSS, "custom"]
    for algo, row in rows.items():
        setting = plugin.settings_of(plugin.loss_config(algo, {}))
        assert setting.pop("clip_ratio_c") == (10.0 if algo == "fipo" else None)
        assert row == " | ".join(f"`{x}`" if isinstance(x, str) else str(x) for x in setting.values())


def test_a_worker_of_ray_has_it_too():
    def of_worker(policy_loss):
        from verl.trainer.ppo.core_algos import get_policy_loss_fn

        return get_policy_loss_fn(policy_loss.loss_mode).args, policy_loss

    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False)
    try:
        policy_loss = instantiate(LOSS | {"loss_mode": "trl_credit.s_trace", "trace_lambda": 0.5})
        name, back = ray.get(ray.remote(of_worker).remote(policy_loss))
    finally:
        ray.shutdown()
    assert name == ("s_trace",) and back.knobs == {"trace_lambda": 0.5}
