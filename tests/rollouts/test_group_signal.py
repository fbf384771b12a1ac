"""Which groups have signal, for single responses, chains and trees; their KL term; and what is refused."""

import pytest
import torch
from datasets import Dataset, IterableDataset
from group_helpers import SMALL, by_prompt, length, observed
from segment_helpers import plans

from trl_credit.loss import keys
from trl_credit.loss.assignment import assign_credit
from trl_credit.loss.batch import loss_mask


def test_correct_is_what_difficulty_reward_calls_so(trained):
    """A second reward that differs everywhere makes no signal, unless the total is asked for."""
    both = {**SMALL, "reward_funcs": [by_prompt, length], "max_steps": 2}
    by = {}
    for signal, more in (("correct", {"difficulty_reward": ["by_prompt"]}), ("reward", {})):
        trainer = trained(groups="replace", group_signal=signal, overwrite_output_dir=True, **both, **more)
        by[signal] = [row["credit/groups/signal"] for row in trainer.state.log_history if "reward" in row]
    assert max(by["correct"]) < 1.0 and by["reward"] == [1.0, 1.0]


def constant(completions, **kwargs):
    return [0.9] * len(completions)


@pytest.mark.parametrize("signal", ["reward", "advantage"])
def test_equal_rewards_are_no_signal_whatever_their_mean_rounds_to(trained, signal):
    rewards = torch.full((6,), 0.9)
    assert (rewards - rewards.mean()).any()  # in float32, as TRL computes it
    settings = {**SMALL, "reward_funcs": constant, "per_device_train_batch_size": 12, "num_generations": 6}
    trainer = trained(groups="replace", group_signal=signal, **{**settings, "max_steps": 1})
    assert trainer.state.log_history[0]["credit/groups/signal"] == 0.0


