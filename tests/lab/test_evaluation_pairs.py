"""`trl-credit eval A B`: which samples are found and compared, and the report."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import sample_file, save_noisy_model, stored
from transformers import AutoTokenizer

from trl_credit.demo import demo_model_path
from trl_credit.lab.evaluation import compare_models, runner
from trl_credit.lab.evaluation.power import Spread, needed_samples
from trl_credit.lab.evaluation.problems import load_problems
from trl_credit.lab.evaluation.sample_store import read_samples
from trl_credit.lab.evaluation.scores import pass_at_k
from trl_credit.lab.statistics import holm, paired_difference


@pytest.fixture
def call(tmp_path, monkeypatch, command_said):
    """Runs `trl-credit eval` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return partial(command_said, "eval")


def draws(seed: int, chance: float, problems: int = 30, samples: int = 8) -> list[list[bool]]:
    return (np.random.default_rng(seed).random((problems, samples)) < chance).tolist()


def rows(folder="evaluation") -> list[dict]:
    return json.loads((Path(folder) / "differences.json").read_text())["rows"]


def test_stored_samples_of_two_folders(call, tmp_path):
    first, second = draws(0, 0.4), draws(1, 0.6)
    metrics = ["pass@1", "pass@4", "maj@8"]
    stored("a", "base", first, metrics=metrics)
    stored("runs/b/evaluation", "trained", second, metrics=metrics)
    code, out, err = call("a", "runs/b")  # an evaluation's folder, and a run's
    assert (code, err) == (0, "")
    found = {row["metric"]: row for row in rows()}
    assert list(found) == metrics
    for k, metric in ((1, "pass@1"), (4, "pass@4")):
        scores = [[pass_at_k(8, sum(v), k) for v in verdicts] for verdicts in (first, second)]
        by_hand, row = paired_difference(*scores), found[metric]
        assert row["difference"] == by_hand.value and row["p"] == by_hand.p
        assert (row["low"], row["high"], row["interval"]) == by_hand.interval
        assert (row["better"], row["worse"], row["same"]) == by_hand[3:]
        assert row["values"] == pytest.approx([np.mean(s) for s in scores], abs=1e-12)
        samples = needed_samples(by_hand.value, Spread(first, second, k), 30)
        assert row["needed_samples"] == (None if samples == float("inf") else samples)
    assert found["maj@8"]["needed_samples"] is None and found["maj@8"]["needed_problems"] > 1
    assert [row["p_holm"] for row in rows()] == holm([row["p"] for row in rows()])
    text = Path("evaluation/differences.md").read_text()
    assert text in out and "for the 3 lines together" in text and "| trained | base     | demo (demo) | pass@1 " in text
    assert {p.name for p in Path("evaluation").iterdir()} == {"differences.md", "differences.json"}
    assert str(tmp_path) not in text + Path("evaluation/differences.json").read_text()


def test_models_are_compared_with_the_first(call):
    folders = [stored(name, name, draws(i, 0.3 + 0.1 * i)) for i, name in enumerate("abc")]
    assert call(*folders)[0] == 0
    assert [(row["baseline"], row["model"]) for row in rows()] == [("a", "b"), ("a", "c")]
    call("a", "b")
    (row,) = rows()
    assert row["p_holm"] == row["p"] and "Holm" not in Path("evaluation/differences.md").read_text()


def test_models_of_one_name_get_different_labels(call):
    stored("x/evaluation", "checkpoint-9", draws(0, 0.3))
    stored("y/evaluation", "checkpoint-9", draws(1, 0.4))
    assert call("x", "y/evaluation/samples/checkpoint-9")[0] == 0
    assert (rows()[0]["baseline"], rows()[0]["model"]) == ("x", "y/evaluation/samples/checkpoint-9")


def test_no_difference_seen_is_reported(call):
    same = draws(0, 0.5)
    stored("a", "a", same)
    stored("b", "b", same)
    code, out, _ = call("a", "b")
    assert code == 0 and rows()[0]["p"] == 1.0 and rows()[0]["interval"] == "wilson"
    assert "| 0.0 [−11.4, +11.4] W | 1.000 | 0, 0, 30 " in out and "This does not show that they are equal" in out
    stored("c", "c", [[True]])
    stored("d", "d", [[False]])
    code, out, _ = call("c", "d")  # one problem
    assert code == 0 and "| −100.0 [−100.0, +58.7] W | 1.000 | 0, 1, 0 " in out


