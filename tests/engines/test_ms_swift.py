"""The example for ms-swift through the real trainer: registry, loss and gradient against a slow closed form.

`.ci/engines.sh ms_swift` installs it and runs these.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from slow_trace import assert_same, slow_gains, toy_batch


pytest.importorskip("swift", reason="needs ms-swift: .ci/engines.sh")

from swift.rl_core.data import GRPOBatch
from swift.rlhf_trainers import GRPOTrainer
from swift.trainers import TrainerFactory
from swift.utils.utils import import_external_file


# as --external_plugins does
EXAMPLE = import_external_file(str(Path(__file__).parents[2] / "examples" / "engines" / "ms_swift_s_trace.py"))
UNSET = """_has_teacher chord_sft_iterator compute_entropy disable_rollout_importance_sampling dynamic_num_samples
    kl_in_reward log_rollout_offpolicy_metrics off_policy_sequence_mask_delta overlong_filter""".split()
SET = {"beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.2, "importance_sampling_level": "token", "loss_type": "grpo"}
SET |= {"model_kwarg_keys": (), "rollout_importance_sampling_threshold": 2.0, "sdar_loss_coef": 0.0, "temperature": 1.0}
SET |= {"max_completion_length": 9, "tau_pos": 1.0, "tau_neg": 1.05, "model": SimpleNamespace(training=True)}
SET |= {"template": SimpleNamespace(padding_free=False, sequence_parallel_size=1)}
SET |= {"args": SimpleNamespace(delta=None, per_device_train_batch_size=4, report_to=[])}
SET |= {"accelerator": SimpleNamespace(is_main_process=True, gather_for_metrics=lambda x: x)}


def run(made, *, correction=None, **settings):
    """The loss of a trainer without its set-up, whose model returns given logits; prompts have two tokens."""
    t, draw = toy_batch(), torch.Generator().manual_seed(1)
    logits = torch.randn(4, 11, 13, generator=draw, dtype=torch.float64).requires_grad_()
    ids, output = torch.randint(13, (4, 11), generator=draw), SimpleNamespace(logits=logits * 1.0)
    every_t = logits[:, 1:-1].log_softmax(-1)
    t.logp_t, t.entropy_t = every_t.gather(-1, ids[:, 2:, None])[..., 0], -(every_t.exp() * every_t).sum(-1)
    old_t, rows = t.logp_t.detach() - t.drift_t, torch.zeros(4, dtype=torch.bool)
    batch = GRPOBatch(t.mask_t, rows, rows, old_t, None, old_t - t.sampler_t, None, t.advantage_t, None, 9)
    trainer = object.__new__(made)
    vars(trainer).update(dict.fromkeys(UNSET) | SET | settings, rollout_importance_sampling_mode=correction)
    loss, _ = trainer._compute_loss_and_metrics(lambda **_: output, {"input_ids": ids}, batch)
    assert batch.old_per_token_logps is old_t  # a second iteration reads it
    return loss, logits, t


def test_the_factory_finds_the_trainer():
    assert TrainerFactory.get_trainer_cls(SimpleNamespace(rlhf_type="grpo")) is EXAMPLE.STraceTrainer


@pytest.mark.parametrize("correction", [None, "token_truncate"])
def test_loss_and_gradient_are_the_closed_form(correction):
    loss, logits, t = run(EXAMPLE.STraceTrainer, correction=correction, trace_lambda=0.8, selective_rate=0.4)
    gain_t = slow_gains(t.logp_t, uncertainty_t=t.entropy_t, decay=0.8, rate=0.4, batch=t)
    gain_t = gain_t * (t.sampler_weight_t if correction else 1.0)
    assert_same(loss, -(gain_t.sum(-1) / t.mask_t.sum(-1)).mean(), logits, logits)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "sapo"])
def test_without_a_trace_it_is_the_loss_of_ms_swift(loss_type):
    ours, logits, _ = run(EXAMPLE.STraceTrainer, loss_type=loss_type, trace_lambda=0.0)
    theirs, their_logits, _ = run(GRPOTrainer, loss_type=loss_type)
    assert_same(ours, theirs, logits, their_logits)
