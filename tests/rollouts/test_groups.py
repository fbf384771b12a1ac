"""Batches whose groups have signal, through the real trainer: what their rows hold is computed again by other means."""

import copy
import random
from collections import Counter

import pytest
import torch
from group_helpers import SMALL, by_prompt, length, observed
from transformers import AutoModelForCausalLM

from trl_credit.loss import keys
from trl_credit.loss.batch import loss_mask, unpadded
from trl_credit.rollouts.group_join import Place
from trl_credit.rollouts.groups import WAITED, fill_batch


def model_with(path, weights):
    model = AutoModelForCausalLM.from_pretrained(path)
    model.load_state_dict(weights)
    return model


def logps_of(model, prompt_ids, ids, temperature=1.0):
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt_ids, *ids]])).logits[0, len(prompt_ids) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1)


def check_batch(trainer, path, made, data, weights, *, before=None, scale="group"):
    """Recomputes what a batch holds, from its token ids. `before`: the weights of the batch before, for waiting groups.
    Returns how many of its groups have signal."""
    tokenizer, size = trainer.tokenizer, 4
    prompts = unpadded(data[keys.PROMPT_IDS], data[keys.PROMPT_MASK])
    responses = unpadded(data[keys.COMPLETION_IDS], data[keys.COMPLETION_MASK])
    texts = tokenizer.batch_decode(prompts), tokenizer.batch_decode(responses, skip_special_tokens=True)
    assert [example["prompt"] for example in made.examples] == texts[0]
    rewards = torch.tensor(by_prompt(*texts))
    torch.testing.assert_close(made.batch.rewards, rewards)
    torch.testing.assert_close(made.batch.rewards_per_func[:, 0], rewards)
    grouped = rewards.view(-1, size)
    assert all(len(set(texts[0][g : g + size])) == 1 for g in range(0, len(prompts), size))
    std = grouped.std(1, keepdim=True) if scale == "group" else rewards.std()
    expected = ((grouped - grouped.mean(1, keepdim=True)) / (std + 1e-4)).flatten()
    torch.testing.assert_close(data[keys.ADVANTAGES], expected, atol=1e-5, rtol=1e-4)
    assert int(data[keys.NUM_ITEMS]) == sum(map(len, responses)) == int(loss_mask(data).sum())
    sources = {keys.OLD_LOGPS: [weights, before], keys.REF_LOGPS: [getattr(trainer, "first_weights", None)]}
    models = {key: [model_with(path, w) for w in of if w is not None] for key, of in sources.items() if key in data}
    for row, (prompt, ids) in enumerate(zip(prompts, responses, strict=True)):
        for key, of in models.items():
            found = data[key][row, : len(ids)]
            errors = [(found - logps_of(model, prompt, ids)).abs().max().item() for model in of]
            assert min(errors) < 1e-5, (key, row, errors)
    return int((grouped.amax(1) > grouped.amin(1)).sum())


@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize("more", [{}, {"num_iterations": 2, "beta": 0.1, "max_steps": 6}], ids=["aligned", "pi_old"])
@pytest.mark.parametrize("groups", ["replace", "refill"])
def test_what_a_batch_holds(make_trainer, tiny_model, groups, more, scale):
    trainer = make_trainer(groups=groups, scale_rewards=scale, shuffle_dataset=False, **{**SMALL, **more})
    trainer.first_weights = copy.deepcopy(trainer.model.state_dict())
    seen, before = observed(trainer), None
    assert len(seen) == 3
    for made, data, weights in seen:
        useful = check_batch(trainer, tiny_model, made, data, weights, before=before, scale=scale)
        before = weights
        prompts = [example["prompt"] for example in made.examples][::4]
        if groups == "refill":
            assert useful == 4
        else:
            assert useful in (0, 1, 4) and max(Counter(prompts).values()) <= 3
    log = [row for row in trainer.state.log_history if "reward" in row]
    calls = [row["credit/groups/calls"] for row in log if "credit/groups/calls" in row]
    assert calls == [1.0] * 3 if groups == "replace" else max(calls) > 1
    shown = trainer._logs
    assert [*shown["prompt"]] == [example["prompt"] for example in made.examples]
    assert [*shown["rewards"]["by_prompt"]] == pytest.approx(made.batch.rewards.tolist())
    torch.testing.assert_close(torch.tensor([*shown["advantages"]]), made.batch.advantages)


def test_groups_that_wait_keep_the_policy_that_sampled_them(make_trainer, tiny_model):
    trainer = make_trainer(groups="refill", learning_rate=1e-2, **{**SMALL, "max_steps": 8})
    seen, before, waited = observed(trainer), None, 0
    for made, data, weights in seen:
        assert check_batch(trainer, tiny_model, made, data, weights, before=before) == 4
        if keys.OLD_LOGPS in data and before is not None:
            rows = zip(*(unpadded(data[i], data[m]) for i, m in PAIRS), data[keys.OLD_LOGPS], strict=True)
            model = model_with(tiny_model, weights)
            moved = [(logps_of(model, p, ids) - x[: len(ids)]).abs().max() > 1e-3 for p, ids, x in rows]
            waited += sum(moved)
        before = weights
    assert waited >= 4  # rows of which the current policy gives another log-probability
    waiting = [row["credit/groups/waiting"] for row in trainer.state.log_history if "credit/groups/waiting" in row]
    assert max(waiting) > 0