def test_different_numbers_of_samples(call):
    stored("a", "a", draws(0, 0.4, samples=16), metrics=["pass@1", "pass@4", "best@4", "pass@16"])
    stored("b", "b", draws(1, 0.5, samples=4), label="demo, changed", metrics=["pass@1", "pass@4", "best@4"])
    code, out, _ = call("a", "b")
    assert code == 0 and [row["metric"] for row in rows()] == ["pass@1", "pass@4"]  # best@4 depends on the number
    assert rows()[0]["samples"] == [16, 4] and "| 16 and 4 " in out
    assert rows()[0]["needed_samples"] and rows()[1]["needed_samples"] is None  # pass@4 needs 8
    assert call("a", "b", "--metrics", "pass@2")[0] == 0 and rows()[0]["metric"] == "pass@2"
    assert "best@2 depends on the number of samples, which is 16 and 4" in call("a", "b", "--metrics", "best@2")[2]
    assert "pass@8 needs 8 samples per problem, and demo (demo) has 4" in call("a", "b", "--metrics", "pass@8")[2]


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
def test_models_are_sampled_once_and_compared_from_what_is_there(call, monkeypatch):
    noisy = save_noisy_model("noisy", 0.3)
    flags = ["--protocol", "demo", "--metrics", "pass@1", "--samples", 4, "--max_problems", 24, "--quiet"]
    assert call("noisy", *flags)[0] == 0  # one model: its own folder
    own = sample_file("noisy/evaluation")
    assert call("demo", *flags)[0] == 0
    code, out, err = call("demo", "noisy", *flags)
    assert (code, err) == (0, "") and "| noisy | embedded model | demo (demo) | pass@1 " in out
    assert "mean length (tokens)" in out  # the table of the evaluation as well
    assert Path("evaluation/samples/noisy", own.name).read_bytes() == own.read_bytes()
    seen = Path("evaluation/differences.json").read_bytes()
    monkeypatch.setattr(runner, "load_sampler", None)  # loading a model now fails
    assert call("demo", "noisy", *flags)[0] == 0
    assert call("noisy", *flags, "--output_dir", "elsewhere")[0] == 0  # taken from the model's own folder
    code, out, _ = call("demo", "noisy")
    assert code == 0 and Path("evaluation/differences.json").read_bytes() == seen
    assert "mean length (tokens)" not in out
    assert len({line["prompt"] for line in read_samples(own)[1]}) == 24
    # samples of other weights do not count
    noisy.lm_head.weight.data += 0.01
    noisy.save_pretrained("noisy")
    code, _, err = call("demo", "noisy")
    assert code == 2 and "there are no stored samples of 'noisy' as it is now: give a --protocol" in err
    with pytest.raises(TypeError):  # they are generated again, whatever its own folder has
        call("noisy", *flags, "--output_dir", "third")


def test_comparing_in_python(tmp_path):
    first, second = draws(0, 0.3), draws(1, 0.7)
    a, b = stored(tmp_path / "a", "m", first), stored(tmp_path / "b", "n", second)
    (row,) = compare_models([str(a), str(b)], output_dir=tmp_path / "out")
    assert row["difference"] > 0.3 and row["p"] < 0.001 and row["needed_problems"] < 30
    assert row == rows(tmp_path / "out")[0]


def test_the_digest_of_a_prompt_does_not_depend_on_the_tokenizer(tmp_path):
    (tmp_path / "s.jsonl").write_text(json.dumps({"problem": "1+2", "answer": "3"}))
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())

    def digest(style):
        return load_problems(str(tmp_path / "s.jsonl"), tokenizer, style=style)[0].digest

    plain = [digest(style) for style in ("boxed", "qwen_math", "plain")]
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}"
    assert [digest(style) for style in ("boxed", "qwen_math", "plain")] == plain and len(set(plain)) == 3
