"""Evaluation of the embedded model: files against recomputation, interruptions, tables."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_helpers import SCRIPT, SMALL, run, sample_file
from matplotlib.axes import Axes
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_credit.demo import demo_dataset, demo_model_path
from trl_credit.evaluation import evaluate, rescore
from trl_credit.evaluation.estimators import bootstrap_interval, majority_at_k, pass_at_k
from trl_credit.evaluation.loading import identity, weights_fingerprint
from trl_credit.evaluation.plots import plot_rows
from trl_credit.evaluation.problems import judge, load_problems
from trl_credit.evaluation.runner import judged
from trl_credit.evaluation.samplers import Sample
from trl_credit.evaluation.scores import score_row
from trl_credit.evaluation.store import read_samples, write_samples
from trl_credit.evaluation.tables import markdown, read_rows


pytestmark = pytest.mark.usefixtures("one_thread")


def test_two_sets_of_one_name_and_a_misspelt_second_model_are_refused_before_anything_runs(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.jsonl").write_text('{"problem": "1+1:", "answer": "2"}\n')
    sets = [str(tmp_path / name / "test.jsonl") for name in ("a", "b")]
    changes = {"samples": 1, "temperature": 0.0, "max_new_tokens": 4, "metrics": ("pass@1",)}
    with pytest.raises(ValueError, match="have one name for their samples"):
        evaluate(["demo"], sets, protocols=["custom"], output_dir=tmp_path / "out", changes=changes)
    with pytest.raises((ValueError, OSError)):
        evaluate(["demo", "no_such_dir"], None, protocols=["demo"], output_dir=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_scores_are_those_of_the_samples_in_the_file(tmp_path):
    (row,) = run(tmp_path)
    header, lines = read_samples(sample_file(tmp_path))
    data = demo_dataset(24, seed=1_000_003)
    assert [line["reference"]["answer"] for line in lines] == data["answer"] and header["problems"] == 24
    for line, answer in zip(lines, data["answer"], strict=True):
        texts = [s["text"] for s in line["samples"]]
        assert [s["correct"] for s in line["samples"]] == [text[-2:] == f"={answer}" for text in texts]
        lengths = [len(s["text"]) + (not s["truncated"]) for s in line["samples"]]
        # a special token in the midst of a response has no text
        assert all(0 <= s["length"] - n <= 2 for s, n in zip(line["samples"], lengths, strict=True))
    right = [sum(s["correct"] for s in line["samples"]) for line in lines]
    by_hand = {
        "pass@1": [c / 4 for c in right],
        "avg@4": [c / 4 for c in right],
        "pass@2": [pass_at_k(4, c, 2) for c in right],
        "maj@4": [
            majority_at_k([s["answer"] for s in line["samples"]], [s["correct"] for s in line["samples"]], 4)
            for line in lines
        ],
    }
    assert row["metrics"].keys() == by_hand.keys() and 0.15 < row["metrics"]["pass@1"]["value"] < 0.5
    for metric, scores in by_hand.items():
        assert row["metrics"][metric]["value"] == pytest.approx(np.mean(scores), abs=1e-12)
        low, high = bootstrap_interval(scores, seed=1)
        assert row["metrics"][metric]["low"] == pytest.approx(low, abs=0.03)
        assert row["metrics"][metric]["high"] == pytest.approx(high, abs=0.03)
    samples = [s for line in lines for s in line["samples"]]
    assert row["mean_length_tokens"] == np.mean([s["length"] for s in samples])
    assert row["truncated_share"] == np.mean([s["truncated"] for s in samples])
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert content["version"] == 1 and content["rows"] == [row]
    assert (tmp_path / "evaluation.png").read_bytes().startswith(b"\x89PNG")


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    flags = "--protocol demo --samples 4 --metrics pass@1 --max_problems 128 --quiet --output_dir".split()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(SCRIPT), *flags, str(tmp_path / "killed")], env=env)
    for _ in range(3000):
        time.sleep(0.02)
        found = list((tmp_path / "killed").glob("samples/*/*.jsonl"))
        if found or process.poll() is not None:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    path = sample_file(tmp_path / "killed")
    assert 0 < len(read_samples(path)[1]) < 128 and not (tmp_path / "killed" / "evaluation.json").exists()
    options = {"changes": {"samples": 4, "metrics": ["pass@1"]}, "max_problems": 128}
    resumed, whole = run(tmp_path / "killed", **options), run(tmp_path / "whole", **options)
    assert resumed == whole
    assert path.read_bytes() == sample_file(tmp_path / "whole").read_bytes()


def test_torn_lines_and_chunks_are_done_again(tmp_path):
    run(tmp_path)
    path = sample_file(tmp_path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    before = path.stat().st_mtime_ns
    run(tmp_path)
    assert path.stat().st_mtime_ns == before  # nothing was left to do
    for torn in (
        b"".join(lines[:19]) + lines[19][:50],  # within a line of the second chunk
        b"".join(lines[:19]),  # between two
        lines[0][:40],  # within the header
        lines[0],
        b"",
    ):
        path.write_bytes(torn)
        run(tmp_path)
        assert path.read_bytes() == whole
    for damaged in (b"{broken", b"7", b"{}", b"[" * 50_000, b"\xff"):
        path.write_bytes(b"".join(lines[:3]) + damaged + b"\n" + b"".join(lines[4:]))
        with pytest.raises(ValueError, match="line 4 of .* is damaged .*--overwrite"):
            run(tmp_path)
    run(tmp_path, overwrite=True)
    assert path.read_bytes() == whole
    path.write_text('{"some": "file"}\n')
    with pytest.raises(ValueError, match="not a file of samples"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"changes": {**SMALL, "temperature": 0.5}}, "holds samples with temperature 1.0, and this run has 0.5"),
        ({"seed": 1}, "samples with seed 0"),
        ({"max_problems": 25}, "samples with problems 24"),
    ],
)
def test_samples_of_another_protocol_are_refused(tmp_path, option, message):
    run(tmp_path)
    with pytest.raises(ValueError, match=f"{message}.*another --output_dir, or --overwrite"):
        run(tmp_path, **option)
    run(tmp_path, **option, overwrite=True)


def test_an_overwritten_checkpoint_is_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(demo_model_path())
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    model.save_pretrained("checkpoint-1")
    tokenizer.save_pretrained("checkpoint-1")
    run("out", models=["checkpoint-1"])
    model.lm_head.weight.data += 0.01
    model.save_pretrained("checkpoint-1")
    with pytest.raises(ValueError, match="holds samples with weights"):
        run("out", models=["checkpoint-1"])


def test_a_fingerprint_sees_the_middle_of_a_file_and_the_configuration(tmp_path):
    for size in (3 << 20, 40 << 20):  # all of the small one; the large one is looked into in 64 places
        file = tmp_path / "model.safetensors"
        file.write_bytes(bytes(size))
        (tmp_path / "config.json").write_text("{}")
        seen = {weights_fingerprint(tmp_path)}
        for i in (1, 31, 62):
            with open(file, "r+b") as stream:
                stream.seek(i * (size - (1 << 16)) // 63 + 100)
                stream.write(b"x")
            seen.add(weights_fingerprint(tmp_path))
        (tmp_path / "config.json").write_text('{"a": 1}')
        seen.add(weights_fingerprint(tmp_path))
        assert len(seen) == 5


def test_every_model_is_looked_for_before_the_first_is_evaluated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing").mkdir()
    for model, message in (("./no_such", "--models './no_such' is neither a folder"), ("nothing", "without a model")):
        with pytest.raises(OSError, match=message):
            run("out", models=["demo", model])
        assert not Path("out").exists()
    assert identity("demo", None)["model"] == "embedded model"


def test_a_file_with_the_name_of_a_set_is_refused_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("math500.jsonl").write_text(json.dumps({"problem": "1+1", "answer": "2"}))
    custom = {"samples": 1, "temperature": 0.0, "max_new_tokens": 2}
    with pytest.raises(ValueError, match="--sets math500 and math500.jsonl .*rename a file"):
        run("out", sets=["math500", "math500.jsonl"], protocols=["custom"], changes=custom)


def test_a_level_that_cannot_be_read_is_found_on_loading(tmp_path, sampler):
    rows = [{"problem": "1+1", "answer": "2", "level": level} for level in ("Level 1", "Level ?")]
    for name in ("math.jsonl", "other.jsonl"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=r"row 1 of '.*math.jsonl', column 'level': .*got 'Level \?'"):
        load_problems(str(tmp_path / "math.jsonl"), sampler.tokenizer, style="plain")
    # the levels of other sets are any text
    assert len(load_problems(str(tmp_path / "other.jsonl"), sampler.tokenizer, style="plain")) == 2


def test_rescoring_writes_all_or_nothing_and_keeps_the_metrics_of_the_samples(tmp_path):
    run(tmp_path)
    run(tmp_path, protocols=["demo_greedy"], changes=None)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"--metrics want 4 samples per problem, and .*demo-demo_greedy.jsonl has 1"):
        rescore(tmp_path, metrics=["pass@4"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert [list(row["metrics"]) for row in rescore(tmp_path, metrics=["avg@1"])] == [["avg@1"]] * 2
    assert {list(row["metrics"])[-1] for row in rescore(tmp_path)} == {"avg@4", "pass@1"}


def test_other_metrics_need_no_new_samples(tmp_path):
    run(tmp_path)
    path = sample_file(tmp_path)
    before = path.read_bytes()
    (row,) = run(tmp_path, changes={"samples": 4, "metrics": ["pass@3"]})
    assert list(row["metrics"]) == ["pass@3"] and path.read_bytes() == before


def test_rescoring_needs_no_model_and_judges_anew(tmp_path):
    (row,) = run(tmp_path)
    path = sample_file(tmp_path)
    header, lines = read_samples(path)
    header["model"] = "no/such-model"
    for line in lines:
        for s in line["samples"]:
            s["correct"], s["answer"] = False, None
    write_samples(path, header, lines)
    (found,) = rescore(tmp_path)
    assert found == {**row, "model": "no/such-model"}
    (more,) = rescore(tmp_path, metrics=["pass@4"])
    assert list(more["metrics"]) == ["pass@4"]
    with pytest.raises(ValueError, match="want 5 samples per problem, and .* has 4"):
        rescore(tmp_path, metrics=["pass@5"])
    with pytest.raises(ValueError, match="no finished samples"):
        rescore(tmp_path / "empty")


def test_a_file_with_levels_and_hostile_output(tmp_path, sampler):
    rows = [{"problem": f"{i}+1=", "answer": str(i + 1), "level": f"Level {1 + i % 5}"} for i in range(8)]
    (tmp_path / "math500.jsonl").write_text("\n".join(map(json.dumps, rows)))
    problems = load_problems(str(tmp_path / "math500.jsonl"), sampler.tokenizer, style="plain")
    outputs = [f"\\boxed{{{i + 1}}}" if i % 2 else "\ud800|<b>`\n\x00\u2028" * 9 for i in range(8)]
    verdicts = judge("accuracy", outputs, [p.reference for p in problems])
    assert [right for _, right in verdicts] == [i % 2 == 1 for i in range(8)]
    header = {
        "version": 1,
        "model": "a|b\n<i>_x_</i>$y$",
        "revision": None,
        "set": "math500",
        "protocol": "p",
        "samples": 1,
        "temperature": 1.0,
        "metrics": ["pass@1"],
        "problems": 8,
        "reward": "accuracy",
    }
    lines = [
        {
            "id": p.id,
            "reference": p.reference,
            "samples": [{"text": t, "answer": a, "correct": c, "length": 1, "truncated": False}],
        }
        for p, t, (a, c) in zip(problems, outputs, verdicts, strict=True)
    ]
    path = tmp_path / "samples" / "m" / "s.jsonl"
    write_samples(path, header, lines)
    assert path.read_bytes().count(b"\n") == 9
    (row,) = rescore(tmp_path)
    # levels 1 2 3 4 5 1 2 3, every second one right
    parts = {level: (part["problems"], part["metrics"]["pass@1"]["value"]) for level, part in row["by_level"].items()}
    assert parts == {"easy (level 1)": (2, 0.5), "mid (levels 2, 3)": (4, 0.5), "hard (levels 4, 5)": (2, 0.5)}
    text = (tmp_path / "evaluation.md").read_text()
    assert "a\\|b \\<i\\>\\_x\\_\\</i\\>\\$y\\$" in text and "boxed" not in text and "\x00" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3 + 3 + 5 and "| easy (level 1)" in text


def test_several_checkpoints_are_one_table_and_one_curve(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(demo_model_path())
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    for step, noise in ((20, 0.3), (10, 0.0)):
        torch.manual_seed(0)
        for p in model.parameters():
            p.data += noise * p.data.std() * torch.randn_like(p) if p.numel() > 1 else 0
        model.save_pretrained(f"runs/checkpoint-{step}")
        tokenizer.save_pretrained(f"runs/checkpoint-{step}")
    models = ["runs/checkpoint-20", "runs/checkpoint-10"]
    rows = run("out", models=models, sets=None, protocols=["demo", "demo_greedy"], changes=None, max_problems=8)
    assert [(r["model"], r["protocol"]) for r in rows] == [(m, p) for m in models for p in ("demo", "demo_greedy")]
    text = Path("out/evaluation.md").read_text()
    assert text.splitlines()[2].count("|") == 1 + 1 + 5 and "demo pass@16 (demo)" in text.splitlines()[2]
    assert sum(line.startswith("| runs/checkpoint-10 ") for line in text.splitlines()) == 3
    # later calls add to the table, and take the place of rows of the same model, set and protocol
    run("out", models=models[:1], protocols=["demo_greedy"], changes=None, max_problems=8)
    run("out", models=["demo"], protocols=["demo_greedy"], changes=None, max_problems=8)
    assert len(read_rows(Path("out"))) == 5
    assert read_rows(Path("out"))[:4] == json.loads(json.dumps(rows))


def test_the_axis_is_the_step_for_checkpoints_of_one_run_alone(tmp_path, monkeypatch):
    from trl_credit.evaluation import plots

    drawn = []
    monkeypatch.setattr(plots, "_curves", lambda axes, rows: drawn.append("curves") or axes.plot([0], label="x"))
    monkeypatch.setattr(plots, "_bars", lambda axes, rows: drawn.append("bars") or axes.plot([0], label="x"))
    row = {"set": "s", "protocol": "p", "metrics": {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}}}
    runs = (["r/checkpoint-1", "r/checkpoint-2/"], ["a/checkpoint-1", "b/checkpoint-2"], ["checkpoint-1"], ["a", "b"])
    for models in runs:
        plot_rows([{**row, "model": m} for m in models], tmp_path / "p.png")
    assert drawn == ["curves", "bars", "bars", "bars"]


def test_the_axis_says_which_reading_is_drawn(tmp_path, monkeypatch):
    labels = []
    monkeypatch.setattr(Axes, "set_ylabel", lambda axes, label, **kwargs: labels.append(label))
    scores = {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}}
    row = {"model": "a", "protocol": "p", "metrics": scores}
    plot_rows([{**row, "set": "one"}, {**row, "set": "two", "metrics_strict": scores}], tmp_path / "p.png")
    assert labels == ["percent", "percent, read permissively"]


def test_answers_are_read_permissively_and_strictly_and_the_table_says_which(tmp_path, sampler):
    rows = [
        {"problem": "Compute $17\\cdot 23$.", "answer": "391"},
        {"problem": "Expand $(x+1)^2$.", "answer": "x^2+2x+1"},
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    problems = load_problems(str(tmp_path / "own.jsonl"), sampler.tokenizer)
    texts = [["\\boxed{391}", "\\boxed{23*17}"], ["\\boxed{(1+x)^2}", "\\boxed{2x+1+x^2}"]]
    found = [[Sample(text, 3, False) for text in both] for both in texts]
    lines = judged(problems, [1, 2], found, "accuracy")
    assert [[s["correct"] for s in line["samples"]] for line in lines] == [[True, True]] * 2
    strict = [[True, False], [False, True]]
    assert [[s["correct_strict"] for s in line["samples"]] for line in lines] == strict
    header = {"version": 1, "model": "m", "revision": None, "set": "own", "protocol": "p", "samples": 2, "problems": 2}
    header |= {"temperature": 1.0, "metrics": ["avg@2", "pass@2"], "reward": "accuracy"}
    row = score_row(header, lines)
    assert [row[part]["avg@2"]["value"] for part in ("metrics", "metrics_strict")] == [1.0, 0.5]
    for line in lines:
        for sample in line["samples"]:
            del sample["correct_strict"]  # as samples of 0.1 are
    assert "metrics_strict" not in score_row(header, lines) and "strict" not in markdown([score_row(header, lines)])
    write_samples(tmp_path / "samples" / "m" / "own-p.jsonl", header, lines)
    assert rescore(tmp_path) == [row]
    text = (tmp_path / "evaluation.md").read_text()
    head = next(line for line in text.splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in head.split("|")[2:-1]] == [
        f"own {metric}" for metric in ("avg@2", "pass@2", "avg@2 strict", "pass@2 strict")
    ]
    assert "columns that say strict want a value" in text and "| 50.0 [" in text


def test_scores_of_a_set_without_levels(sampler):
    header = {
        "model": "m",
        "revision": "0123456789abcdef",
        "set": "s",
        "protocol": "p",
        "samples": 1,
        "temperature": 0.0,
    }
    sample = {"answer": "1", "correct": True, "length": 3, "truncated": False}
    row = score_row({**header, "metrics": ["pass@1"]}, [{"reference": {"answer": "1"}, "samples": [sample]}])
    assert row["by_level"] == {}
    wilson = {"value": 1.0, "low": pytest.approx(0.2065, abs=1e-4), "high": 1.0, "interval": "wilson"}
    assert row["metrics"]["pass@1"] == wilson  # one problem that is right says little
    text = markdown([row])
    assert "greedy" in text and "By difficulty" not in text
    assert "| 100.0 [20.7, 100.0] W |" in text and "W: Wilson's interval, since all problems scored the same" in text
    wrong = [{"reference": {"answer": "1"}, "samples": [{**sample, "correct": False}]}] * 24
    row = score_row({**header, "metrics": ["pass@1"]}, wrong)
    assert "| 0.0 [0.0, 13.8] W " in markdown([row])
    row = score_row({**header, "metrics": ["pass@1"]}, [*wrong, {"reference": {}, "samples": [sample]}])
    assert row["metrics"]["pass@1"]["interval"] == "bootstrap" and "Wilson" not in markdown([row])
    del row["metrics"]["pass@1"]["interval"]  # as rows of 0.1 are
    assert "| 4.0 [0.0, 12.0] |" in markdown([row])
