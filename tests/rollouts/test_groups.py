"""Batches whose groups have signal, through the real trainer: what their rows hold is computed again by other means."""

import copy
import random
from collections import Counter

import pytest
import torch
from custom_functions import args_of
from datasets import Dataset, IterableDataset
from transformers import AutoModelForCausalLM

from trl_credit.loss import keys
from trl_credit.loss.batch import loss_mask, unpadded
from trl_credit.rollouts.group_join import Place
from trl_credit.rollouts.groups import WAITED, fill_batch


def by_prompt(prompts, completions, **kwargs) -> list[float]:
    """0 for prompts that begin with an even digit, so that their groups are dull; else nearly always different."""
    return [0.0 if int(p[0]) % 2 == 0 else sum(map(ord, c)) % 4 / 3 for p, c in zip(prompts, completions, strict=True)]


def length(prompts, completions, **kwargs) -> list[float]:
    """A second reward, which differs in every group."""
    return [sum(map(ord, c)) % 101 / 1000 for c in completions]


# four groups of four in a batch; half of the prompts are dull
SMALL = {"reward_funcs": by_prompt, "per_device_train_batch_size": 16, "max_steps": 3, "n_prompts": 64}


def observed(trainer):
    """Trains, and returns each generation batch as it was made, with the weights that sampled it."""
    seen, make = [], trainer.make_batch

    def spy(inputs):
        weights = copy.deepcopy(trainer.model.state_dict())
        made = make(inputs)
        data = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in made.batch.data.items()}
        seen.append((made, data, weights))
        return made

    trainer.make_batch = spy
    trainer.train()
    return seen


def logps_of(path, weights, prompt_ids, ids, temperature=1.0):
    model = AutoModelForCausalLM.from_pretrained(path)
    model.load_state_dict(weights)
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
    for row, (prompt, ids) in enumerate(zip(prompts, responses, strict=True)):
        for key, of in ((keys.OLD_LOGPS, [weights, before]), (keys.REF_LOGPS, ["reference"])):
            if key not in data:
                continue
            of = [trainer.first_weights if w == "reference" else w for w in of if w is not None]
            found = data[key][row, : len(ids)]
            errors = [(found - logps_of(path, w, prompt, ids)).abs().max().item() for w in of]
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
            moved = [(logps_of(tiny_model, weights, p, ids) - x[: len(ids)]).abs().max() > 1e-3 for p, ids, x in rows]
            waited += sum(moved)
        before = weights
    assert waited >= 4  # rows of which the current policy gives another log-probability
    waiting = [row["credit/groups/waiting"] for row in trainer.state.log_history if "credit/groups/waiting" in row]
    assert max(waiting) > 0


PAIRS = ((keys.PROMPT_IDS, keys.PROMPT_MASK), (keys.COMPLETION_IDS, keys.COMPLETION_MASK))


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


# Signal


def test_correct_is_what_difficulty_reward_calls_so(trained):
    """A second reward that differs everywhere makes no signal, unless the total is asked for."""
    both = {**SMALL, "reward_funcs": [by_prompt, length], "max_steps": 2}
    by = {}
    for signal, more in (("correct", {"difficulty_reward": ["by_prompt"]}), ("reward", {})):
        trainer = trained(groups="replace", group_signal=signal, overwrite_output_dir=True, **both, **more)
        by[signal] = [row["credit/groups/signal"] for row in trainer.state.log_history if "reward" in row]
    assert max(by["correct"]) < 1.0 and by["reward"] == [1.0, 1.0]


def test_masked_responses_have_no_vote(make_trainer):
    """Truncated ones, which `mask_truncated_completions` hides: a group that differs in them alone is dull."""

    def truncated(completions, completion_ids, **kwargs):
        return [float(len(ids) == 8) for ids in completion_ids]

    settings = {**SMALL, "reward_funcs": truncated, "max_steps": 1}
    share = {}
    for masks in (False, True):
        trainer = make_trainer(
            groups="replace", mask_truncated_completions=masks, overwrite_output_dir=True, **settings
        )
        trainer.train()
        share[masks] = trainer.state.log_history[0]["credit/groups/signal"]
    assert share[True] == 0.0 < share[False]


