"""The prefixes of a chain's states, and the parts in which their responses are scored."""

import random
from types import SimpleNamespace

import pytest
import torch
from segment_helpers import CHAIN

from trl_credit.loss import keys
from trl_credit.loss.batch import Batch
from trl_credit.rollouts.chain import PART_ROWS, Chain, rollout_rewards
from trl_credit.rollouts.policy import Continuation
from trl_credit.rollouts.replay import Row, padded_rows


ROWS, SEGMENT, ROLLOUTS = 4, 25, 9


def drawn(prefixes, *, n, budgets, **kwargs) -> list[Continuation]:
    """Continuations of four tokens that depend on the prefix alone."""
    continuations = []
    for prefix in prefixes:
        draw = random.Random(repr((len(prefix), prefix[-20:])))
        continuations += [Continuation(draw.choices(range(3, 18), k=4), None) for _ in range(n)]
    return continuations


def credit_of(trainer, length: int) -> torch.Tensor:
    """Advantages of four responses of `length` tokens with a segment every 25."""
    draw = random.Random(0)
    rows = [Row("", [3, 4, 5, 6], draw.choices(range(3, 18), k=length), (), ()) for _ in range(ROWS)]
    data = padded_rows(rows, pad_token_id=0) | {keys.OLD_LOGPS: torch.full((ROWS, length), -0.5)}
    rewards = torch.tensor([0.0, 0.25, 0.5, 1.0])
    batch = Batch(data, rewards, rewards.unsqueeze(1), rewards, rank=0)
    return Chain(trainer.engine).credit(batch, [{"prompt": "1+1="}] * ROWS).advantages


@pytest.fixture
def make_chain(make_trainer):
    def make(reward_funcs, **settings):
        settings = {**CHAIN, "segmentation": "fixed_length", "segment_length": SEGMENT, **settings}
        settings |= {"rollouts_per_state": ROLLOUTS, "per_device_train_batch_size": ROWS, "num_generations": ROWS}
        settings |= {"num_segments": None, "max_completion_length": 100_000}
        trainer = make_trainer(reward_funcs=reward_funcs, **settings)
        trainer.model.train()
        trainer.model.config.max_position_embeddings = 200_000
        trainer.engine.continue_prefixes = drawn
        return trainer

    return make


@pytest.mark.parametrize("size", [None, 1, 20, 10**6])
def test_responses_are_scored_in_parts(make_chain, size):
    calls: list[list[str]] = []

    def reward(prompts, completions, **kwargs):
        calls.append(completions)
        return [None if text.endswith("0") else sum(text.encode()) % 101 / 101 for text in completions]

    trainer = make_chain(reward, rollout_batch_size=size, truncated_value=0.5)
    advantages = credit_of(trainer, 500)
    states = ROWS * 500 // SEGMENT - (ROWS - 1)  # they begin with one and the same
    at_once = {None: max(PART_ROWS * ROWS, 2**17 // 100_000), 1: 1, 20: 20, 10**6: 10**6}[size]
    at_once = max(1, at_once // ROLLOUTS) * ROLLOUTS  # whole states
    assert [len(call) for call in calls[:-1]] == [at_once] * (len(calls) - 1) and len(calls[-1]) <= at_once
    assert sum(map(len, calls)) == ROLLOUTS * states
    # every response is whole, and parts change no value
    texts = [text for call in calls for text in call]
    assert len(set(map(len, texts))) > 15 and max(map(len, texts)) > 450
    again = make_chain(reward, rollout_batch_size=10**7, truncated_value=0.5)
    assert torch.equal(credit_of(again, 500), advantages) and advantages.abs().max() > 0


def test_parts_are_as_many_as_the_largest_process_needs(make_chain):
    """A process with fewer states makes the calls of the others, with the sizes of the others."""
    engine = make_chain(
        lambda completions, **kwargs: [*map(float, map(len, completions))], rollout_batch_size=18
    ).engine
    sizes, score = [], engine.score_responses

    def recorded(examples, completion_ids, *, most):
        sizes.append((len(examples), len(completion_ids), most))
        return score(examples, completion_ids, most=most)

    engine.score_responses = recorded
    batch = SimpleNamespace(prompt_ids=[[3]], completion_ids=[list(range(3, 20))])
    sizes_of = {"n": 9, "batch": batch, "most": 5}
    rewards, tokens = rollout_rewards(engine, [{"prompt": "1+1="}], [(0, 0), (0, 1), (0, 9)], **sizes_of)
    assert sizes == [(18, 18, 18), (9, 9, 18), (1, 0, 9)]
    assert rewards.tolist() == [[4.0] * 9, [5.0] * 9, [13.0] * 9] and tokens == 3 * 9 * 4
    rewards, tokens = rollout_rewards(engine, [{"prompt": "1+1="}], [], **sizes_of)
    assert rewards.shape == (0, 9) and tokens == 0 and sizes[3:] == [(1, 0, 18), (1, 0, 18), (1, 0, 9)]