PAIRS = ((keys.PROMPT_IDS, keys.PROMPT_MASK), (keys.COMPLETION_IDS, keys.COMPLETION_MASK))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("surplus", "more"),
    [
        ("drop", {}),
        ("keep", {"num_iterations": 2}),
        ("keep", {"steps_per_generation": 2, "per_device_train_batch_size": 8}),
    ],
)
def test_groups_that_do_not_wait(trained, surplus, more):
    """Dropped, or sampled more than one update before the next batch."""
    trainer = trained(groups="refill", refill_surplus=surplus, **{**SMALL, "max_steps": 8, **more})
    assert all(row.get("credit/groups/waiting", 0.0) == 0.0 for row in trainer.state.log_history)


def test_a_batch_full_of_signal_is_that_of_keep(trained):
    """To the last bit, π_old left out as TRL leaves it out."""
    settings = {
        "reward_funcs": length,
        "group_signal": "reward",
        **{k: v for k, v in SMALL.items() if k != "reward_funcs"},
    }
    kept = trained(groups="keep", **{k: v for k, v in settings.items() if k != "group_signal"})
    for groups in ("replace", "refill"):
        other = trained(groups=groups, overwrite_output_dir=True, **settings)
        for a, b in zip(kept.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(a, b)


def test_tokens_are_counted_once_and_metrics_are_those_of_all_responses(make_trainer):
    trainer = make_trainer(groups="refill", refill_surplus="drop", **{**SMALL, "max_steps": 1})
    lengths, rewards, sample = [], [], trainer.engine.sample

    def spy(inputs, **kwargs):
        batch = sample(inputs, **kwargs)
        lengths.extend([len(p) + len(c) for p, c in zip(batch.prompt_ids, batch.completion_ids, strict=True)])
        rewards.extend(batch.rewards.tolist())
        return batch

    trainer.engine.sample = spy
    trainer.train()
    row = trainer.state.log_history[0]
    calls = row["credit/groups/calls"]
    assert calls > 2 and len(rewards) > 32
    assert row["num_tokens"] == trainer.state.num_input_tokens_seen == sum(lengths)
    assert row["reward"] == pytest.approx(sum(rewards) / len(rewards))
    assert row["credit/reward_max" if "credit/reward_max" in row else "reward_max"] == max(rewards)
    differ = [len(set(rewards[g : g + 4])) > 1 for g in range(0, len(rewards), 4)]
    assert row["credit/groups/signal"] == pytest.approx(sum(differ) / len(differ))
    assert row["credit/groups_without_signal"] == 0.0


def always(prompts, completions, **kwargs):
    return [1.0] * len(prompts)


def test_refills_end(trained, caplog):
    """Without any signal, after `max_refills` further calls: the first batch is trained on, and it says so."""
    trainer = trained(groups="refill", max_refills=3, **{**SMALL, "reward_funcs": always, "max_steps": 2})
    for row in trainer.state.log_history[:2]:
        assert row["credit/groups/calls"] == 4.0 and row["credit/groups_without_signal"] == 1.0
    said = caplog.text
    assert said.count("max_refills=3 further calls did not fill a batch of 4 groups") == 1
    assert said.count("0 of 4 groups have signal, less than a third: a batch is kept without copies") == 1


def test_a_data_set_that_ends(trained, caplog):
    """Four prompts, all in the first call: a refill has no others than these four."""
    trainer = trained(
        groups="refill", max_refills=9, **{**SMALL, "n_prompts": 4, "reward_funcs": always, "max_steps": 1}
    )
    assert trainer.state.log_history[0]["credit/groups/calls"] == 2.0
    assert "the data set has no further prompts" in caplog.text


# Copies


def test_copies_are_uniform_and_bounded():
    useful, dull = [Place(0, i) for i in range(3)], [Place(0, i) for i in range(3, 8)]
    counts = Counter()
    for seed in range(3000):
        groups, copies = fill_batch(useful, dull, size=8, max_copies=2, draws=random.Random(seed))
        assert groups[:3] == useful and copies == 5 and len(groups) == 8
        found = Counter(groups)
        assert set(found) == set(useful) and max(found.values()) <= 3
        counts.update(groups[3:])
    assert all(abs(n - 5000) < 250 for n in counts.values())  # six standard deviations


@pytest.mark.parametrize(
    ("useful", "size", "max_copies", "copies"),
    [(2, 6, 2, 4), (2, 7, 2, 0), (2, 6, 1, 2), (0, 4, 2, 0), (4, 4, 2, 0), (6, 4, 2, 0), (1, 3, 5, 2)],
)
def test_how_many_copies(useful, size, max_copies, copies):
    first, others = [Place(WAITED, i) for i in range(useful)], [Place(0, i) for i in range(size)]
    groups, found = fill_batch(first, others, size=size, max_copies=max_copies, draws=random.Random(0))
    assert found == copies and len(groups) == size
    assert (
        groups[: min(useful, size)] == first[:size]
        and groups[useful + copies :] == others[: max(0, size - useful - copies)]
    )
