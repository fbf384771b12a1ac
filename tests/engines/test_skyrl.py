"""The example for SkyRL through the real SkyRL: registry, loss and gradient against a slow closed form.

`.ci/engines.sh skyrl` installs it and runs these.
"""

import sys
from pathlib import Path

import pytest
import torch
from slow_trace import assert_same, slow_gains, toy_batch


pytest.importorskip("skyrl", reason="needs SkyRL: .ci/engines.sh")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "engines"))

from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from skyrl_s_trace import STraceAlgorithm


FLOAT32 = {"rtol": 1e-6, "atol": 1e-8}  # SkyRL exponentiates in it


def run(loss, *, correction=None, **settings):
    batch = toy_batch()
    old_t = -torch.rand(4, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logp_t = (old_t + batch.drift_t).requires_grad_()
    config = STraceAlgorithm(policy_loss_type=loss, **settings)
    config.off_policy_correction.tis_ratio_type = correction
    read = logp_t, old_t, batch.advantage_t, config, batch.mask_t.long(), old_t - batch.sampler_t
    return PolicyLossRegistry.get(loss)(*read), logp_t, old_t, batch


@pytest.mark.parametrize("correction", [None, "token"])
def test_loss_and_gradient_are_the_closed_form(correction):
    settings = {"trace_lambda": 0.8, "selective_rate": 0.4}
    (loss, metrics), logp_t, old_t, batch = run("s_trace", correction=correction, **settings)
    gain_t = slow_gains(logp_t, uncertainty_t=-old_t, decay=0.8, rate=0.4, batch=batch)
    gain_t = gain_t * (batch.sampler_weight_t if correction else 1.0)
    assert 0 < metrics["clip_ratio"] < 1
    assert_same(loss, -gain_t.sum(), logp_t, logp_t, **FLOAT32)


@pytest.mark.parametrize("clipped_loss", ["regular", "dual_clip"])
def test_without_a_trace_it_is_the_loss_of_skyrl(clipped_loss):
    settings = {"trace_lambda": 0.0, "clipped_loss": clipped_loss, "clip_ratio_c": 1.3, "correction": "sequence"}
    (ours, metrics), logp_t, *_ = run("s_trace", **settings)
    (theirs, their_metrics), their_logp_t, *_ = run(clipped_loss, **settings)
    assert metrics == pytest.approx(their_metrics)
    assert_same(ours, theirs, logp_t, their_logp_t, **FLOAT32)
