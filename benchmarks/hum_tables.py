"""Differences from GRPO on `demo_hum`, and the tables of docs/results/hum.md that show them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from fork_bed.analysis import Verdict
from fork_bed.page import cell
from hum import ENTRIES, RATES, TUNING, UNTUNED, VERDICT, Runs, Unit, area, best_rate
from pages import table

from trl_credit.lab.statistics import TTest, holm, paired_t


SINGLE = tuple(name for name, entry in ENTRIES.items() if entry.baseline == "grpo" and name != "grpo")
ROLLOUTS = tuple(name for name, entry in ENTRIES.items() if entry.baseline == "grpo_32" and name != "grpo_32")
FACTORS = {  # trace, floor, β
    "grpo": (0, 0, 0),
    "beta": (0, 0, 1),
    "floor": (0, 1, 0),
    "floor_beta": (0, 1, 1),
    "trace": (1, 0, 0),
    "trace_beta": (1, 0, 1),
    "trace_floor": (1, 1, 0),
    "grpo_lambda": (1, 1, 1),
}
Score = Callable[[dict[str, Any]], float]  # of a run


def rate_of(runs: Runs, entry: str, *, tuned: bool) -> str:
    """The learning rate of an entry: its best one on the tuning seeds, or the smallest."""
    return best_rate(runs, entry) if tuned else UNTUNED


def scores(runs: Runs, entry: str, *, tuned: bool, score: Score = area) -> np.ndarray:
    """The scores of an entry on the seeds of the verdict, shape (seeds,)."""
    rate = rate_of(runs, entry, tuned=tuned)
    return np.array([score(runs[Unit(entry, rate, seed)]) for seed in VERDICT])


def against_grpo(runs: Runs, entry: str, *, tuned: bool, score: Score | None = None) -> TTest:
    """The paired test of an entry against GRPO, each at its own rate. The score is the area over equally many updates,
    unless another one is given."""
    score = score or area_score(runs, entry)
    own, base = (scores(runs, name, tuned=tuned, score=score) for name in (entry, ENTRIES[entry].baseline))
    return paired_t(own - base)


def area_score(runs: Runs, entry: str) -> Score:
    """The area over the updates that the runs of an entry and its baseline have."""
    return rollout_score(runs, equal="updates") if entry in ROLLOUTS else area


def verdicts(runs: Runs, entries: tuple[str, ...], *, tuned: bool, score: Score | None = None) -> dict[str, Verdict]:
    """The tests of several entries with Holm's correction over them."""
    tests = {name: against_grpo(runs, name, tuned=tuned, score=score) for name in entries}
    adjusted = holm([test.p for test in tests.values()])
    return {
        name: Verdict(test, float(rate_of(runs, name, tuned=tuned)), p)
        for (name, test), p in zip(tests.items(), adjusted, strict=True)
    }


def third(number: int) -> Score:
    """Mean reward of a third of the run, by its number from 0."""
    return lambda run: float(np.mean(np.array_split(run["reward"], 3)[number]))


def main_effect(scores_of: Mapping[str, np.ndarray], factor: int) -> TTest:
    """The mean of the four variants with a part of GRPO-λ minus that of the four without it, paired by seed.

    `scores_of` has the scores of each variant of `FACTORS`, shape (seeds,).
    """
    signed = [(2 * levels[factor] - 1) * scores_of[name] for name, levels in FACTORS.items()]
    return paired_t(np.sum(signed, axis=0) / 4)


def factorial_table(columns: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """What each part of GRPO-λ's preset adds, a column for each head; Holm's correction is over the three parts."""
    cells = []
    for scores_of in columns.values():
        effects = [main_effect(scores_of, factor) for factor in range(3)]
        adjusted = holm([effect.p for effect in effects])
        cells.append([cell(Verdict(effect, 0.0, p)) for effect, p in zip(effects, adjusted, strict=True)])
    parts = ("trace, λ = 0.99", "floor −0.1", "β = 0.04")
    rows = [[part, *effects] for part, *effects in zip(parts, *cells, strict=True)]
    return table(["main effect on the area", *columns], rows)


def hum_factorial(runs: Runs) -> str:
    """The factorial on `demo_hum`."""
    heads = {"rate tuned": True, "small rate": False}
    return factorial_table({h: {name: scores(runs, name, tuned=t) for name in FACTORS} for h, t in heads.items()})


def stages_table(runs: Runs) -> str:
    """The differences in each third of the run at the smallest rate."""
    thirds = [verdicts(runs, SINGLE, tuned=False, score=third(number)) for number in range(3)]
    rows = [[ENTRIES[name].label, *(cell(found[name]) for found in thirds)] for name in SINGLE]
    return table([f"reward minus GRPO's at {UNTUNED}", "updates 1–20", "21–40", "41–60"], rows)


def rates_table(runs: Runs) -> str:
    """Mean area on the tuning seeds by rate; the best is bold."""
    rows = []
    for name, entry in ENTRIES.items():
        means = {rate: np.mean([area(runs[Unit(name, rate, seed)]) for seed in TUNING]) for rate in RATES}
        updates = len(runs[Unit(name, RATES[0], TUNING[0])]["reward"])
        label = entry.label + (f", 32 responses, {updates} updates" if entry.baseline == "grpo_32" else "")
        best = best_rate(runs, name)
        rows.append([label, *(f"**{mean:.3f}**" if rate == best else f"{mean:.3f}" for rate, mean in means.items())])
    return table(["area on the tuning seeds", *RATES], rows)


def rollout_score(runs: Runs, *, equal: str) -> Score:
    """The area over equally many updates or generated tokens, for the runs with 32 responses per update."""
    found = [run for unit, run in runs.items() if ENTRIES[unit.entry].baseline == "grpo_32"]
    if equal == "updates":
        updates = min(len(run["reward"]) for run in found)
        return lambda run: area(run, updates)
    limit = min(run["generated"][-1] for run in found)
    return lambda run: _area_over_tokens(run, limit)


def _area_over_tokens(run: dict[str, Any], limit: float) -> float:
    """Mean reward up to `limit` generated tokens: an update counts by its tokens."""
    ends = np.minimum(run["generated"], limit)
    return float(np.sum(np.diff(ends, prepend=0.0) * run["reward"]) / limit)


def rollouts_table(runs: Runs) -> str:
    """VinePPO and SPO-chain at equal updates and at equal generated tokens."""
    rows = []
    for name in ROLLOUTS:
        cells = [
            cell(verdicts(runs, ROLLOUTS, tuned=tuned, score=rollout_score(runs, equal=equal))[name])
            for equal in ("updates", "tokens")
            for tuned in (True, False)
        ]
        rows.append([ENTRIES[name].label, *cells, f"{cost(runs, name):.1f}×"])
    head = [f"equal {axis}, {rate}" for axis in ("updates", "tokens") for rate in ("tuned", "small rate")]
    return table(["area minus GRPO's, `demo_hum`", *head, "tokens per update"], rows)


def cost(runs: Runs, entry: str) -> float:
    """Generated tokens per update over GRPO's, on the seeds of the verdict at the tuned rates."""

    def per_update(name: str) -> float:
        found = [runs[Unit(name, best_rate(runs, name), seed)] for seed in VERDICT]
        return float(np.mean([run["generated"][-1] / len(run["generated"]) for run in found]))

    return per_update(entry) / per_update(ENTRIES[entry].baseline)
