"""Evaluation of the embedded model: files against recomputation, interruptions, refusals, rescoring."""

import json
from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import SMALL, run, sample_file, save_noisy_model

from trl_credit.demo import demo_dataset
from trl_credit.lab.evaluation import evaluate, rescore
from trl_credit.lab.evaluation.sample_store import read_samples
from trl_credit.lab.evaluation.samplers import weights_fingerprint
from trl_credit.lab.evaluation.scores import majority, pass_at_k


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
    by_hand = {
        "pass@1": [c / 4 for c in right],
        "avg@4": [c / 4 for c in right],
        "pass@2": [pass_at_k(4, c, 2) for c in right],
        "maj@4": [majority(*votes) for votes in answers],
    }
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
