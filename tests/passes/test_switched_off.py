"""With the subpackage `passes` switched off everything still trains, and every pass is TRL's own."""

import pytest
import torch

from trl_credit.passes import reduced
from trl_credit.trainer import credit_trainer


class PlainPasses:
    """TRL's own, and the interface that the trainer calls."""

    def __init__(self, forward):
        self.run = lambda model, args, kwargs, loss_pass: forward(model, *args, **kwargs)

    def arrange(self, batches):
        return batches

    def skips(self, batch, *, is_logged):
        return False

    def close_step(self):
        return None


CASES = {
    "grpo": ("base", {}),
    "s_trace": ("s_trace", {}),
    "chain": ("spo_chain", {"rollouts_per_state": 2}),
    "tree": ("spo_tree", {"tree_rows": "nodes"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_it_trains_the_same_with_the_room_switched_off(case, make_trainer, monkeypatch, tmp_path):
    algo, settings = CASES[case]
    settings = settings | {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "max_steps": 2}
    found = {}
    for name in ("on", "off"):
        with monkeypatch.context() as patch:
            if name == "off":
                patch.setattr(credit_trainer, "ReducedPasses", lambda trainer, forward: PlainPasses(forward))
            trainer = make_trainer(algo, **settings, optim="sgd", output_dir=str(tmp_path / name))
        assert isinstance(trainer._passes, PlainPasses if name == "off" else reduced.ReducedPasses)
        trainer.train()
        assert trainer.state.global_step == 2
        found[name] = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    torch.testing.assert_close(found["on"], found["off"], rtol=1e-4, atol=1e-6)


def test_knobs_that_are_off_leave_trls_passes(make_trainer):
    off = {"length_sort": "off", "shared_prefix": "off", "skip_zero_advantage": "off"}
    passes = make_trainer(**off)._passes
    assert not passes.reshapes and not passes.skipping.applies
