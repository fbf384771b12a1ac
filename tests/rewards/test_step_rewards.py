"""What reward functions may return for a response besides one number, and what TRL gets of it."""

import math

import numpy as np
import pytest
import torch

from trl_credit.rewards import StepRewards
from trl_credit.rewards.guard import RewardError, guard_rewards
from trl_credit.rewards.steps import StepLedger, read_reward


IDS = [[5, 6, 7, 8], [5, 6]]
GIVEN = {"prompts": ["1+1=", "2+2="], "completions": ["abcd", "ab"], "completion_ids": IDS}


def guarded(returned, ledger=None, **settings):
    """What TRL gets of a function that returns this, as it is and as an `async` one."""

    def mine(completions, **kwargs):
        return returned

    return guard_rewards(mine, ledger=ledger, **settings)(**GIVEN)


def test_trl_gets_the_sum_and_the_ledger_the_rest():
    ledger = StepLedger()
    steps = StepRewards([1, 4], [0.5, 0.25], unit="token")
    assert guarded([steps, 2.0], ledger) == [0.75, 2.0]
    assert ledger.take() == {0: [steps, 2.0]} and ledger.take() == {}
    assert guarded([1.0, None], ledger) == [1.0, None]
    assert ledger.take() == {}  # numbers alone are TRL's


def test_pairs_are_character_offsets():
    ledger = StepLedger()
    assert guarded([[(2, 1.0), (4, -0.5)], []], ledger) == [0.5, 0.0]
    assert ledger.take()[0] == [StepRewards((2, 4), (1.0, -0.5), unit="char"), StepRewards((), ())]


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor, lambda x: np.array(x, dtype=np.float32)])
def test_arrays_have_a_value_per_token(kind):
    ledger = StepLedger()
    assert guarded([kind([0.5, 1.0, -2.0, 0.25]), kind([1.0, 1.0])], ledger) == [-0.25, 2.0]
    assert [x.tolist() for x in ledger.take()[0]] == [[0.5, 1.0, -2.0, 0.25], [1.0, 1.0]]


def test_none_is_not_scored():
    ledger = StepLedger()
    steps = StepRewards([1, 2, 3], [None, 0.5, None], unit="token")
    assert guarded([steps, StepRewards([1], [None])], ledger) == [0.5, None]
    assert guarded([[None, 1.0, None, None], [None, None]], ledger) == [1.0, None]


def test_of_scores_of_states_the_last_is_the_reward():
    ledger = StepLedger(of_states=True)
    assert guarded([StepRewards([0, 2, 4], [0.1, 0.9, None]), [0.25, 0.5]], ledger) == [0.9, 0.5]
    assert guarded([StepRewards([], []), None], ledger) == [None, None]


def test_each_function_has_its_column():
    ledger = StepLedger()

    def number(completions, **kwargs):
        return [1.0] * len(completions)

    def steps(completions, **kwargs):
        return [[(1, 1.0)] for _ in completions]

    for function in guard_rewards([number, steps], ledger=ledger):
        function(**GIVEN)
    assert list(ledger.take()) == [1]


@pytest.mark.parametrize(
    "returned",
    [
        [[0.5, 1.0], 1.0],
        [1.0, [0.5, math.nan]],
        [1.0, np.array([np.inf, 0.0])],
        [[(2, 1.0), (1, 1.0)], 1.0],
        [{"steps": [1]}, 1.0],
    ],
)
def test_what_is_none_of_these_is_refused_by_name(returned):
    with pytest.raises(RewardError, match="^reward function 'mine' returned .* for response [01] .*StepRewards"):
        guarded(returned)


@pytest.mark.parametrize(
    ("ends", "values"),
    [([1, 2], [1.0]), ([2, 1], [1.0] * 2), ([1, 1], [1.0] * 2), ([-1], [1.0]), ([1.5], [1.0]), ([1], [math.inf])],
)
def test_wrong_steps_are_refused(ends, values):
    with pytest.raises(ValueError, match="ends|values"):
        StepRewards(ends, values)
    with pytest.raises(ValueError, match="unit"):
        StepRewards([1], [1.0], unit="word")


def test_a_single_value_of_any_library_stays_a_number():
    for one in (1, 1.0, True, np.float32(1), np.array([1.0]), torch.tensor(1.0), torch.tensor([1.0])):
        assert read_reward(one, tokens=4) == 1.0
    assert guarded(np.array([1.0, 0.5])) == [1.0, 0.5]
    assert guarded(torch.tensor([[1.0], [0.5]])) == [1.0, 0.5]