def test_difficulty_weights_see_what_was_sampled(make_trainer):
    """The belief moves by the accuracy of all sampled responses; p̂ of a row is that of its own group."""
    trainer = make_trainer("ha_dw", groups="refill", refill_surplus="drop", **{**SMALL, "max_steps": 2})
    sampled, sample = [], trainer.engine.sample

    def spy(inputs, **kwargs):
        batch = sample(inputs, **kwargs)
        sampled[-1].extend(batch.rewards.tolist())
        return batch

    trainer.engine.sample = spy
    make = trainer.make_batch

    def count(inputs):
        sampled.append([])
        made = make(inputs)
        mean = made.batch.rewards.view(-1, 4).mean(1).repeat_interleave(4)
        torch.testing.assert_close(made.p_hat, mean)
        assert made.accuracy == pytest.approx(sum(sampled[-1]) / len(sampled[-1]))
        assert made.accuracy < made.p_hat.mean() - 0.05
        return made

    trainer.make_batch = count
    trainer.train()
    assert trainer.difficulty.state_dict()["accuracies"] == pytest.approx([sum(x) / len(x) for x in sampled])


# Chains and trees


CHAIN = {
    "rollouts": "chain",
    "loss_type": "dapo",
    "rollouts_per_state": 2,
    "segmentation": "fixed_length",
    "segment_length": 3,
}


