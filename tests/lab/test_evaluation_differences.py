"""`trl-credit eval A B`: the compared samples, the report, and how many problems a difference needs."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import save_noisy_model, stored

from trl_credit.lab.evaluation import compare_models, runner
from trl_credit.lab.evaluation.differences import needed_problems
from trl_credit.lab.evaluation.scores import pass_at_k
from trl_credit.lab.statistics import holm, paired_difference


FACTOR = (1.959963984540054 + 0.8416212335729143) ** 2


@pytest.fixture
def call(here, command_said):
    """Runs `trl-credit eval` in an empty folder."""
    return partial(command_said, "eval")


def draws(seed: int, chance: float, problems: int = 30, samples: int = 8) -> list[list[bool]]:
    return (np.random.default_rng(seed).random((problems, samples)) < chance).tolist()


def rows(folder="evaluation") -> list[dict]:
    return json.loads((Path(folder) / "differences.json").read_text())["rows"]


def test_stored_samples_of_folders(call, tmp_path):
    first, second = draws(0, 0.4), draws(1, 0.6)
    metrics = ["pass@1", "pass@4", "maj@8"]
    stored("a", "base", first, metrics=metrics)
    stored("runs/b/evaluation", "trained", second, metrics=metrics)
    code, out, err = call("a", "runs/b")  # an evaluation's folder, and a run's
    assert (code, err) == (0, "")
    by_metric = {row["metric"]: row for row in rows()}
    assert list(by_metric) == metrics
    scores = [[pass_at_k(8, sum(v), 4) for v in verdicts] for verdicts in (first, second)]
    by_hand, row = paired_difference(*scores), by_metric["pass@4"]
    assert {name: row[name] for name in by_hand._fields} == by_hand._asdict()
    assert row["values"] == pytest.approx([np.mean(s) for s in scores], abs=1e-12)
    assert by_metric["maj@8"]["needed_problems"] > 1
    assert [row["p_holm"] for row in rows()] == holm([row["p"] for row in rows()])
    text = Path("evaluation/differences.md").read_text()
    assert text in out and "for the 3 lines together" in text and "| trained | base     | demo (demo) | pass@1 " in text
    assert text.startswith("* trained − base, pass@1 on demo: +")
    assert {p.name for p in Path("evaluation").iterdir()} == {"differences.md", "differences.json"}
    assert str(tmp_path) not in text + Path("evaluation/differences.json").read_text()
    (row,) = compare_models(["a", "runs/b"], output_dir="out", metrics=["pass@1"])
    assert row == rows("out")[0] and row["p_holm"] == row["p"] and "Holm" not in Path("out/differences.md").read_text()
    stored("c/evaluation", "base", draws(2, 0.5))  # the label of the first
    assert call("a", "runs/b", "c/evaluation/samples/base", "--metrics", "pass@1")[0] == 0
    labels = [("a", "runs/b"), ("a", "c/evaluation/samples/base")]
    assert [(row["baseline"], row["model"]) for row in rows()] == labels


def test_no_difference_seen_is_reported(call):
    same = draws(0, 0.5)
    stored("a", "a", same)
    stored("b", "b", same)
    code, out, _ = call("a", "b")
    assert code == 0 and rows()[0]["p"] == 1.0 and rows()[0]["interval"] == "wilson"
    assert "| 0.0 [−11.4, +11.4] W | 1.000 | 0, 0, 30 " in out and "This does not show that they are equal" in out


def test_different_numbers_of_samples(call):
    stored("a", "a", draws(0, 0.4, samples=16), metrics=["pass@1", "pass@4", "best@4", "pass@16"])
    stored("b", "b", draws(1, 0.5, samples=4), label="demo, changed", metrics=["pass@1", "pass@4", "best@4"])
    code, out, _ = call("a", "b")
    assert code == 0 and [row["metric"] for row in rows()] == ["pass@1", "pass@4"]  # best@4 depends on the number
    assert rows()[0]["samples"] == [16, 4] and "| 16 and 4 " in out
    assert call("a", "b", "--metrics", "pass@2")[0] == 0 and rows()[0]["metric"] == "pass@2"
    for metric, words in (("best@2", "need equal numbers"), ("pass@8", "pass@8 needs 8 samples")):
        code, _, error = call("a", "b", "--metrics", metric)
        assert code == 2 and words in error


def test_problems_and_sets_of_one_model_are_left_out_and_named(call):
    verdicts = draws(0, 0.5, problems=6)
    stored("a", "a", verdicts, ids=list("abcdef"))
    stored("a", "a", verdicts, set_name="other")
    stored("b", "b", verdicts, ids=list("fxedyz"))
    code, out, _ = call("a", "b")
    assert code == 0 and rows()[0]["problems"] == 3
    # by id, not by place: f, e and d have the verdicts of the places 0, 2 and 3
    expected = [sum(verdicts[i]) / 8 for i in (3, 4, 5)], [sum(verdicts[i]) / 8 for i in (3, 2, 0)]
    assert rows()[0]["values"] == pytest.approx([np.mean(e) for e in expected])
    assert "Left out: only a has other (demo)." in out
    assert "Left out: 6 problems of demo that only one of a and b has." in out
    assert call("a", "b", "--sets", "demo")[1].count("Left out") == 1


@pytest.mark.slow
def test_models_are_sampled_once(call, monkeypatch):
    save_noisy_model("noisy", 0.3)
    flags = ["--protocol", "demo", "--metrics", "pass@1", "--samples", 4, "--max_problems", 24, "--quiet"]
    code, out, err = call("demo", "noisy", *flags)
    assert (code, err) == (0, "") and "| noisy | embedded model | demo (demo) | pass@1 " in out
    assert "mean length (tokens)" in out  # the table of the evaluation as well
    seen = Path("evaluation/differences.json").read_bytes()
    monkeypatch.setattr(runner, "load_sampler", None)  # loading a model now fails
    assert call("demo", "noisy", *flags)[0] == 0
    code, out, _ = call("evaluation/samples/embedded_model", "evaluation/samples/noisy")
    assert code == 0 and Path("evaluation/differences.json").read_bytes() == seen
    assert "mean length (tokens)" not in out
    code, _, err = call("demo", "noisy")  # neither is a run
    assert code == 2 and "give a --protocol" in err


def test_the_needed_number_of_problems_is_that_of_the_normal_approximation():
    rng = np.random.default_rng(8)
    chance = rng.uniform(0.2, 0.6, 20_000)[:, None]
    # the second model is better by 0.1: by −0.05 or 0.25 on each problem
    other = chance + 0.1 + rng.choice([-0.15, 0.15], 20_000)[:, None]
    first, second = (rng.random((20_000, 4)) < c for c in (chance, other))
    problems = needed_problems(second.mean(1) - first.mean(1) - (second.mean() - first.mean()) + 0.1)
    # the variance between problems, and of one sample of each model: the mean of p(1 − p) + q(1 − q)
    assert problems == pytest.approx(FACTOR * (0.0225 + 0.4342 / 4) / 0.01, rel=0.05)
    assert needed_problems(np.zeros(9)) is None and needed_problems(np.array([0.3])) is None
    assert needed_problems(np.array([0.5, 0.5])) == 2
