"""Which groups have signal, for single responses, chains and trees, and what is refused."""

import pytest
import torch
from custom_functions import args_of
from datasets import Dataset, IterableDataset
from group_helpers import SMALL, by_prompt, length, observed

from trl_credit.loss import keys
from trl_credit.loss.batch import loss_mask


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
    with pytest.raises(ValueError, match="^groups='replace' joins rows of text, without their images: use data, tools"):
        trainer.train()


def test_a_plan_says_that_refills_come_on_top(command_said):
    code, said, _ = command_said("plan", "--algo", "dapo", "--groups", "refill", "--max_refills", "4")
    assert code == 0 and "sampling takes twice as much, and at most 5 times as much (max_refills)" in " ".join(
        said.split()
    )
    assert "no refills" not in command_said("plan", "--algo", "dapo")[1]
