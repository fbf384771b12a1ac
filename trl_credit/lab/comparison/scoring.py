"""The scores of runs, and the differences of algorithms from a baseline with their intervals and tests.

Everything here reads the content of `results.json` alone, so that a table can be made again from the file.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..statistics import MAX_EXACT, holm, paired_t, sign_flip_p, welch_t
from .grid import TUNING, VERDICT
from .groups import Group, common_axes


ALPHA = 0.05  # of a verdict, after Holm's correction
# key of a score in `results.json` → what it is
SCORES = {
    "area": "mean {metric} over the run",
    "end": "{metric} at the end",
    "prompts": "{metric} at equal prompts",
    "generated": "{metric} at equal generated tokens",
}


class ScoreRow(NamedTuple):
    """An algorithm against the baseline.

    Attributes:
        label: The algorithm.
        baseline: Mean score of the baseline, over the seeds that are compared.
        mean: Mean score of the algorithm, over the seeds that are compared.
        difference: `mean` − `baseline`.
        low, high: 95 % t interval of the difference; `None` for fewer than two runs, or differences without spread.
        p: p-value of the t test, `None` as above.
        flip_p: p-value of the sign-flip test where all patterns are enumerated, else `None`.
        holm: p after Holm's correction over the family; `None` without p, and for the baseline's own gradient.
        n: Number of seeds that are compared, or of runs of the smaller sample where they are not paired.
        paired: Whether the scores are paired by seed.
    """

    label: str
    baseline: float
    mean: float
    difference: float
    low: float | None
    high: float | None
    p: float | None
    flip_p: float | None
    holm: float | None
    n: int
    paired: bool

    @property
    def verdict(self) -> str:
        """What the corrected test says: "above", "below" or "not shown"; "no test" without one."""
        if self.holm is None:
            return "no test"
        if self.holm > ALPHA:
            return "not shown"
        return "above" if self.difference > 0 else "below"


def scored_runs(groups: Sequence[Group], *, phase: str = VERDICT) -> list[dict[str, Any]]:
    """The entries of "runs" in `results.json`, scored at the points that all of these groups have reached."""
    if not groups:
        return []
    every = [(group, run) for group in groups for run in group.runs]
    limits = {axis: min(run.totals[axis] for _, run in every) for axis in common_axes(groups)}
    equal = ("prompts", "generated")
    return [
        {"label": group.label, "value": group.value, "phase": phase, "seed": run.seed}
        | {"area": run.mean("steps", limits["steps"]), "end": run.at("steps", limits["steps"])}
        | {axis: run.at(axis, limits[axis]) if axis in limits else None for axis in equal}
        | {"totals": {axis: run.totals.get(axis) for axis in ("steps", *equal, "trained")}}
        for group, run in every
    ]


def compare_results(results: dict[str, Any], key: str) -> list[ScoreRow]:
    """The rows of a table from the content of `results.json`, one for each algorithm but the baseline, in their order.

    Scores are paired by seed where an algorithm and the baseline have at least two seeds in common, or the same ones;
    other seeds do not count then. Without common seeds the test is Welch's. Holm's correction is over the algorithms
    that do not have the baseline's gradient.

    Args:
        results (`dict`):
            With the fields "runs", "baseline" and "same_gradient" of `results.json`. Runs of tuning do not count.
        key (`str`):
            "area", "end", "prompts" or "generated".

    Raises:
        ValueError: an unknown key, or no run of the baseline has this score.
    """
    if key not in SCORES:
        raise ValueError(f"there is no score {key!r}: choose among {', '.join(SCORES)}")
    scores: dict[str, dict[int, float]] = {}
    for run in results["runs"]:
        if run["phase"] != TUNING and run[key] is not None:
            scores.setdefault(run["label"], {})[run["seed"]] = run[key]
    base = scores.pop(results["baseline"], None)
    if base is None:
        raise ValueError(f"no run of the baseline {results['baseline']} has the score {key!r}")
    rows = [_row(label, own, base) for label, own in scores.items()]
    family = [row for row in rows if row.p is not None and row.label not in results["same_gradient"]]
    adjusted = dict(zip([row.label for row in family], holm([row.p for row in family]), strict=True))
    return [row._replace(holm=adjusted.get(row.label)) for row in rows]


def _row(label: str, own: dict[int, float], base: dict[int, float]) -> ScoreRow:
    common = sorted(own.keys() & base.keys())
    paired = len(common) > 1 or own.keys() == base.keys()
    mine, theirs = ([scores[seed] for seed in (common if paired else scores)] for scores in (own, base))
    differences = np.subtract(mine, theirs) if paired else None
    test = paired_t(differences) if paired else welch_t(theirs, mine)
    # without spread it would be small for rounding alone
    is_exact = paired and test.p is not None and len(common) <= MAX_EXACT
    flip_p = sign_flip_p(differences) if is_exact else None
    means = float(np.mean(theirs)), float(np.mean(mine))
    return ScoreRow(label, *means, test.value, test.low, test.high, test.p, flip_p, None, test.n, paired)
