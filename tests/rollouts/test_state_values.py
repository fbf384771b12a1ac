"""Values of a chain's states at real lengths, in several processes, and with the engine itself."""

import random
import tracemalloc

import pytest
import torch
from segment_helpers import CHAIN, TREE, generation_batch
from worker import kept

from trl_credit.rollouts.chain import chain_credit
from trl_credit.rollouts.policy import Continuation
from trl_credit.rollouts.values import rollout_values


ROWS = 16
LONG = {**CHAIN, "rollouts_per_state": 9, "segmentation": "fixed_length", "segment_length": 100}


def drawn(prefixes, *, n, budgets):
    """Continuations of 16 tokens, drawn instead of generated."""
    draw = random.Random(0)
    return [Continuation(draw.choices(range(3, 20), k=16), None) for prefix in prefixes for _ in range(n)]


def of_length(make_trainer, length, **settings):
    """A trainer for responses of `length` tokens, and a call that gives them their credit."""
    settings = {**LONG, "max_completion_length": length + 16, "per_device_train_batch_size": ROWS, **settings}
    trainer = make_trainer(**settings)
    trainer.model.config.max_position_embeddings = 2 * length
    trainer.engine.continue_prefixes = drawn
    trainer.model.train()
    draw = random.Random(length)
    given = {
        "prompt_ids": [[3, 4, 5]] * ROWS,
        "completion_ids": [draw.choices(range(3, 20), k=length) for _ in range(ROWS)],
        "old_logp_t": torch.full((ROWS, length), -0.5),
        "rewards": torch.linspace(0, 1, ROWS),
        "mask_t": torch.ones(ROWS, length, dtype=torch.long),
    }
    return trainer, lambda: chain_credit(trainer.engine, [{"prompt": "1+1="}] * ROWS, **given)


def lengths_of(completions, **kwargs):
    return [float(len(text)) for text in completions]


@pytest.mark.slow
@pytest.mark.parametrize("length", [2048, pytest.param(4096, marks=pytest.mark.slow)])
def test_memory_is_a_constant_for_each_token(make_trainer, length):
    _, credit = of_length(make_trainer, length, reward_funcs=lengths_of)
    credit()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        credit()
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < 200 * ROWS * length  # 72 and 76 bytes; 2,552 and 4,904 with lists of all prefixes


def test_parts_are_as_many_as_the_largest_process_needs(make_trainer):
    """A process with fewer states makes the calls of the others, with the sizes of the others."""
    trainer, _ = of_length(make_trainer, 300, reward_funcs=lengths_of, rollout_batch_size=18)
    asked, score = [], trainer.engine.score_responses

    def recorded(examples, completion_ids, *, most):
        asked.append((len(examples), len(completion_ids), most))
        return score(examples, completion_ids, most=most)

    trainer.engine.score_responses = recorded
    given = {"prompt_ids": [[3]], "completion_ids": [list(range(3, 20))], "most": 5}
    values, tokens = rollout_values(trainer.engine, [{"prompt": "1+1="}], [(0, 0), (0, 1), (0, 9)], **given)
    assert asked == [(18, 18, 18), (9, 9, 18), (1, 0, 9)]
    assert values.tolist() == [16.0, 17.0, 25.0] and tokens == 3 * 9 * 16
    values, tokens = rollout_values(trainer.engine, [{"prompt": "1+1="}], [], **given)
    assert values.shape == (0,) and tokens == 0 and asked[3:] == [(1, 0, 18), (1, 0, 18), (1, 0, 9)]


@pytest.mark.parametrize("knobs", [CHAIN, TREE], ids=["chain", "tree"])
def test_the_model_is_unwrapped_as_often_for_many_states_as_for_few(make_trainer, knobs):
    """It takes accelerate about a millisecond."""
    few, many = ({"segmentation": "fixed_length", "segment_length": length} for length in (7, 1))
    if knobs is TREE:
        few, many = {"tree_branching": [2, 2]}, {"tree_branching": [8, 4]}
    calls = []
    for changes in (few, many):
        trainer = make_trainer(**{**knobs, **changes})
        count = kept(trainer.accelerator, "unwrap_model")
        torch.manual_seed(0)
        generation_batch(trainer)
        calls.append(len(count))
    assert calls[0] == calls[1] < 16
