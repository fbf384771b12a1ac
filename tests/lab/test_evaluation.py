"""Evaluation of the embedded model: files against recomputation, interruptions, refusals, scores, tables."""

import json
from fractions import Fraction
from itertools import combinations, product
from math import comb
from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import SMALL, run, sample_file, save_noisy_model

from trl_credit.demo import demo_dataset
from trl_credit.lab.evaluation import evaluate, rescore
from trl_credit.lab.evaluation.problems import ProblemOptions, load_problems
from trl_credit.lab.evaluation.runner import sample_lines
from trl_credit.lab.evaluation.sample_store import SampleFile, read_samples
from trl_credit.lab.evaluation.samplers import weights_fingerprint
from trl_credit.lab.evaluation.score_report import score_markdown
from trl_credit.lab.evaluation.scores import majority, normal_form, pass_at_k, problem_score, score_row


def test_scores_are_those_of_the_samples_and_are_judged_again_without_a_model(tmp_path):
    (row,) = run(tmp_path)
    path = sample_file(tmp_path)
    file = read_samples(path)
    header, lines = file.header, file.lines
    data = demo_dataset(24, seed=1_000_003)
    assert [line["reference"]["answer"] for line in lines] == data["answer"] and header["problems"] == 24
    for line, answer in zip(lines, data["answer"], strict=True):
        texts = [s["text"] for s in line["samples"]]
        assert [s["correct"] for s in line["samples"]] == [text[-2:] == f"={answer}" for text in texts]
        lengths = [len(s["text"]) + (not s["truncated"]) for s in line["samples"]]
        # a special token inside a response has no text
        assert all(0 <= s["length"] - n <= 2 for s, n in zip(line["samples"], lengths, strict=True))
    answers = [([s["answer"] for s in line["samples"]], [s["correct"] for s in line["samples"]]) for line in lines]
    right = [sum(correct) for _, correct in answers]
    by_hand = dict.fromkeys(("pass@1", "avg@4"), [c / 4 for c in right])
    by_hand |= {"pass@2": [pass_at_k(4, c, 2) for c in right], "maj@4": [majority(*votes) for votes in answers]}
    assert row["metrics"].keys() == by_hand.keys() and 0.15 < row["metrics"]["pass@1"]["value"] < 0.5
    for metric, scores in by_hand.items():
        assert row["metrics"][metric]["value"] == pytest.approx(np.mean(scores), abs=1e-12)
    samples = [s for line in lines for s in line["samples"]]
    assert row["mean_length_tokens"] == np.mean([s["length"] for s in samples])
    assert row["truncated_share"] == np.mean([s["truncated"] for s in samples])
    assert json.loads((tmp_path / "evaluation.json").read_text()) == {"version": 1, "rows": [row]}
    assert (tmp_path / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    before = path.read_bytes()
    (other,) = run(tmp_path, changes={"samples": 4, "metrics": ["pass@3"]})  # other metrics need no samples
    assert list(other["metrics"]) == ["pass@3"] and path.read_bytes() == before
    for sample in samples:
        sample |= {"correct": False, "answer": None}
    header["model"] = "no/such-model"
    file.write()
    assert rescore(tmp_path) == [row | {"model": "no/such-model"}]
    assert list(rescore(tmp_path, metrics=["pass@4"])[0]["metrics"]) == ["pass@4"]
    with pytest.raises(ValueError, match="pass@5 needs 5 samples per problem"):
        rescore(tmp_path, metrics=["pass@5"])


@pytest.mark.slow
def test_missing_lines_are_generated_and_other_samples_are_refused(tmp_path):
    run(tmp_path)
    path = sample_file(tmp_path)
    whole, before = path.read_bytes(), path.stat().st_mtime_ns
    lines = whole.splitlines(keepends=True)
    run(tmp_path)
    assert path.stat().st_mtime_ns == before  # nothing was left to do
    for count in (19, 17, 1):  # within the second chunk, after the first, after the header
        path.write_bytes(b"".join(lines[:count]))
        run(tmp_path)
        assert path.read_bytes() == whole
    for option in ({"changes": {**SMALL, "temperature": 0.5}}, {"seed": 1}, {"max_problems": 25}):
        with pytest.raises(ValueError, match="holds samples with .*another --output_dir, or --overwrite"):
            run(tmp_path, **option)
    for damaged in (b"{broken", b"{}", b"[" * 50_000, b"\xff"):
        path.write_bytes(b"".join(lines[:3]) + damaged + b"\n" + b"".join(lines[4:]))
        with pytest.raises(ValueError, match="line 4 of .* is damaged .*--overwrite"):
            run(tmp_path)
    run(tmp_path, overwrite=True)
    assert path.read_bytes() == whole


def test_an_overwritten_checkpoint_is_noticed(here):
    model = save_noisy_model("checkpoint-1", 0.0)
    run("out", models=["checkpoint-1"], max_problems=2)
    model.lm_head.weight.data += 0.01
    model.save_pretrained("checkpoint-1")
    with pytest.raises(ValueError, match="holds samples with weights"):
        run("out", models=["checkpoint-1"], max_problems=2)
    file = Path("model.safetensors")
    file.write_bytes(bytes(40 << 20))  # which is read in 64 places
    before = weights_fingerprint(".")
    with file.open("r+b") as stream:
        stream.seek(31 * ((40 << 20) - (1 << 16)) // 63 + 100)
        stream.write(b"x")
    assert weights_fingerprint(".") != before


def test_models_and_sets_are_checked_before_the_first_evaluation(here):
    Path("nothing").mkdir()
    for model in ("./no_such", "nothing"):
        with pytest.raises(OSError, match=f"--models '{model}'"):
            run("out", models=["demo", model])
    for file in ("a/test.jsonl", "b/test.jsonl"):
        Path(file).parent.mkdir()
        Path(file).write_text(json.dumps({"problem": "1+1", "answer": "2"}))
    changes = {"samples": 1, "temperature": 0.0, "max_new_tokens": 2}
    with pytest.raises(ValueError, match="--sets a/test.jsonl and b/test.jsonl have one name .*: rename a file"):
        evaluate(["demo"], ["a/test.jsonl", "b/test.jsonl"], protocols=["custom"], output_dir="out", changes=changes)
    assert not Path("out").exists()


# The table: levels, intervals, strict columns, hostile text


HEADER = {"version": 1, "model": "m", "revision": None, "protocol": "p", "samples": 1, "temperature": 1.0, "seed": 0}
HEADER |= {"metrics": ["pass@1"], "reward": "accuracy", "set": "s"}


def test_a_file_with_levels_and_hostile_output(tmp_path, sampler):
    rows = [{"problem": f"{i}+1=", "answer": str(i + 1), "level": f"Level {1 + i % 5}"} for i in range(8)]
    (tmp_path / "math500.jsonl").write_text("\n".join(map(json.dumps, rows)))
    problems = load_problems(str(tmp_path / "math500.jsonl"), sampler.tokenizer, ProblemOptions("plain"))
    outputs = [f"\\boxed{{{i + 1}}}" if i % 2 else "\ud800|<b>`\n\x00\u2028" * 9 for i in range(8)]
    header = {**HEADER, "model": "a|b\n<i>_x_</i>$y$", "set": "math500", "problems": 8}
    samples = [[{"text": text, "length": 1, "truncated": False}] for text in outputs]
    lines = sample_lines(header, problems, samples)
    assert [line["samples"][0]["correct"] for line in lines] == [i % 2 == 1 for i in range(8)]
    path = tmp_path / "samples" / "m" / "s.jsonl"
    SampleFile(path, header, lines).write()
    assert path.read_bytes().count(b"\n") == 9
    (row,) = rescore(tmp_path)
    # levels 1 2 3 4 5 1 2 3, every second one right
    parts = {level: (part["problems"], part["metrics"]["pass@1"]["value"]) for level, part in row["by_level"].items()}
    assert parts == {"easy (level 1)": (2, 0.5), "mid (levels 2, 3)": (4, 0.5), "hard (levels 4, 5)": (2, 0.5)}
    text = (tmp_path / "evaluation.md").read_text()
    assert "a\\|b \\<i\\>\\_x\\_\\</i\\>\\$y\\$" in text and "boxed" not in text and "\x00" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3 + 3 + 5 and "| easy (level 1)" in text and "\n\nBy difficulty level.\n\n|" in text


def test_intervals_revisions_and_strict_columns():
    header = {**HEADER, "revision": "0123456789abcdef", "temperature": 0.0}
    sample = {"answer": "1", "correct": True, "length": 3, "truncated": False}
    right = {"reference": {"answer": "1"}, "samples": [sample]}
    row = score_row(header, [right])
    wilson = {"value": 1.0, "low": pytest.approx(0.2065, abs=1e-4), "high": 1.0, "interval": "wilson"}
    assert row["metrics"]["pass@1"] == wilson  # one right problem shows little
    text = score_markdown([row])
    assert "| m (0123456789ab) " in text and "greedy" in text and "By difficulty" not in text
    assert "| 100.0 [20.7, 100.0] W |" in text and "W: Wilson's interval" in text and "strict" not in text
    wrong = [{"reference": {"answer": "1"}, "samples": [{**sample, "correct": False}]}] * 24
    assert "| 0.0 [0.0, 13.8] W " in score_markdown([score_row(header, wrong)])
    text = score_markdown([score_row(header, [*wrong, right])])
    assert "| 4.0 [0.0, 12.0] |" in text and "Wilson" not in text
    row = score_row(header, [{**right, "samples": [{**sample, "correct_strict": False}]}])
    assert [row[part]["pass@1"]["value"] for part in ("metrics", "metrics_strict")] == [1.0, 0.0]
    assert "| s pass@1 " in score_markdown([row]) and "| s pass@1 strict " in score_markdown([row])


# pass@k, best@k, avg@k and maj@k against brute force over all subsets


def test_scores_are_means_over_all_subsets_or_draws():
    for n in range(1, 7):
        for c in range(n + 1):
            samples = [True] * c + [False] * (n - c)
            line = {"samples": [{"correct": right} for right in samples]}
            for k in range(1, n + 1):
                subsets = list(combinations(samples, k))
                draws = [any(drawn) for drawn in product(samples, repeat=min(k, 4))]
                assert problem_score(f"pass@{k}", line) == float(Fraction(sum(map(any, subsets)), len(subsets)))
                means = np.mean([np.mean(s) for s in subsets]), np.mean(draws)
                scores = problem_score(f"avg@{k}", line), problem_score(f"best@{min(k, 4)}", line)
                assert scores == pytest.approx(means, abs=1e-12)
    with pytest.raises(ValueError, match="pass@7 needs 7 samples"):
        problem_score("pass@7", line)


def test_pass_at_k_is_exact_for_thousands_of_samples():
    assert pass_at_k(4000, 3, 2000) == float(1 - Fraction(comb(3997, 2000), comb(4000, 2000)))
    assert pass_at_k(5000, 1, 16) == 16 / 5000  # 1 − (1 − 16/5000) loses digits


MAJORITIES = {
    "right has the most": (["1", "1/1", "2", None], [True, True, False, False], 1.0),
    "a rival has the most": (["1", "2", "$2$"], [True, False, False], 0.0),
    "three answers tie": (["1", "1", "2", "2", "3", "3", "4"], [True, True, *[False] * 5], 1 / 3),
    "right without a readable answer": ([None, None, "a"], [True, True, False], 1.0),
    "nobody votes": ([None, None], [False, False], 0.0),
}


@pytest.mark.parametrize(("answers", "correct", "score"), MAJORITIES.values(), ids=MAJORITIES)
def test_majority(answers, correct, score):
    samples = [{"answer": answer, "correct": c} for answer, c in zip(answers, correct, strict=True)]
    assert problem_score(f"maj@{len(answers)}", {"samples": samples}) == score
    with pytest.raises(ValueError, match="maj@1 needs 1 samples"):
        problem_score("maj@1", {"samples": samples})


def test_what_votes_together():
    assert normal_form(" $\\left( 3,\\, \\dfrac{\\pi}{2} \\right)$.") == normal_form("(3,\\frac{\\pi}{2})")
    assert normal_form("x") != normal_form("X") and normal_form("\\rightarrow") == "\\rightarrow"