@pytest.mark.parametrize("signal", ["correct", "advantage"])
def test_continuations_are_paid_for_groups_with_signal(make_trainer, signal):
    trainer = make_trainer(
        groups="refill", group_signal=signal, refill_surplus="drop", **{**SMALL, **CHAIN, "max_steps": 2}
    )
    asked, proceed = [], trainer.engine.continue_prefixes

    def spy(prefixes, **kwargs):
        asked.extend(trainer.tokenizer.decode(prefix[:4]) for prefix in prefixes)
        return proceed(prefixes, **kwargs)

    trainer.engine.continue_prefixes = spy
    seen = observed(trainer)
    dull = [prompt for prompt in asked if int(prompt[0]) % 2 == 0]
    assert asked and (not dull if signal == "correct" else dull)
    for made, data, _ in seen:
        assert made.advantages.shape == data[keys.COMPLETION_IDS].shape == data[keys.SEGMENT_IDS].shape
        assert made.values[0].shape == made.advantages.shape and len(made.values[1]) == 16
        inside = loss_mask(data).bool()
        assert bool(((data[keys.SEGMENT_IDS] >= 0) == inside).all())
        grouped = ((made.advantages != 0) & inside).any(-1).view(-1, 4).any(-1)
        assert grouped.all() if signal == "advantage" else all(int(x["prompt"][0]) % 2 for x in made.examples)
        # the advantages of a response sum to the difference of its last value and its first
        ids = data[keys.SEGMENT_IDS]
        for a, s, v, end in zip(made.advantages, ids, made.values[0], made.values[1], strict=True):
            starts = [s.tolist().index(k) for k in range(int(s.max()) + 1)]
            if starts:
                torch.testing.assert_close(a[starts].sum(), end - v[starts[0]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("signal", ["correct", "reward", "advantage"])
def test_dull_trees_are_grown_again(make_trainer, signal):
    settings = {**SMALL, "rollouts": "tree", "loss_type": "dapo", "max_steps": 2}
    trainer = make_trainer(groups="refill", group_signal=signal, **settings)
    plans, plan = [], trainer.forest.plan
    trainer.forest.plan = lambda inputs: plans.append(plan(inputs)) or plans[-1]
    trainer.train()
    for one in plans:
        useful = [tree for tree in one.trees if any(node.advantage for node in tree.root.walk())]
        assert len(useful) >= 4 < len(one.trees) and len(one.rewards) == 16
        assert len({row.question for row in one.drawn}) >= 4
    log = trainer.state.log_history[0]
    assert log["credit/groups/calls"] > 1 and log["credit/groups/signal"] == pytest.approx(
        sum(any(n.advantage for n in t.root.walk()) for t in plans[0].trees) / len(plans[0].trees)
    )


# The KL term of dull groups


def gradients(make_trainer, **settings):
    """The gradient of the first update, and its batch."""
    trainer = make_trainer(max_grad_norm=0.0, overwrite_output_dir=True, **{**SMALL, "max_steps": 1, **settings})
    found, close = {}, trainer._nonfinite.close_update

    def spy(**given):
        found.update({name: p.grad.clone() for name, p in trainer.model.named_parameters()})
        return close(**given)

    trainer._nonfinite.close_update = spy
    (batch,) = observed(trainer)
    return found, batch


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "cispo"])
def test_dull_kl(make_trainer, tmp_path, tiny_model, loss_type):
    """Dropped: the gradient that the dull rows had alone is gone, and nothing else changed. With TRL's default, which
    multiplies the KL term by the ratio."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    given = {"beta": 0.5, "loss_type": loss_type, "shared_prefix": "off"}

    def moved(trainer):  # a reference that differs, or all KL terms are 0
        draw = torch.Generator().manual_seed(0)
        for p in trainer.ref_model.parameters():
            p.data += 0.1 * torch.randn(p.shape, generator=draw)
        return trainer

    found = {}
    for kl in ("keep", "drop"):
        found[kl], (made, data, _) = gradients(lambda **x: moved(make_trainer(**x)), dull_kl=kl, **given)
    dull = made.batch.data[keys.DULL_ROW]
    assert dull.tolist() == [int(x["prompt"][0]) % 2 == 0 or len(set(r)) == 1 for x, r in zip(
        made.examples, made.batch.rewards.view(-1, 4).repeat_interleave(4, 0).tolist(), strict=True)]  # fmt: skip
    assert 0 < dull.sum() < 16
    # β k3 of the dull rows, divided as the loss divides
    model.train()
    ids = torch.cat([data[keys.PROMPT_IDS], data[keys.COMPLETION_IDS]], 1)
    attention = torch.cat([data[keys.PROMPT_MASK], data[keys.COMPLETION_MASK]], 1)
    width, mask_t = data[keys.COMPLETION_IDS].size(1), data[keys.COMPLETION_MASK]
    logits = model(input_ids=ids, attention_mask=attention).logits[:, -width - 1 : -1]
    logp_t = logits.log_softmax(-1).gather(2, data[keys.COMPLETION_IDS].unsqueeze(2)).squeeze(2)
    difference = data[keys.REF_LOGPS] - logp_t
    kl_t = (difference.exp() - difference - 1) * (logp_t - logp_t.detach()).exp() * mask_t * dull.unsqueeze(1)
    by = {"dapo": mask_t.sum(), "cispo": mask_t.sum(), "grpo": 16 * mask_t.sum(1, keepdim=True), "dr_grpo": 16 * 8}
    (0.5 * (kl_t / by[loss_type]).sum()).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(found["keep"][name] - found["drop"][name], p.grad, atol=2e-6, rtol=1e-3)


# Refusals


def test_refusals_of_a_configuration():
    for given, field in (
        ({"groups": "refill", "multi_objective_aggregation": "normalize_then_sum"}, "multi_objective_aggregation="),
        ({"groups": "replace", "rollouts": "tree", "loss_type": "dapo"}, "groups="),
        ({"max_copies": 1}, "max_copies=1 does nothing, since groups='keep'"),
        ({"max_refills": 3, "groups": "replace"}, "max_refills=3 does nothing"),
        ({"refill_surplus": "drop", "groups": "replace"}, "refill_surplus='drop' does nothing"),
        ({"group_signal": "reward"}, "group_signal='reward' does nothing"),
        ({"dull_kl": "drop"}, "dull_kl='drop' does nothing, since beta=0.0"),
        ({"difficulty_reward": ["a"]}, "difficulty_reward=['a'] does nothing"),
        ({"retire_above": 0.9}, "retire_above=0.9 does nothing"),
    ):
        with pytest.raises(ValueError) as caught:
            args_of(**given)
        assert str(caught.value).startswith(field), caught.value


def test_refusals_of_a_trainer(make_trainer):
    with pytest.raises(ValueError, match=r"^groups='refill': it is not clear which .* or group_signal='reward'\.$"):
        make_trainer(groups="refill", reward_funcs=[by_prompt, length])
    rows = [{"prompt": "1+1=", "answer": "2"}] * 64
    stream = {"train_dataset": IterableDataset.from_generator(lambda: iter(rows))}
    for given in ({"groups": "refill"}, {"prompt_sampler": "difficulty"}):
        name = next(iter(given))
        with pytest.raises(
            ValueError, match=rf"^{name}='.*' draws rows by number, and train_dataset is a stream: load it"
        ):
            make_trainer(trainer_kwargs=stream, **given)


def test_rows_with_images_are_refused(make_trainer):
    data = Dataset.from_dict({"prompt": ["1+1="] * 8, "image": ["x"] * 8})
    trainer = make_trainer(groups="replace", trainer_kwargs={"train_dataset": data})
    with pytest.raises(ValueError, match="^groups='replace' joins rows of text, without their images: use a data set"):
        trainer.train()
