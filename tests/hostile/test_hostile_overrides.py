"""Scripts for TRL whose subclasses leave out what carries credit, or that name what there is not or twice."""

import functools

import pytest
import torch
import trl
from run_helpers import length_reward

from trl_credit import CreditConfig, CreditTrainer, STraceConfig, STraceTrainer
from trl_credit.rewards.guard import RewardError


refused = pytest.mark.hostile("subclasses of a trainer", "refused")


def own_loss(self, model, inputs, **kwargs):
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    return model(ids).logits.logsumexp(-1).mean()


class Mixin:
    def compute_loss(self, model, inputs, **kwargs):
        return own_loss(self, model, inputs)


class Mixed(Mixin, STraceTrainer):
    pass


class Wrapped(STraceTrainer):
    @functools.wraps(trl.GRPOTrainer._compute_loss)
    def _compute_loss(self, *args):
        return own_loss(self, *args)


class Sometimes(STraceTrainer):
    def compute_loss(self, model, inputs, **kwargs):
        called = super().compute_loss(model, inputs, **kwargs) if self.state.global_step == 0 else None
        return own_loss(self, model, inputs) if called is None else called


class Steps(STraceTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        self.accelerator.backward(loss)
        return loss.detach()


class Forgets(STraceTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = sum(p.square().sum() for p in model.parameters())
        self.accelerator.backward(loss)
        return loss.detach()


class Prepares(STraceTrainer):
    def _prepare_inputs(self, inputs):
        return self._generate_and_score_completions(inputs)


class Generates(STraceTrainer):
    def _generate_and_score_completions(self, inputs):
        return trl.GRPOTrainer._generate_and_score_completions(self, inputs)


class Logps(STraceTrainer):
    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **kwargs):
        logps = model(input_ids).logits.log_softmax(-1)[:, -logits_to_keep:].amax(-1)
        return logps, torch.zeros_like(logps), None


@refused
@pytest.mark.parametrize(
    ("kind", "label", "fix", "steps"),
    [
        (Mixed, r"Mixed\.compute_loss \(of Mixin\)", r"super\(\)\._compute_loss .*`credit` function", 0),
        (Wrapped, r"Wrapped\._compute_loss", r"super\(\)\._compute_loss .*trl\.GRPOTrainer", 0),
        (Sometimes, r"Sometimes\.compute_loss", r"super\(\)\._compute_loss", 1),
        (Steps, r"Steps\.training_step", r"super\(\)\.training_step", 0),
        (Forgets, r"Forgets\.training_step", r"super\(\)\.training_step", 0),
        (Prepares, r"Prepares\._prepare_inputs", r"super\(\)\._prepare_inputs", 0),
        (Generates, r"Generates\._generate_and_score_completions", r"super\(\)\._generate_and", 0),
        (Logps, r"Logps\._get_per_token_logps_and_entropies", r"super\(\) there", 0),
    ],
)
def test_an_override_without_super_is_named(kind, label, fix, steps, make_trainer):
    trainer = make_trainer((STraceConfig, kind), max_steps=3, beta=0.0)
    with pytest.raises((TypeError, RuntimeError), match=rf"^{label} .*call {fix}"):
        trainer.train()
    assert trainer.state.global_step == steps


@refused
def test_a_loss_that_is_set_on_the_instance_is_named(make_trainer):
    trainer = make_trainer("s_trace")
    trainer._compute_loss = functools.partial(own_loss, trainer)
    with pytest.raises(TypeError, match=r"^STraceTrainer\._compute_loss \(set on the instance\) did not call super"):
        trainer.train()


@refused
@pytest.mark.parametrize("shape", [slice(None), (slice(None), [0, 0])])
def test_rewards_of_another_shape_are_refused(shape, make_trainer):
    class Flat(CreditTrainer):
        def _calculate_rewards(self, *args):
            rewards = super()._calculate_rewards(*args)
            return rewards[:, 0] if shape == slice(None) else rewards[shape]

    with pytest.raises(RewardError, match=r"^Flat\._calculate_rewards returned .*, not \(8, 1\): \(resp"):
        make_trainer((CreditConfig, Flat)).train()


@pytest.mark.hostile("reward functions", "refused")
def test_an_error_says_which_of_two_rewards_of_one_name(make_trainer):
    def fails(completions, **columns):
        raise KeyError("x")

    fails.__name__ = "length_reward"
    with pytest.raises(RuntimeError, match="^reward function 'length_reward_2' .*raised KeyError"):
        make_trainer("base", reward_funcs=[length_reward, fails]).train()


@pytest.mark.hostile("settings", "refused")
@pytest.mark.parametrize("metric", ["eval_reward", "loss", "other_reward"])
def test_a_metric_of_no_set_is_refused_before_the_run(metric, make_trainer):
    rows = make_trainer().train_dataset.select([1, 2])
    kwargs = {"trainer_kwargs": {"eval_dataset": {"ones": rows, "the_others/x": rows}}, "eval_strategy": "epoch"}
    trainer = make_trainer("base", metric_for_best_model=metric, **kwargs)
    with pytest.raises(ValueError, match=rf"^metric_for_best_model='{metric}' .*ones, the_others/x.*eval_ones_reward"):
        trainer.train()
    assert trainer.state.global_step == 0
