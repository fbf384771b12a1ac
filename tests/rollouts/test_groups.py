"""Batches whose groups have signal, through the real trainer: what their rows hold is computed again by other means."""

import copy
import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from custom_functions import args_of
from group_helpers import SMALL, by_prompt, length, observed
from passes_helpers import logits_of
from transformers import AutoModelForCausalLM
from weight_helpers import same_weights, untimed
from worker import kept

from trl_credit.loss import keys
from trl_credit.loss.batch import loss_mask, unpadded
from trl_credit.rollouts.groups import SignalGroups, fill_batch
from trl_credit.rollouts.sources import Responses


def check_batch(trainer, path, batch, data, weights, *, scale):
    """Recomputes what a batch holds, from its token ids. Returns how many of its groups have signal."""
    prompts = unpadded(data[keys.PROMPT_IDS], data[keys.PROMPT_MASK])
    responses = unpadded(data[keys.COMPLETION_IDS], data[keys.COMPLETION_MASK])
    decode = trainer.tokenizer.batch_decode
    texts = decode(prompts), decode(responses, skip_special_tokens=True)
    assert [example["prompt"] for example in batch.examples] == texts[0]
    rewards = torch.tensor(by_prompt(*texts))
    torch.testing.assert_close(batch.batch.rewards, rewards)
    torch.testing.assert_close(batch.batch.rewards_per_func[:, 0], rewards)
    grouped = rewards.view(-1, 4)
    assert all(len(set(texts[0][g : g + 4])) == 1 for g in range(0, len(prompts), 4))
    std = grouped.std(1, keepdim=True) if scale == "group" else rewards.std()
    expected = ((grouped - grouped.mean(1, keepdim=True)) / (std + 1e-4)).flatten()
    torch.testing.assert_close(data[keys.ADVANTAGES], expected, atol=1e-5, rtol=1e-4)
    assert int(data[keys.NUM_ITEMS]) == sum(map(len, responses)) == int(loss_mask(data).sum())
    for key, of in ((keys.OLD_LOGPS, weights), (keys.REF_LOGPS, trainer.first_weights)):
        if key in data:
            model = AutoModelForCausalLM.from_pretrained(path)
            model.load_state_dict(of)
            ids, inside = data[keys.COMPLETION_IDS], data[keys.COMPLETION_MASK].bool()
            logp_t = logits_of(model, data, 1.0).log_softmax(-1).gather(2, ids.unsqueeze(2)).squeeze(2)
            torch.testing.assert_close(data[key][inside], logp_t[inside], atol=1e-5, rtol=0)
    return int((grouped.amax(1) > grouped.amin(1)).sum())


@pytest.mark.parametrize(
    ("scale", "more"),
    [("group", {}), ("batch", {"num_iterations": 2, "beta": 0.1, "max_steps": 6})],
    ids=["aligned", "pi_old"],
)
@pytest.mark.parametrize("groups", ["replace", "refill"])
def test_what_a_batch_holds(make_trainer, tiny_model, groups, more, scale):
    trainer = make_trainer(groups=groups, scale_rewards=scale, shuffle_dataset=False, **{**SMALL, **more})
    trainer.first_weights = copy.deepcopy(trainer.model.state_dict())
    seen = observed(trainer)
    assert len(seen) == 3
    for batch, data, weights in seen:
        useful = check_batch(trainer, tiny_model, batch, data, weights, scale=scale)
        prompts = [example["prompt"] for example in batch.examples][::4]
        if groups == "refill":
            assert useful == 4
        else:
            assert useful in (0, 1, 4) and max(Counter(prompts).values()) <= 3
    calls = [row["credit/groups/calls"] for row in trainer.state.log_history if "credit/groups/calls" in row]
    assert calls == [1.0] * 3 if groups == "replace" else max(calls) > 1
    shown = trainer._logs
    assert [*shown["prompt"]] == [example["prompt"] for example in batch.examples]
    assert [*shown["rewards"]["by_prompt"]] == pytest.approx(batch.batch.rewards.tolist())
    torch.testing.assert_close(torch.tensor([*shown["advantages"]]), batch.batch.advantages)


def test_a_batch_full_of_signal_is_that_of_keep(trained):
    """To the last bit, π_old left out as TRL leaves it out."""
    settings = {**SMALL, "reward_funcs": length}
    plain = trained(groups="keep", **settings)
    for groups in ("replace", "refill"):
        assert same_weights(plain, trained(groups=groups, group_signal="reward", overwrite_output_dir=True, **settings))


def max_reward(prompts, completions, **kwargs):
    """Its name says nothing of how its values are pooled."""
    return by_prompt(prompts, completions)


