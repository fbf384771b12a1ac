"""Scripts for TRL whose subclasses leave out what carries credit, or that name what there is not or twice."""

import pytest
import torch
import trl

from trl_credit import CreditConfig, CreditTrainer, STraceConfig, STraceTrainer
from trl_credit.rewards.guard import RewardError


pytestmark = pytest.mark.hostile("subclasses of a trainer", "refused")


def own_loss(self, model, inputs, **kwargs):
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    return model(ids).logits.logsumexp(-1).mean()


class Mixin:
    def compute_loss(self, model, inputs, **kwargs):
        return own_loss(self, model, inputs)


class Mixed(Mixin, STraceTrainer):
    pass


class Steps(STraceTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        self.accelerator.backward(loss)
        return loss.detach()


class Generates(STraceTrainer):
    def _generate_and_score_completions(self, inputs):
        return trl.GRPOTrainer._generate_and_score_completions(self, inputs)


class Logps(STraceTrainer):
    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **kwargs):
        logps = model(input_ids).logits.log_softmax(-1)[:, -logits_to_keep:].amax(-1)
        return logps, torch.zeros_like(logps), None


LABELS = [
    (Mixed, r"Mixed\.compute_loss \(of Mixin\)"),
    (Steps, r"Steps\.training_step"),
    (Generates, r"Generates\._generate_and_score_completions"),
    (Logps, r"Logps\._get_per_token_logps_and_entropies"),
]


@pytest.mark.parametrize(("kind", "label"), LABELS)
def test_an_override_without_super_is_named(kind, label, make_trainer):
    trainer = make_trainer((STraceConfig, kind), max_steps=3, beta=0.0)
    with pytest.raises((TypeError, RuntimeError), match=rf"^{label} .*call super\(\)"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("shape", [slice(None), (slice(None), [0, 0])])
def test_rewards_of_another_shape_are_refused(shape, make_trainer):
    class Flat(CreditTrainer):
        def _calculate_rewards(self, *args):
            rewards = super()._calculate_rewards(*args)
            return rewards[:, 0] if shape == slice(None) else rewards[shape]

    with pytest.raises(RewardError, match=r"^Flat\._calculate_rewards returned .*, not \(8, 1\): \(resp"):
        make_trainer((CreditConfig, Flat)).train()
