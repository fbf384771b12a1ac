"""Computes differences from GRPO of the stored results, at the tuned and at the untuned learning rate."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from trl_credit.lab.statistics import TTest, holm, paired_t

from .algorithms import ALGORITHMS


BASELINE = {name: "grpo" if algorithm.updates == 1 else "grpo_4" for name, algorithm in ALGORITHMS.items()}
UNTUNED = 0  # index of the smallest rate


class Verdict(NamedTuple):
    """An algorithm against its baseline in one setting.

    Attributes:
        test: The paired t test over the verdict's seeds.
        rate: Learning rate of the algorithm.
        holm: p, corrected for all algorithms of the same setting and the same number of updates per batch, those with a
            teacher by themselves.
    """

    test: TTest
    rate: float
    holm: float


def scores(results: Mapping[str, Any], unit: str, key: str = "area") -> tuple[np.ndarray, np.ndarray]:
    """Scores of a unit on the tuning seeds and the verdict's, shapes (rates, seeds)."""
    table = np.array(results["units"][unit][key])
    count = len(results["verdict"])
    return table[:, count:], table[:, :count]


def best_rate(results: Mapping[str, Any], unit: str, key: str = "area") -> int:
    """Index of the rate with the largest mean area, or other score, on the tuning seeds."""
    return int(scores(results, unit, key)[0].mean(1).argmax())


def verdicts(
    results: Mapping[str, Any],
    setting: str,
    *,
    updates: int = 1,
    tuned: bool = True,
    key: str = "area",
    taught: bool = False,
) -> dict[str, Verdict]:
    """Every algorithm of a setting with that many updates per batch, with a teacher or without, but the baseline.

    Both have their best rate on the tuning seeds, or both the smallest. "equal" is the area of the updates that cost as
    many forward passes as all those of the baseline, whose area it is compared with.
    """
    plain, tuned_by = ("area", "equal") if key == "equal" else (key, "area")
    tests = {}
    for name, algorithm in ALGORITHMS.items():
        unit, baseline = f"{setting}/{name}", f"{setting}/{BASELINE[name]}"
        is_of_family = algorithm.updates == updates and (algorithm.teacher is not None) == taught
        if unit in results["units"] and is_of_family and name != BASELINE[name]:
            best = best_rate(results, unit, tuned_by), best_rate(results, baseline)
            rate, other = best if tuned else (UNTUNED, UNTUNED)
            difference = scores(results, unit, key)[1][rate] - scores(results, baseline, plain)[1][other]
            tests[name] = paired_t(difference), results["rates"][rate]
    corrected = holm([1.0 if test.p is None else test.p for test, _ in tests.values()])
    return {name: Verdict(test, rate, p) for (name, (test, rate)), p in zip(tests.items(), corrected, strict=True)}


def baseline_area(results: Mapping[str, Any], setting: str, *, tuned: bool = True) -> float:
    """Mean area of GRPO over the verdict's seeds."""
    rate = best_rate(results, f"{setting}/grpo") if tuned else UNTUNED
    return float(scores(results, f"{setting}/grpo")[1][rate].mean())
