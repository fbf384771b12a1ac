"""p̂ and the accuracy of a batch come from the rewards that measure correctness, of all responses."""

import math

import pytest
import torch
from segment_helpers import CHAIN, TREE, generation_batch, texts_of

from trl_credit.credit.advantages import optimal_advantage
from trl_credit.loss.belief import correct_columns


SOURCES = {
    "responses": {},
    "chain": {**CHAIN, "segmentation": "fixed_length", "segment_length": 3},
    "trees": TREE,
    "replayed trees": {**TREE, "replay_iterations": 3, "replay_cap": 2, "learning_rate": 0.0},
}


def accuracy(prompts, completions, **kwargs):
    """1 for prompts that begin with an even digit, for any response."""
    return [1.0 - int(prompt[0]) % 2 for prompt in prompts]


def overlong(completions, **kwargs):
    """A reward with signal, far outside of [0, 1]."""
    return [sum(c in "abc" for c in text[:4]) - 7.0 for text in completions]


def by_text(completions, **kwargs):
    return [float("a" in text or len(text) % 3 == 0) for text in completions]


def wrong(completions, **kwargs):
    return [0.0] * len(completions)


def weighted(trainer, batches=1):
    """(p̂ of the rows, accuracy of the batch, the batch) of generation batches that are drawn from one seed."""
    seen, order = [], trainer._batch_steps._order
    trainer._batch_steps._order = lambda batch: seen.append((batch.p_hat, batch.accuracy)) or order(batch)
    torch.manual_seed(5)
    outputs = [generation_batch(trainer) for _ in range(batches)]
    return [(*pair, output) for pair, output in zip(seen, outputs, strict=True)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("names", [None, ["accuracy"]])
def test_p_hat_is_the_accuracy_and_not_the_total_reward(make_trainer, source, names):
    rewards = {"reward_funcs": [overlong, accuracy], "reward_weights": [1.0, 5.0]}
    trainer = make_trainer(**SOURCES[source], difficulty="fixed", difficulty_reward=names, **rewards)
    seen = 0
    for p_hat, y, output in weighted(trainer, batches=3 if "replay" in source else 1):
        for p, (text, _) in zip(p_hat.tolist(), texts_of(trainer, output), strict=True):
            if not math.isnan(p):  # a filler row has none
                assert p == 1.0 - int(text[0]) % 2
                seen += 1
        assert 0.0 <= y <= 1.0
    assert seen


def test_several_functions_are_added_without_weights(make_trainer):
    def half(completions, **kwargs):
        return [None if "b" in text else 0.5 for text in completions]

    results = []
    two = {"reward_funcs": [by_text, half], "difficulty_reward": ["half", "by_text"], "reward_weights": [9.0, -3.0]}
    for rewards in (two, {"reward_funcs": by_text, "reward_weights": [7.0]}):
        trainer = make_trainer(difficulty="fixed", reward_range=(0.0, 1.5), **rewards)
        ((p_hat, _, output),) = weighted(trainer)
        results.append(([text for _, text in texts_of(trainer, output)], p_hat))
    (texts, both), (same, one) = results
    assert texts == same
    extra = torch.tensor([0.0 if "b" in text else 0.5 for text in texts])
    torch.testing.assert_close(both, one + extra.view(-1, 4).mean(1).repeat_interleave(4) / 1.5)


@pytest.mark.parametrize("source", ["responses", "chain"])
def test_a_truncated_response_counts_by_its_score_masked_or_not(make_trainer, source):
    results = []
    for masked in (False, True):
        settings = {**SOURCES[source], "reward_funcs": by_text, "mask_truncated_completions": masked}
        trainer = make_trainer(**settings, difficulty="fixed", temperature=1.3)
        results += weighted(trainer)
    (p_hat, y, output), (p_hat_masked, y_masked, masked_output) = results
    lengths, kept = (x["completion_mask"].sum(-1) for x in (output, masked_output))
    assert (kept == 0).any() and (lengths > 0).all()
    assert torch.equal(p_hat, p_hat_masked) and y == y_masked and p_hat.unique().numel() > 1


def test_a_masked_response_does_not_count_in_the_optimal_baseline(make_trainer):
    trainer = make_trainer("opo", mask_truncated_completions=True, temperature=1.3, reward_funcs=by_text)
    torch.manual_seed(5)
    output = generation_batch(trainer)
    lengths = output["completion_mask"].sum(-1)
    assert (lengths == 0).any() and (lengths > 0).any()
    ids = output["completion_ids"]
    rewards = torch.tensor(by_text(trainer.processing_class.batch_decode(ids, skip_special_tokens=True)))
    expected = optimal_advantage(rewards, lengths=lengths, num_generations=4)
    seen = lengths > 0
    torch.testing.assert_close(output["advantages"][seen], expected[seen])


@pytest.mark.parametrize(
    ("functions", "names", "message"),
    [
        ([by_text, wrong], None, "not clear which of the reward functions by_text, wrong .*set difficulty_reward"),
        ([by_text, wrong], ["accuracy"], "'accuracy' is not one of the reward functions by_text, wrong"),
    ],
)
def test_an_unclear_reward_is_refused_when_the_trainer_is_built(make_trainer, functions, names, message):
    settings = {} if names is None else {"difficulty_reward": names}
    with pytest.raises(ValueError, match=message):
        make_trainer("ha_dw", reward_funcs=functions, **settings)
    make_trainer("base", reward_funcs=functions)  # not needed without difficulty weights


def test_names_as_on_the_command_line(make_trainer):
    config = make_trainer("ha_dw", difficulty_reward=["accuracy"], reward_funcs=[accuracy, wrong]).args
    assert correct_columns(config, ["format_reward", "accuracy_reward"], weights=[1.0, 1.0]) == [1]
    assert correct_columns(config, ["accuracy_reward", "accuracy"], weights=[1.0, 1.0]) == [1]
    config.difficulty_reward = None
    assert correct_columns(config, ["format_reward", "accuracy_reward"], weights=[1.0, 1.0]) == [1]
    assert correct_columns(config, ["mine"], weights=[1.0]) == [0]
