"""Groups with signal where rounding, a second reward, several calls or equal prompts could mislead them."""

import pytest
import torch
from group_helpers import SMALL, by_prompt, length, observed

from trl_credit.loss import keys
from trl_credit.loss.assignment import assign_credit


def constant(completions, **kwargs):
    return [0.9] * len(completions)


@pytest.mark.parametrize("signal", ["reward", "advantage"])
def test_equal_rewards_are_no_signal_whatever_their_mean_rounds_to(trained, signal):
    rewards = torch.full((6,), 0.9)
    assert (rewards - rewards.mean()).any()  # in float32, as TRL computes it
    settings = {**SMALL, "reward_funcs": constant, "per_device_train_batch_size": 12, "num_generations": 6}
    trainer = trained(groups="replace", group_signal=signal, **{**settings, "max_steps": 1})
    assert trainer.state.log_history[0]["credit/groups/signal"] == 0.0


def test_refills_pass_over_the_prompts_of_their_batch(make_trainer):
    """Without shuffling the order of refills begins where the data does: at the prompts of the first batches."""
    trainer = make_trainer(groups="refill", shuffle_dataset=False, refill_surplus="drop", **SMALL)
    calls, sample, make = [], trainer.engine.sample, trainer.make_batch

    def spy(inputs, **kwargs):
        calls[-1].append([row["prompt"] for row in inputs][::4])
        return sample(inputs, **kwargs)

    trainer.engine.sample = spy
    trainer.make_batch = lambda inputs: calls.append([]) or make(inputs)
    trainer.train()
    assert len(calls) == 3 and all(len(of_batch) > 1 for of_batch in calls)
    for of_batch in calls:
        prompts = [prompt for call in of_batch for prompt in call]
        assert len(set(prompts)) == len(prompts)


def test_rollout_tokens_are_those_of_all_calls(make_trainer):
    chain = {"rollouts": "chain", "loss_type": "dapo", "rollouts_per_state": 2, "segmentation": "fixed_length"}
    settings = {**SMALL, **chain, "segment_length": 3, "max_steps": 1, "refill_surplus": "drop"}
    trainer = make_trainer(groups="refill", group_signal="advantage", **settings)
    written, proceed = [], trainer.engine.continue_prefixes

    def spy(prefixes, **kwargs):
        found = proceed(prefixes, **kwargs)
        written.extend(len(continuation.ids) for continuation in found)
        return found

    trainer.engine.continue_prefixes = spy
    trainer.train()
    row = trainer.state.log_history[0]
    assert row["credit/groups/calls"] > 1
    assert row["credit/rollout_tokens"] == sum(written) and row["credit/rollouts"] == len(written)


def max_reward(prompts, completions, **kwargs):
    """Whose name says nothing of how its values are pooled."""
    return by_prompt(prompts, completions)


def test_a_metric_of_several_calls_is_their_mean_whatever_its_name(make_trainer):
    settings = {**SMALL, "reward_funcs": max_reward, "max_steps": 1, "refill_surplus": "drop"}
    trainer = make_trainer(groups="refill", **settings)
    rewards, sample = [], trainer.engine.sample
    trainer.engine.sample = lambda inputs, **kwargs: rewards.append(sample(inputs, **kwargs)) or rewards[-1]
    trainer.train()
    everything = torch.cat([batch.rewards for batch in rewards])
    assert len(rewards) > 1
    assert trainer.state.log_history[0]["rewards/max_reward/mean"] == pytest.approx(everything.mean().item())
    assert trainer.state.log_history[0]["reward_max"] == everything.max().item()


def test_a_row_with_credit_keeps_its_kl_term(make_trainer):
    """Dull by what is correct, and not by the total reward."""
    both = {**SMALL, "reward_funcs": [by_prompt, length], "difficulty_reward": ["by_prompt"], "max_steps": 1}
    (batch,) = observed(make_trainer(dull_kl="drop", beta=0.1, **both))
    assert not batch[0].batch.data[keys.DULL_ROW].any() and (batch[0].advantages != 0).all()


def test_a_credit_function_sees_the_reference_of_dull_rows(make_trainer):
    """Only TRL's inputs lose it."""
    seen = []

    def credit(config, tokens):
        seen.append((tokens.ref_logp_t.clone(), tokens.logp_t.detach().clone(), tokens.ref_logp_t.requires_grad))
        return assign_credit(config, tokens)

    trainer = make_trainer(dull_kl="drop", beta=0.1, credit=credit, **{**SMALL, "max_steps": 1})
    for p in trainer.ref_model.parameters():
        p.data += 0.1
    (batch,) = observed(trainer)
    assert batch[0].batch.data[keys.DULL_ROW].sum() > 0
    for ref_logp_t, logp_t, has_graph in seen:
        assert not has_graph and ((ref_logp_t - logp_t).abs().amax(1) > 1e-4).all()
