"""Which groups have signal, for single responses, chains and trees; their KL term; and what is refused."""

import pytest
import torch
from datasets import Dataset, IterableDataset
from group_helpers import SMALL, by_prompt, length, observed
from passes_helpers import Watch
from segment_helpers import plans
from transformers import AutoModelForCausalLM
from worker import kept

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


@pytest.mark.parametrize("signal", ["reward", "advantage"])
def test_equal_rewards_are_no_signal_whatever_their_mean_rounds_to(trained, signal):
    rewards = torch.full((6,), 0.9)
    assert (rewards - rewards.mean()).any()  # in float32, as TRL computes it
    settings = {**SMALL, "per_device_train_batch_size": 12, "num_generations": 6}
    settings["reward_funcs"] = lambda completions, **kwargs: [0.9] * len(completions)
    trainer = trained(groups="replace", group_signal=signal, **{**settings, "max_steps": 1})
    assert trainer.state.log_history[0]["credit/groups/signal"] == 0.0


@pytest.mark.parametrize("signal", ["correct", "reward"])
def test_refill_counts_truncated_responses_as_dapo_does(make_trainer, signal):
    """0 < number correct < G over all responses, also of those that `mask_truncated_completions` hides."""

    def ended(completions, completion_ids, **kwargs):
        return [float(len(ids) < 8) for ids in completion_ids]

    masked = {"mask_truncated_completions": True, "group_signal": signal, "reward_funcs": ended, "max_steps": 1}
    trainer = make_trainer("dapo", groups="refill", **{**SMALL, **masked})
    sampled = kept(trainer.engine, "sample")
    ((batch, _, _),) = observed(trainer)
    rewards, inside = (torch.cat(x) for x in zip(*((s.rewards, s.mask_t.any(-1)) for s in sampled), strict=True))
    groups = rewards.view(-1, 4).tolist()
    dapo = [group for group in groups if 0 < sum(group) < 4]
    assert batch.batch.rewards.view(-1, 4).tolist() == dapo[: len(batch.examples) // 4]
    # all wrong responses are truncated, so none is in the loss, and those that are have an advantage
    assert not inside[rewards == 0].any()
    assert (batch.advantages[batch.batch.mask_t.any(-1)] > 0).all() and len(dapo) < len(groups)


def test_difficulty_weights_see_what_was_sampled(make_trainer):
    """The belief moves by the accuracy of all sampled responses; p̂ of a row is that of its own group."""
    trainer = make_trainer("ha_dw", groups="refill", **{**SMALL, "max_steps": 2})
    sampled, ends, make, means = kept(trainer.engine, "sample"), [0], trainer.make_batch, []

    def count(inputs):
        batch = make(inputs)
        mean = batch.batch.rewards.view(-1, 4).mean(1).repeat_interleave(4)
        torch.testing.assert_close(batch.p_hat, mean)
        means.append(torch.cat([x.rewards for x in sampled[ends[-1] :]]).mean().item())
        assert batch.accuracy == pytest.approx(means[-1]) and batch.accuracy < batch.p_hat.mean() - 0.05
        ends.append(len(sampled))
        return batch

    trainer.make_batch = count
    trainer.train()
    assert trainer.difficulty.state_dict()["accuracies"] == pytest.approx(means)


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


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "cispo"])
def test_the_kl_term_of_groups_without_signal_is_dropped_and_nothing_else(make_trainer, tiny_model, loss_type):
    """Gone is the gradient that only the rows with zero variance had. TRL's default multiplies the KL term by the
    ratio."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    settings = {**SMALL, "beta": 0.5, "loss_type": loss_type, "shared_prefix": "off", "max_grad_norm": 0.0}
    by_kl = {}
    for kl in ("keep", "drop"):
        trainer = make_trainer(dull_kl=kl, **settings | {"max_steps": 1}, overwrite_output_dir=True)
        draw = torch.Generator().manual_seed(0)
        for p in trainer.ref_model.parameters():  # one that differs, or all KL terms are 0
            p.data += 0.1 * torch.randn(p.shape, generator=draw)
        watch = Watch(trainer)
        ((batch, data, _),) = observed(trainer)
        (by_kl[kl],) = watch.gradients
    zero_variance = batch.batch.data[keys.ZERO_VARIANCE_ROW]
    groups = batch.batch.rewards.view(-1, 4)
    assert torch.equal(zero_variance, (groups.amax(1) == groups.amin(1)).repeat_interleave(4))
    even = [int(example["prompt"][0]) % 2 == 0 for example in batch.examples]
    assert zero_variance[even].all() and 0 < zero_variance.sum() < 16
    # β k3 of the rows with zero variance, divided as the loss divides
    model.train()
    ids = torch.cat([data[keys.PROMPT_IDS], data[keys.COMPLETION_IDS]], 1)
    attention = torch.cat([data[keys.PROMPT_MASK], data[keys.COMPLETION_MASK]], 1)
    width, mask_t = data[keys.COMPLETION_IDS].size(1), data[keys.COMPLETION_MASK]
    logits = model(input_ids=ids, attention_mask=attention).logits[:, -width - 1 : -1]
    logp_t = logits.log_softmax(-1).gather(2, data[keys.COMPLETION_IDS].unsqueeze(2)).squeeze(2)
    difference = data[keys.REF_LOGPS] - logp_t
    kl_t = (difference.exp() - difference - 1) * (logp_t - logp_t.detach()).exp() * mask_t * zero_variance.unsqueeze(1)
    by = {"dapo": mask_t.sum(), "cispo": mask_t.sum(), "grpo": 16 * mask_t.sum(1, keepdim=True), "dr_grpo": 16 * 8}
    (0.5 * (kl_t / by[loss_type]).sum()).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(by_kl["keep"][name] - by_kl["drop"][name], p.grad, atol=2e-6, rtol=1e-3)


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