def test_refills_are_other_prompts_and_metrics_are_those_of_all_responses(make_trainer):
    """Without shuffling, the order of refills begins where the data does: at the prompts of the batch."""
    settings = {**SMALL, "reward_funcs": max_reward, "max_steps": 1}
    trainer = make_trainer(groups="refill", shuffle_dataset=False, **settings)
    sampled = kept(trainer.engine, "sample")
    trainer.train()
    tokens = [len(ids) for batch in sampled for ids in (*batch.prompt_ids, *batch.completion_ids)]
    rewards = [reward for batch in sampled for reward in batch.rewards.tolist()]
    prompts = [trainer.tokenizer.decode(ids) for batch in sampled for ids in batch.prompt_ids[::4]]
    row = trainer.state.log_history[0]
    assert row["credit/groups/calls"] > 1 and len(set(prompts)) == len(prompts) > 4
    assert row["num_tokens"] == trainer.state.num_input_tokens_seen == sum(tokens)
    assert row["reward"] == row["rewards/max_reward/mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert row["reward_max"] == max(rewards)
    differ = [len(set(rewards[g : g + 4])) > 1 for g in range(0, len(rewards), 4)]
    assert row["credit/groups/signal"] == pytest.approx(sum(differ) / len(differ))
    assert row["credit/groups_without_signal"] == 0.0


@pytest.mark.parametrize(
    ("more", "calls", "warning"),
    [
        ({"max_refills": 3}, 4.0, "max_refills=3 further calls"),
        ({"max_refills": 9, "n_prompts": 4}, 2.0, "no further prompts"),
    ],
    ids=["after max_refills", "at the end of the data"],
)
def test_refills_end(trained, caplog, more, calls, warning):
    """Without any signal the first batch is trained on. With four prompts, a refill has no others than these."""
    settings = {name: x for name, x in SMALL.items() if name != "reward_funcs"} | {"max_steps": 2, **more}
    trainer = trained(groups="refill", reward_funcs=lambda prompts, **kwargs: [1.0] * len(prompts), **settings)
    for row in trainer.state.log_history[:2]:
        assert row["credit/groups/calls"] == calls and row["credit/groups_without_signal"] == 1.0
    assert caplog.text.count(warning) == caplog.text.count("less than a third of 4 groups have signal") == 1


def test_copies_are_uniform_and_bounded():
    counts = Counter()
    for seed in range(3000):
        groups, copies = fill_batch([True] * 3 + [False] * 5, size=8, max_copies=2, draws=random.Random(seed))
        assert groups[:3] == [0, 1, 2] and copies == 5 and len(groups) == 8
        assert set(groups) == {0, 1, 2} and max(Counter(groups).values()) <= 3
        counts.update(groups[3:])
    assert all(abs(n - 5000) < 250 for n in counts.values())  # six standard deviations


@pytest.mark.parametrize(
    ("useful", "size", "max_copies", "copies"),
    [(2, 6, 2, 4), (2, 7, 2, 0), (2, 6, 1, 2), (0, 4, 2, 0), (4, 4, 2, 0), (6, 4, 2, 0), (1, 3, 5, 2)],
)
def test_how_many_copies(useful, size, max_copies, copies):
    has_signal = [False] * size + [True] * useful
    groups, number = fill_batch(has_signal, size=size, max_copies=max_copies, draws=random.Random(0))
    assert number == copies and len(groups) == size
    assert groups[: min(useful, size)] == [*range(size, size + useful)][:size]
    assert groups[useful + copies :] == [*range(max(0, size - useful - copies))]


# Checkpoints and evaluations


def test_groups_that_waited_in_an_earlier_version_are_left_out_with_a_warning(caplog):
    policy = SimpleNamespace(args=args_of(groups="replace"))
    groups = SignalGroups(Responses(policy), SimpleNamespace(stateful=()))
    groups.load_state_dict({"file": "waiting_groups.safetensors", "batches": 3, "waiting": 2}, Path())
    assert groups.state_dict(Path()) == {"batches": 3} and len(caplog.records) == 1


def test_settings_that_lose_or_lack_the_state_are_refused(make_trainer, trained, tmp_path):
    saved = {**SMALL, "save_strategy": "steps", "save_steps": 1}
    trained(**{**saved, "groups": "refill", "max_steps": 1})
    checkpoint, more = str(tmp_path / "run" / "checkpoint-1"), {"allow_changed": ["groups"]}
    with pytest.raises(ValueError, match=r"would lose \(groups, prompts\)"):
        make_trainer(**saved, **more).train(resume_from_checkpoint=checkpoint)


def test_an_evaluation_changes_nothing(trained):
    """Its batches are plain, and its groups of another size."""
    settings = {**SMALL, "groups": "refill", "prompt_sampler": "difficulty", "max_steps": 3, "seed": 3}
    plain = trained(**settings)
    kwargs = {"eval_dataset": plain.train_dataset.select(range(4))}
    more = {"num_generations_eval": 2, "per_device_eval_batch_size": 4, "overwrite_output_dir": True}
    more |= {"eval_strategy": "steps", "eval_steps": 2}  # in the middle of the run
    torch.manual_seed(0)
    evaluated = trained(**settings, **more, trainer_kwargs=kwargs)
    row, *_ = [row for row in evaluated.state.log_history if "eval_reward" in row]
    assert row["step"] == 2 and "eval_credit/groups/signal" not in row
    first = [json.dumps(untimed(x.state.log_history[:2])) for x in (plain, evaluated)]
    assert first[0] == first[1]
