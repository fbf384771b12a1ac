"""Some tens of configurations, each in one variant. `python -m tests.metamorphic` trains more, in all variants."""

from dataclasses import replace

import pytest
import torch

from .configurations import draw
from .equalities import EQUALITIES, checked, difference
from .training import Trained


SEED, COUNT, PART = 0, 30, 5
QUICK = 15  # the others are slow


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=pytest.mark.slow if first >= QUICK else ()) for first in range(0, COUNT, PART)],
)
def test_variants_come_to_the_same_weights_and_rewards(tiny_model, first):
    for number in range(first, first + PART):
        case, problems = checked(SEED, number, tiny_model, most=1)
        wrong = {name: problem for name, problem in problems.items() if problem}
        assert not wrong, f"python -m tests.metamorphic --seed {SEED} --first {number} --count 1: {wrong}, {case}"


def test_every_equality_is_claimed_by_some_configurations_and_not_by_all():
    cases = [(case, case.config()) for case in (draw(SEED, number) for number in range(60))]
    claims = {e.name: sum(e.holds(case, config) for case, config in cases) for e in EQUALITIES}
    assert min(claims.values()) > 1 and max(claims.values()) == 60, claims
    assert {config.rollouts for _, config in cases} == {"none", "chain", "tree"}


def test_what_is_not_equal_is_said():
    plain = Trained(torch.tensor([0.0, 2.0]), {(1, "reward"): 0.5})
    for change in ([3e-5, 2.0], [0.0, 2.1], [0.0, float("nan")]):
        assert difference(plain, replace(plain, change=torch.tensor(change)), logs=True).startswith("weights by")
    for rewards in ({(1, "reward"): 0.6}, {(2, "reward"): 0.5}):
        assert difference(plain, replace(plain, rewards=rewards), logs=True).startswith("step ")
    assert difference(plain, replace(plain, change=torch.tensor([1e-5, 2.0])), logs=True) is None
