"""Some tens of configurations, each in one variant. `python -m tests.metamorphic` trains more, in all variants."""

import pytest

from .configurations import draw
from .equalities import EQUALITIES, checked


SEED, COUNT, PART = 0, 30, 5
QUICK = (0, 10)  # the others are slow


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=[pytest.mark.slow] * (first not in QUICK)) for first in range(0, COUNT, PART)]
)
def test_variants_come_to_the_same_weights_and_rewards(tiny_model, first):
    for number in range(first, first + PART):
        case, wrong = checked(SEED, number, tiny_model, most=1)
        assert not wrong, f"python -m tests.metamorphic --seed {SEED} --first {number} --count 1: {wrong}, {case}"


def test_every_equality_is_claimed_by_some_configurations_and_not_by_all():
    cases = [(case, case.config()) for case in (draw(SEED, number) for number in range(60))]
    claims = {e.name: sum(e.holds(case, config) for case, config in cases) for e in EQUALITIES}
    assert min(claims.values()) > 1 and max(claims.values()) == 60, claims
    assert {config.rollouts for _, config in cases} == {"none", "chain", "tree"}