@pytest.mark.parametrize("signal", ["correct", "reward"])
def test_refill_counts_truncated_responses_as_dapo_does(make_trainer, signal):
    """0 < number correct < G over all responses, also of those that `mask_truncated_completions` hides."""

    def ended(completions, completion_ids, **kwargs):
        return [float(len(ids) < 8) for ids in completion_ids]

    masked = {"mask_truncated_completions": True, "group_signal": signal, "reward_funcs": ended, "max_steps": 1}
    trainer = make_trainer("dapo", groups="refill", **{**SMALL, **masked})
    sampled, sample = [], trainer.engine.sample

    def spy(inputs, **kwargs):
        batch = sample(inputs, **kwargs)
        sampled.extend(zip(batch.rewards.view(-1, 4).tolist(), batch.mask_t.any(-1).view(-1, 4).tolist(), strict=True))
        return batch

    trainer.engine.sample = spy
    ((batch, _, _),) = observed(trainer)
    dapo = [rewards for rewards, _ in sampled if 0 < sum(rewards) < 4]
    assert batch.batch.rewards.view(-1, 4).tolist() == dapo[: len(batch.examples) // 4]
    # all wrong responses are truncated, so none is in the loss, and those that are have an advantage
    assert not any(reward == 0 and inside for group in sampled for reward, inside in zip(*group, strict=True))
    assert (batch.advantages[batch.batch.mask_t.any(-1)] > 0).all() and len(dapo) < len(sampled)


def test_difficulty_weights_see_what_was_sampled(make_trainer):
    """The belief moves by the accuracy of all sampled responses; p̂ of a row is that of its own group."""
    trainer = make_trainer("ha_dw", groups="refill", **{**SMALL, "max_steps": 2})
    sampled, sample, make = [], trainer.engine.sample, trainer.make_batch

    def spy(inputs, **kwargs):
        batch = sample(inputs, **kwargs)
        sampled[-1].extend(batch.rewards.tolist())
        return batch

    def count(inputs):
        sampled.append([])
        batch = make(inputs)
        mean = batch.batch.rewards.view(-1, 4).mean(1).repeat_interleave(4)
        torch.testing.assert_close(batch.p_hat, mean)
        assert batch.accuracy == pytest.approx(sum(sampled[-1]) / len(sampled[-1]))
        assert batch.accuracy < batch.p_hat.mean() - 0.05
        return batch

    trainer.engine.sample, trainer.make_batch = spy, count
    trainer.train()
    assert trainer.difficulty.state_dict()["accuracies"] == pytest.approx([sum(x) / len(x) for x in sampled])


CHAIN = {"rollouts": "chain", "loss_type": "dapo", "rollouts_per_state": 2}
CHAIN |= {"segmentation": "fixed_length", "segment_length": 3, "max_steps": 2}


@pytest.mark.parametrize("signal", ["correct", "advantage"])
def test_continuations_are_paid_for_groups_with_signal(make_trainer, signal):
    trainer = make_trainer(groups="refill", group_signal=signal, **{**SMALL, **CHAIN})
    prompts, written, proceed = [], [], trainer.engine.continue_prefixes

    def spy(prefixes, **kwargs):
        prompts.extend(trainer.tokenizer.decode(prefix[:4]) for prefix in prefixes)
        continuations = proceed(prefixes, **kwargs)
        written.extend(len(continuation.ids) for continuation in continuations)
        return continuations

    trainer.engine.continue_prefixes = spy
    seen = observed(trainer)
    without = [prompt for prompt in prompts if int(prompt[0]) % 2 == 0]
    assert prompts and (not without if signal == "correct" else without)
    logs = trainer.state.log_history[:2]
    assert sum(row["credit/groups/calls"] for row in logs) > 2
    assert sum(row["credit/rollout_tokens"] for row in logs) == sum(written)
    assert sum(row["credit/rollouts"] for row in logs) == len(written)
    for batch, data, _ in seen:
        ids, inside = data[keys.SEGMENT_IDS], loss_mask(data).bool()
        assert batch.advantages.shape == data[keys.COMPLETION_IDS].shape == ids.shape == batch.value_t.shape
        assert bool(((ids >= 0) == inside).all())
        grouped = ((batch.advantages != 0) & inside).any(-1).view(-1, 4).any(-1)
        assert grouped.all() if signal == "advantage" else all(int(x["prompt"][0]) % 2 for x in batch.examples)
        # the advantages of a response sum to the difference of its last value and its first
        for a, s, v, end in zip(batch.advantages, ids, batch.value_t, batch.final_value, strict=True):
            starts = [s.tolist().index(k) for k in range(int(s.max()) + 1)]
            if starts:
                torch.testing.assert_close(a[starts].sum(), end - v[starts[0]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("signal", ["correct", "advantage"])
def test_further_trees_are_grown_until_enough_have_signal(make_trainer, signal):
    settings = {**SMALL, "rollouts": "tree", "loss_type": "dapo", "max_steps": 2}
    trainer = make_trainer(groups="refill", group_signal=signal, **settings)
    planned, shares = plans(trainer), []
    trainer.train()
    for one in planned:
        useful = [tree for tree in one.trees if any(node.advantage for node in tree.root.walk())]
        assert len(useful) >= 4 < len(one.trees) and len(one.logged) == 16
        assert len({row.question for row in one.drawn}) >= 4
        shares.append(len(useful) / len(one.trees))
    log = trainer.state.log_history[0]
    assert log["credit/groups/calls"] > 1 and log["credit/groups/signal"] == pytest.approx(shares[0])


def test_the_kl_term_of_rows_without_credit(make_trainer):
    """A row with credit by another reward keeps it. A credit function sees the reference: only TRL's inputs lose it."""
    seen = []

    def credit(config, tokens):
        seen.append((tokens.ref_logp_t.clone(), tokens.logp_t.detach().clone(), tokens.ref_logp_t.requires_grad))
        return assign_credit(config, tokens)

    settings = {**SMALL, "dull_kl": "drop", "beta": 0.1, "max_steps": 1}
    trainer = make_trainer(credit=credit, **settings)
    for p in trainer.ref_model.parameters():
        p.data += 0.1
    ((batch, _, _),) = observed(trainer)
    assert batch.batch.data[keys.ZERO_VARIANCE_ROW].sum() > 0
    for ref_logp_t, logp_t, has_graph in seen:
        assert not has_graph and ((ref_logp_t - logp_t).abs().amax(1) > 1e-4).all()
    both = {"reward_funcs": [by_prompt, length], "difficulty_reward": ["by_prompt"], "overwrite_output_dir": True}
    ((batch, _, _),) = observed(make_trainer(**{**settings, **both}))
    assert not batch.batch.data[keys.ZERO_VARIANCE_ROW].any() and (batch.advantages != 0).all()


def test_refusals(make_trainer):
    with pytest.raises(ValueError, match="^difficulty_reward=None: it is not clear which"):
        make_trainer(groups="refill", reward_funcs=[by_prompt, length])
    stream = IterableDataset.from_generator(lambda: iter([{"prompt": "1+1=", "answer": "2"}] * 64))
    for name, value in (("groups", "refill"), ("prompt_sampler", "difficulty")):
        with pytest.raises(ValueError, match=f"^{name}='{value}' .* stream"):
            make_trainer(trainer_kwargs={"train_dataset": stream}, **{name: value})
    images = Dataset.from_dict({"prompt": ["1+1="] * 8, "image": ["x"] * 8})
    with pytest.raises(ValueError, match="^groups='replace' .* images"):
        make_trainer(groups="replace", trainer_kwargs={"train_dataset": images}).train()
