"""Which groups have signal, and advantages scaled by the batch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.utils import nanstd

from trl_credit.credit.groups import batch_scaled_advantages, has_difference


NAN = math.nan


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0, 0, 0], False),
        ([1, 1, 1, 1], False),
        ([0, 0, 0, 1], True),
        ([0, 0, 0, NAN], False),
        ([0, 1, NAN, NAN], True),
        ([NAN] * 4, False),
        ([NAN, 1, NAN, NAN], False),  # one response alone differs from none
        ([-math.inf, 0, 0, 0], True),
        ([0.1 + 0.2, 0.3, 0.3, 0.3], True),  # a std of 3e-17 is no rounding error here
        ([1 / 3] * 4, False),  # whose std may round to another number than 0
    ],
)
def test_whether_a_group_differs(values, expected):
    both = torch.tensor([*values, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    assert has_difference(both, num_generations=4).tolist() == [expected, True]


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, NAN]), min_size=3, max_size=12).filter(lambda x: len(x) % 3 == 0))
def test_advantages_scaled_by_the_batch_are_those_of_trl(rewards):
    rewards = torch.tensor(rewards)
    mean = rewards.view(-1, 3).nanmean(1).repeat_interleave(3)
    scored = int((~rewards.isnan()).sum())
    std = nanstd(rewards) if scored > 1 else torch.tensor(0.0)
    expected = ((rewards - mean) / (std + 1e-4)).nan_to_num(nan=0.0)
    advantages = batch_scaled_advantages(rewards, num_generations=3)
    torch.testing.assert_close(advantages, expected, rtol=1e-5, atol=1e-6)
