"""`trl-credit eval`: the compared samples and their report, how many problems a difference needs, and verdicts."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import sample_file, save_noisy_model, stored

from trl_credit.lab.evaluation import compare_models, runner
from trl_credit.lab.evaluation.differences import needed_problems
from trl_credit.lab.evaluation.judging import judge
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


# Verdicts: a custom reward on a file of problems, permissive and strict answers, roles of knights and knaves


FLAGS = "--protocol custom --samples 2 --temperature 1 --max_new_tokens 6 --output_dir out --quiet".split()
REWARD = """\
import os
def right(prompts, completions, unit, **kwargs):
    assert all(p.startswith("1+") for p in prompts) and set(unit) == {"m", "s"} and set(kwargs) == {"tests"}
    return [float(u == os.environ["UNIT"]) for u in unit]
async def slow(completions, **kwargs):
    return [True] * len(completions)
def half(completions, **kwargs):
    return [0.5] * len(completions)
def ids(completions, completion_ids, **kwargs):
    return [1.0] * len(completions)
def column(completions, length, **kwargs):
    return [1.0] * len(completions)
def chat(completions, **kwargs):
    assert all(message["role"] == "assistant" for (message,) in completions)
    return [message["content"] == "2" for (message,) in completions]
"""


@pytest.fixture
def judged(here, monkeypatch, command_said):
    monkeypatch.setenv("UNIT", "m")
    Path("mine.py").write_text(REWARD)
    rows = [{"prompt": f"1+{i}=", "unit": "ms"[i % 2], "tests": [{"in": i}]} for i in range(4)]
    Path("mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return lambda *words: command_said("eval", *FLAGS, *words)


def score() -> float:
    (row,) = json.loads(Path("out/evaluation.json").read_text())["rows"]
    return row["metrics"]["pass@1"]["value"]


def test_a_custom_reward_judges_a_custom_file(judged):
    code, out, _ = judged("--reward", "mine.py:right", "--sets", "mine.jsonl")
    assert code == 0 and "mine pass@1" in out and score() == 0.5
    header = json.loads(sample_file("out").read_text().splitlines()[0])
    assert header["reward"] == "mine.py:right" and header["reward_source"].startswith("mine.py:right ")
    code, _, error = judged("--reward", "mine.py:slow", "--sets", "mine.jsonl")
    assert code == 2 and "holds samples with reward_source 'mine.py:right " in error and "--rescore --reward" in error
    assert judged("--reward", "mine.py:slow", "--rescore")[0] == 0 and score() == 1.0  # a coroutine
    Path("mine.py").write_text(REWARD.replace("[True]", "[False]"))
    assert judged("--rescore", "--trust_run")[0] == 0 and score() == 0.0  # by the present file


@pytest.mark.parametrize(("name", "words"), [("half", "gave 0.5"), ("ids", "'completion_ids'"), ("column", "'length'")])
def test_an_unusable_reward_is_refused_in_one_line(judged, name, words):
    code, _, error = judged("--reward", f"mine.py:{name}", "--sets", "mine.jsonl")
    assert code == 2 and words in error.strip().splitlines()[-1] and "Nothing was trained" not in error
    assert not Path("out/evaluation.md").exists()


def test_verdicts_of_messages_roles_and_answers(judged):
    def verdicts(reward, texts, references, problems=("",) * 4):
        pairs = list(zip(texts, references, problems, strict=False))
        lines = [{"reference": gold, "problem": p, "samples": [{"text": text}]} for text, gold, p in pairs]
        judge(reward, lines)
        return [line["samples"][0] for line in lines]

    messages = [{"prompt": [{"role": "user", "content": "1+1="}]}] * 2
    assert [verdict["correct"] for verdict in verdicts("mine.py:chat", ["2", "3"], messages)] == [True, False]
    reference = {"answer": "", "names": ["Zoey", "Ethan"], "truth": [True, False]}
    texts = [
        "<answer>(1) Zoey is a knight (2) Ethan is a knave</answer>",
        "<answer>(1) Zoey is a knave (2) Ethan is a knave</answer>",
        "<answer>Ethan is a knave, Zoey is a knave</answer>",
        "no idea",
    ]
    right, *wrong = verdicts("knights_and_knaves", texts, [reference] * 4)
    assert right["correct"] and not any(verdict["correct"] for verdict in wrong)
    assert wrong[0]["answer"] == wrong[1]["answer"] is not None and wrong[2]["answer"] is None
    problems = ["Compute $17\\cdot 23$.", "Compute $17\\cdot 23$.", "Expand $(x+1)^2$.", "Expand $(x+1)^2$."]
    texts = ["\\boxed{391}", "\\boxed{23*17}", "\\boxed{(1+x)^2}", "\\boxed{2x+1+x^2}"]
    references = [{"answer": answer} for answer in ("391", "391", "x^2+2x+1", "x^2+2x+1")]
    read = verdicts("accuracy", texts, references, problems)
    assert [verdict["correct"] for verdict in read] == [True] * 4
    assert [verdict["correct_strict"] for verdict in read] == [True, False, False, True]
