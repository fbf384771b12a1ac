"""Differences of algorithms from a baseline: pairs, families, and the answer in words."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scripts import ROOT

from trl_credit.lab.comparison.answer import answer, notes
from trl_credit.lab.comparison.report import console_answer
from trl_credit.lab.comparison.results import Results
from trl_credit.lab.comparison.scoring import compare_results
from trl_credit.lab.statistics import holm, sign_flip_p


EMBEDDED = ROOT / "docs" / "results" / "embedded" / "results.json"


def results_of(scores, *, same=(), seeds=None, **more):
    """The content of a results file: label → the areas of its runs, seed by seed; the first label is the baseline."""
    runs = [
        {"label": label, "value": None, "phase": "verdict", "seed": seed, "area": float(area), "end": 0.0}
        for label, areas in scores.items()
        for seed, area in zip((seeds or {}).get(label, range(len(areas))), areas, strict=True)
    ]
    content = {"metric": "reward", "primary": "area", "baseline": next(iter(scores)), "same_gradient": list(same)}
    return content | {"sweep": None, "runs": runs} | more


def noisy(rng, effects, *, seeds=10, shared=0.0):
    """Scores with unit noise, and noise of this size that all algorithms share in a seed."""
    common = shared * rng.normal(size=seeds)
    return {f"a{i}": effect + common + rng.normal(size=seeds) for i, effect in enumerate(effects)}


def test_a_row_is_the_paired_t_test_of_its_seeds():
    rng = np.random.default_rng(0)
    scores = noisy(rng, [0, 1, 2], seeds=7)
    rows = compare_results(results_of(scores), "area")
    assert [row.label for row in rows] == ["a1", "a2"] and all(row.paired and row.n == 7 for row in rows)
    tests = [stats.ttest_rel(scores[row.label], scores["a0"]) for row in rows]
    for row, there in zip(rows, tests, strict=True):
        interval = there.confidence_interval()
        assert (row.p, row.low, row.high) == pytest.approx((there.pvalue, interval.low, interval.high))
        assert row.mean - row.baseline == pytest.approx(row.difference)
        assert row.flip_p == sign_flip_p(scores[row.label] - scores["a0"])
    assert [row.holm for row in rows] == pytest.approx(holm([there.pvalue for there in tests]))


def test_seeds_are_paired_where_they_match():
    scores = {"base": [1.0, 2.0, 3.0], "shifted": [5.0, 1.5, 2.4], "other": [2.0, 2.5, 9.0], "one": [1.0, 7.0]}
    seeds = {"base": [0, 1, 2], "shifted": [9, 0, 1], "other": [7, 8, 9], "one": [2, 5]}
    shifted, other, one = compare_results(results_of(scores, seeds=seeds), "area")
    assert shifted.paired and shifted.n == 2 and (shifted.baseline, shifted.mean) == (1.5, pytest.approx(1.95))
    there = stats.ttest_ind(scores["other"], scores["base"], equal_var=False)
    interval = there.confidence_interval()
    assert not other.paired and other.n == 3 and other.flip_p is None
    assert (other.p, other.low, other.high) == pytest.approx((there.pvalue, interval.low, interval.high))
    assert not one.paired and one.n == 2  # one seed in common is no pair to test
    lines = notes(Results(results_of(scores, seeds=seeds)))
    assert any(line.startswith("other and one: the seeds differ") for line in lines)


def test_the_baselines_gradient_is_not_in_the_family():
    scores = noisy(np.random.default_rng(2), [0, 0.9, 0.1, 0.1], seeds=5)
    one = compare_results(results_of(scores, same=["a2", "a3"]), "area")[0]
    assert one.holm == one.p  # a family of one
    same = compare_results(results_of(scores, same=["a2", "a3"]), "area")[1]
    assert same.holm is None and same.p is not None and same.verdict == "no test"
    assert compare_results(results_of(scores), "area")[0].holm > one.p
    assert "a2" in notes(Results(results_of(scores, same=["a2"])))[0]
    alone = answer(Results(results_of({"a0": [1.0], "a1": [1.0]}, same=["a1"])))
    assert alone[0].startswith("Nothing is compared with a0")


def test_runs_of_tuning_do_not_count():
    scores = noisy(np.random.default_rng(3), [0, 1], seeds=4)
    results = results_of(scores)
    more = [run | {"phase": "tuning", "seed": 100 + run["seed"], "area": 99.0} for run in results["runs"]]
    assert compare_results(results | {"runs": results["runs"] + more}, "area") == compare_results(results, "area")


# Words


def test_the_answer_has_two_sentences():
    base, equal = [0.0, 0.05, 0.0], [0.1, -0.1, 0.05]
    scores = {"GRPO": base, "good": [1.0, 1.1, 1.2], "bad": [-1.0, -1.1, -0.9], "equal": equal}
    first, second = answer(Results(results_of(scores)))
    assert first.startswith("good (+1.083 [0.8") and "; bad (−1.017 [−1." in first
    how = "3 paired seeds, mean reward over the run, 95 % intervals, Holm's correction for 3 comparisons"
    assert first.endswith(f"is below GRPO ({how}).")
    assert second.startswith("A difference is not shown for equal (+0.000 [−")
    first, _ = answer(Results(results_of({"GRPO": base, "equal": equal})))
    assert first.startswith("No difference from GRPO is shown (3 paired seeds")


def test_the_tables_of_the_published_runs():
    results = json.loads(Path(EMBEDDED).read_text(encoding="utf-8"))
    rows = {row.label: row for row in compare_results(results, "area")}
    assert [label for label, row in rows.items() if row.verdict == "above"] == ["GRPO-λ"]
    assert (rows["S-trace"].low, rows["S-trace"].high) == pytest.approx((-0.0186, -0.0023), abs=5e-5)
    assert rows["GSPO"].holm is None and sum(row.holm is not None for row in rows.values()) == 10
    out = console_answer(Results(results))
    assert "S-trace, HA-DW and Dr. GRPO: the interval excludes 0" in out
    assert "| GRPO-λ     | above         | +0.030     | [0.027, 0.034]   | 0.0002       |" in out
