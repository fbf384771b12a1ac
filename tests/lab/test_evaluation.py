"""Evaluation of the embedded model: files against recomputation, interruptions, refusals, rescoring."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import SCRIPT, SMALL, run, sample_file, save_noisy_model

from trl_credit.demo import demo_dataset
from trl_credit.lab.evaluation import evaluate, rescore
from trl_credit.lab.evaluation.models import model_identity, weights_fingerprint
from trl_credit.lab.evaluation.problems import load_problems
from trl_credit.lab.evaluation.sample_store import read_samples, write_samples
from trl_credit.lab.evaluation.scores import majority_at_k, pass_at_k
from trl_credit.lab.statistics import bootstrap_interval


def test_scores_are_those_of_the_samples_in_the_file(tmp_path):
    (row,) = run(tmp_path)
    header, lines = read_samples(sample_file(tmp_path))
    data = demo_dataset(24, seed=1_000_003)
    assert [line["reference"]["answer"] for line in lines] == data["answer"] and header["problems"] == 24
    for line, answer in zip(lines, data["answer"], strict=True):
        texts = [s["text"] for s in line["samples"]]
        assert [s["correct"] for s in line["samples"]] == [text[-2:] == f"={answer}" for text in texts]
        lengths = [len(s["text"]) + (not s["truncated"]) for s in line["samples"]]
        # a special token inside a response has no text
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
        found, (low, high) = row["metrics"][metric], bootstrap_interval(scores, seed=1)
        assert found["value"] == pytest.approx(np.mean(scores), abs=1e-12)
        assert (found["low"], found["high"]) == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))
    samples = [s for line in lines for s in line["samples"]]
    assert row["mean_length_tokens"] == np.mean([s["length"] for s in samples])
    assert row["truncated_share"] == np.mean([s["truncated"] for s in samples])
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert content["version"] == 1 and content["rows"] == [row]
    assert (tmp_path / "evaluation.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_killed_run_resumes(tmp_path):
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


@pytest.mark.slow
def test_torn_lines_and_chunks_are_generated_again(tmp_path):
    run(tmp_path)
    path = sample_file(tmp_path)
    whole, before = path.read_bytes(), path.stat().st_mtime_ns
    lines = whole.splitlines(keepends=True)
    run(tmp_path)
    assert path.stat().st_mtime_ns == before  # nothing was left to do
    for torn in (
        b"".join(lines[:19]) + lines[19][:50],  # within a line of the second chunk
        b"".join(lines[:19]),  # between two lines
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


@pytest.mark.slow
def test_samples_of_another_protocol_are_refused(tmp_path):
    run(tmp_path)
    for option, message in (
        ({"changes": {**SMALL, "temperature": 0.5}}, "holds samples with temperature 1.0, and this run has 0.5"),
        ({"seed": 1}, "samples with seed 0"),
        ({"max_problems": 25}, "samples with problems 24"),
    ):
        with pytest.raises(ValueError, match=f"{message}.*another --output_dir, or --overwrite"):
            run(tmp_path, **option)
    run(tmp_path, **option, overwrite=True)


def test_an_overwritten_checkpoint_is_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = save_noisy_model("checkpoint-1", 0.0)
    run("out", models=["checkpoint-1"])
    model.lm_head.weight.data += 0.01
    model.save_pretrained("checkpoint-1")
    with pytest.raises(ValueError, match="holds samples with weights"):
        run("out", models=["checkpoint-1"])


def test_a_fingerprint_covers_the_middle_of_a_file_and_the_configuration(tmp_path):
    for size in (3 << 20, 40 << 20):  # the small file is read entirely, the large one in 64 places
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


def test_models_and_sets_are_checked_before_the_first_evaluation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("nothing").mkdir()
    for model, message in (("./no_such", "--models './no_such' is neither a folder"), ("nothing", "without a model")):
        with pytest.raises(OSError, match=message):
            run("out", models=["demo", model])
    assert model_identity("demo", None)["model"] == "embedded model"
    for file in ("math500.jsonl", "a/test.jsonl", "b/test.jsonl"):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text(json.dumps({"problem": "1+1", "answer": "2"}))
    changes = {"samples": 1, "temperature": 0.0, "max_new_tokens": 2}
    for sets in (["math500", "math500.jsonl"], ["a/test.jsonl", "b/test.jsonl"]):
        with pytest.raises(ValueError, match=f"--sets {sets[0]} and {sets[1]} have one name .*: rename a file"):
            evaluate(["demo"], sets, protocols=["custom"], output_dir="out", changes=changes)
    assert not Path("out").exists()


def test_an_unreadable_level_is_found_on_loading(tmp_path, sampler):
    rows = [{"problem": "1+1", "answer": "2", "level": level} for level in ("Level 1", "Level ?")]
    for name in ("math.jsonl", "other.jsonl"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=r"row 1 of '.*math.jsonl', column 'level': .*got 'Level \?'"):
        load_problems(str(tmp_path / "math.jsonl"), sampler.tokenizer, style="plain")
    # levels of other sets are any text
    assert len(load_problems(str(tmp_path / "other.jsonl"), sampler.tokenizer, style="plain")) == 2


@pytest.mark.slow
def test_rescoring_writes_all_or_nothing_and_keeps_the_metrics_of_the_samples(tmp_path):
    run(tmp_path)
    run(tmp_path, protocols=["demo_greedy"], changes=None)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"--metrics need 4 samples per problem, and .*demo-demo_greedy.jsonl has 1"):
        rescore(tmp_path, metrics=["pass@4"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert [list(row["metrics"]) for row in rescore(tmp_path, metrics=["avg@1"])] == [["avg@1"]] * 2
    assert {list(row["metrics"])[-1] for row in rescore(tmp_path)} == {"avg@4", "pass@1"}


def test_rescoring_needs_no_model_and_other_metrics_need_no_samples(tmp_path):
    (row,) = run(tmp_path)
    path = sample_file(tmp_path)
    before = path.read_bytes()
    (other,) = run(tmp_path, changes={"samples": 4, "metrics": ["pass@3"]})
    assert list(other["metrics"]) == ["pass@3"] and path.read_bytes() == before
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
    with pytest.raises(ValueError, match="need 5 samples per problem, and .* has 4"):
        rescore(tmp_path, metrics=["pass@5"])
    with pytest.raises(ValueError, match="no finished samples"):
        rescore(tmp_path / "empty")
