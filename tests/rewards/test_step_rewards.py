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


STEPS = StepRewards([1, 4], [0.5, 0.25], unit="token")
OFFSETS = [StepRewards((2, 4), (1.0, -0.5), unit="char"), StepRewards((), ())]


@pytest.mark.parametrize(
    ("returned", "of_states", "rewards", "kept"),
    [
        ([STEPS, 2.0], False, [0.75, 2.0], {0: [STEPS, 2.0]}),
        ([1.0, None], False, [1.0, None], {}),  # numbers alone are TRL's
        ([[(2, 1.0), (4, -0.5)], []], False, [0.5, 0.0], {0: OFFSETS}),  # pairs are character offsets
        # None is not scored
        ([StepRewards([1, 2, 3], [None, 0.5, None], unit="token"), StepRewards([1], [None])], False, [0.5, None], None),
        ([[None, 1.0, None, None], [None, None]], False, [1.0, None], None),
        # of scores of states the last is the reward
        ([StepRewards([0, 2, 4], [0.1, 0.9, None]), [0.25, 0.5]], True, [0.9, 0.5], None),
        ([StepRewards([], []), None], True, [None, None], None),
    ],
)
def test_trl_gets_the_sum_and_the_ledger_the_rest(returned, of_states, rewards, kept):
    ledger = StepLedger(of_states=of_states)
    assert guarded(returned, ledger) == rewards
    assert kept is None or (ledger.take() == kept and ledger.take() == {})


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor, lambda x: np.array(x, dtype=np.float32)])
def test_arrays_have_a_value_per_token(kind):
    ledger = StepLedger()
    assert guarded([kind([0.5, 1.0, -2.0, 0.25]), kind([1.0, 1.0])], ledger) == [-0.25, 2.0]
    assert [x.tolist() for x in ledger.take()[0]] == [[0.5, 1.0, -2.0, 0.25], [1.0, 1.0]]


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
