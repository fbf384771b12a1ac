"""Credit for a clipped loss that knows nothing of TRL, against TRL's own loss."""

import pytest
import torch
from toy_loss import check_loss, run, toy

from trl_credit.config import KNOBS
from trl_credit.engines.clipped_loss import IN_LOSS, ON_BATCH, ClippedLoss, engine_config
from trl_credit.presets import PRESETS


def test_knobs_of_engines_are_knobs():
    assert IN_LOSS | ON_BATCH <= {*KNOBS} and not IN_LOSS & ON_BATCH


def test_presets_have_their_settings_without_a_run(tmp_path):
    """Fields are those of the trainer's configuration, and no folder or process group is made."""
    for algo, preset in PRESETS.items():
        acting = {*KNOBS}
        made = engine_config(algo, {}, acting=acting, where="a test")
        whole = preset.config(output_dir=str(tmp_path), report_to="none")
        assert isinstance(made, preset.config)
        assert [name for name in KNOBS if getattr(made, name) != getattr(whole, name)] == []


@pytest.mark.parametrize("algo", ["s_trace", "grpo_lambda", "gspo", "kl_cov"])
def test_its_clipped_loss_is_that_of_trl(make_trainer, toy_loss, algo):
    knobs = {"cov_statistics": "microbatch", "cov_share": 0.3} if algo == "kl_cov" else {}
    trainer = make_trainer(algo, loss_type="dapo", beta=0.0, **knobs)
    t = toy()
    loss = ClippedLoss(engine_config(algo, knobs, acting=IN_LOSS, where="a test"))
    tensors = {"logp_t": t["logps"], "old_logp_t": t["old"], "entropy_t": t["entropies"]}
    weight_t, a, sums = loss(**tensors, advantages=t["advantages"], mask_t=t["mask"])
    ratio_t, (low, high) = weight_t.exp(), loss.config.clip_range
    expected = -torch.minimum(ratio_t * a, ratio_t.clamp(low, high) * a).sum() / t["mask"].sum()
    check_loss(run(trainer, toy_loss, t), expected, t["logps"])
    assert sums["trained_tokens_per_row"] == (23, 4)
