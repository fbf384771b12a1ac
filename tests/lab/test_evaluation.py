"""Evaluation of the embedded model: files against recomputation, interruptions, scores, tables; during training."""

import json
from fractions import Fraction
from itertools import combinations, product
from math import comb
from pathlib import Path

import numpy as np
import pytest
import run_evaluation
import torch
from evaluation_helpers import SMALL, run, sample_file, save_noisy_model
from processes import TORCHRUN, accelerate, results
from processes import run as run_processes
from trl import GRPOConfig, GRPOTrainer

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.lab.evaluation import EvaluationCallback, evaluate, forget_after, rescore
from trl_credit.lab.evaluation.problems import ProblemOptions, load_problems
from trl_credit.lab.evaluation.runner import sample_lines
from trl_credit.lab.evaluation.sample_store import SampleFile, file_name, read_samples
from trl_credit.lab.evaluation.samplers import weights_fingerprint
from trl_credit.lab.evaluation.score_report import read_rows, score_markdown, write_rows
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


# During training: it changes nothing, processes agree, and stale evaluations are dropped


CREDIT = (CreditTrainer, CreditConfig)


def train(folder, *, classes=CREDIT, steps=4, resume=None, watched=True, **settings):
    trainer_class, config_class = classes
    sizes = {"per_device_train_batch_size": 16, "num_generations": 8, "max_completion_length": 40, "max_steps": steps}
    quiet = {"report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True}
    each = {"logging_steps": 1, "save_steps": 2, "lr_scheduler_type": "constant", "learning_rate": 1e-4}
    args = config_class(output_dir=str(folder), **sizes, **quiet, **each)
    trainer = trainer_class(demo_model_path(), demo_reward, args=args, train_dataset=demo_dataset(64))
    if watched:
        settings = {"every_n_steps": 2, "protocol": "demo", "max_problems": 6, **SMALL, **settings}
        trainer.add_callback(EvaluationCallback(trainer, **settings))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer):
    skip = ("step_time", "runtime", "per_second", "seconds")
    rows = [row for row in trainer.state.log_history if "reward" in row]
    return [{k: v for k, v in row.items() if not any(s in k for s in skip)} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("classes", [CREDIT, (GRPOTrainer, GRPOConfig)], ids=["credit", "trl"])
def test_training_is_the_same_to_the_last_bit_with_the_callback(tmp_path, classes):
    plain = train(tmp_path / "plain", classes=classes, steps=3, watched=False)
    watched = train(tmp_path / "watched", classes=classes, steps=3, at_start=True)
    ours, theirs = watched.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert watched.model.training and losses(watched) == losses(plain) and len(losses(plain)) == 3
    logged = [row for row in watched.state.log_history if "eval_demo/pass@1" in row]
    rows = read_rows(tmp_path / "watched" / "evaluation")
    assert [row["step"] for row in logged] == [0, 2, 3]
    assert [row["model"] for row in rows] == ["checkpoint-0", "checkpoint-2", "checkpoint-3"]
    for row, log in zip(rows, logged, strict=True):
        assert all(log[f"eval_demo/{m}"] == score["value"] for m, score in row["metrics"].items())
        assert log["eval_demo/mean_length"] == row["mean_length_tokens"]
    # the weights of step 2 are those of its checkpoint: the same samples, from a file
    (row,) = run(tmp_path / "later", models=[str(tmp_path / "watched" / "checkpoint-2")], max_problems=6)
    assert row["metrics"] == rows[1]["metrics"]


@pytest.mark.slow
def test_a_resumed_run_keeps_its_rows_and_a_new_one_does_not(tmp_path):
    train(tmp_path)
    first = read_rows(tmp_path / "evaluation")
    assert [row["model"] for row in first] == ["checkpoint-2", "checkpoint-4"]
    train(tmp_path, resume=str(tmp_path / "checkpoint-2"))
    assert read_rows(tmp_path / "evaluation") == first  # resumed to the last bit
    train(tmp_path, steps=1)
    assert [row["model"] for row in read_rows(tmp_path / "evaluation")] == ["checkpoint-1"]
    assert [p.name for p in (tmp_path / "evaluation" / "samples").iterdir()] == ["checkpoint-1"]


@pytest.mark.parametrize("step", [0, 4])
def test_stale_evaluations_are_dropped(tmp_path, step):
    score = {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6, "interval": "bootstrap"}}
    row = {"revision": None, "set": "s", "protocol": "p", "problems": 1, "samples_per_problem": 1, "by_level": {}}
    row |= {"temperature": 1.0, "mean_length_tokens": 1.0, "truncated_share": 0.0, "metrics": score}
    late = {"checkpoint-2": step < 2, "checkpoint-6": step < 6, "runs/run": True, "run": True, "org/base": False}
    folder = tmp_path / "run" / "evaluation"
    forget_after(folder, step)
    assert not folder.exists()
    write_rows(folder, [{"model": model, **row} for model in late])
    for model in late:
        SampleFile(folder / "samples" / file_name(model) / "s-p.jsonl", {"version": 1, "set": "s"}).write()
    forget_after(folder, step)
    kept = [model for model in late if not late[model]]
    assert [row["model"] for row in read_rows(folder)] == kept
    assert {path.name for path in (folder / "samples").iterdir()} == {file_name(model) for model in kept}
    write_rows(folder, [])
    assert [path.name for path in folder.iterdir()] == ["samples"]
    for damaged in ("{", '{"version": 1, "rows": [{}]}'):
        (folder / "evaluation.json").write_text(damaged)
        with pytest.raises(ValueError, match="evaluation.json is damaged .*: delete it"):
            forget_after(folder, step)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp", "fsdp2", pytest.param("cpu_zero3", marks=pytest.mark.deepspeed)])
def test_two_processes_evaluate_as_one(tmp_path, capfd, layout):
    run_evaluation.main(str(tmp_path / "1"))
    (alone,) = (result["logged"] for result in results(capfd.readouterr().out))
    launch = TORCHRUN if layout == "ddp" else accelerate(layout, tmp_path)
    output = run_processes(*launch, "run_evaluation.py", tmp_path / "2")
    assert [result["logged"] for result in results(output)] == [alone, alone] and len(alone) == 2
    for name in ("samples/checkpoint-2/demo-demo.jsonl", "samples/checkpoint-3/demo-demo.jsonl", "evaluation.json"):
        one, two = ((tmp_path / str(n) / "evaluation" / name).read_bytes() for n in (1, 2))
        assert one == two


@pytest.mark.parametrize("settings", [{"every_n_steps": 0}, {"sets": ["math500"]}, {"max_context": 9}], ids=str)
def test_invalid_settings_are_refused_before_training(tmp_path, settings):
    (name,) = settings
    with pytest.raises(ValueError, match=name):
        train(tmp_path, **settings)
    assert not (tmp_path / "evaluation").exists() and not list(tmp_path.glob("checkpoint-*"))
