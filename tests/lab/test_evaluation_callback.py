"""Evaluation during training: it changes nothing, processes agree, and stale evaluations are dropped."""

import json

import pytest
import run_evaluation
import torch
from evaluation_helpers import SMALL, run
from processes import TORCHRUN, accelerate
from processes import run as run_processes
from trl import GRPOConfig, GRPOTrainer

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.lab.evaluation import EvaluationCallback, forget_after
from trl_credit.lab.evaluation.sample_store import file_name, write_samples
from trl_credit.lab.evaluation.score_report import read_rows, write_rows


def train(
    folder, *, callback: bool, trainer_class=CreditTrainer, config_class=CreditConfig, steps=5, resume=None, **own
):
    settings = {"every_n_steps": 2, "protocol": "demo", "max_problems": 6, **SMALL, **own}
    args = config_class(
        output_dir=str(folder),
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        max_steps=steps,
        logging_steps=1,
        save_steps=2,
        lr_scheduler_type="constant",
        learning_rate=1e-4,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=40,
    )
    trainer = trainer_class(demo_model_path(), demo_reward, args=args, train_dataset=demo_dataset(64))
    if callback:
        trainer.add_callback(EvaluationCallback(trainer, **settings))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer):
    skip = ("step_time", "runtime", "per_second", "seconds")
    rows = [row for row in trainer.state.log_history if "reward" in row]
    return [{k: v for k, v in row.items() if not any(s in k for s in skip)} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("classes", [(CreditTrainer, CreditConfig), (GRPOTrainer, GRPOConfig)], ids=["credit", "trl"])
def test_training_is_the_same_to_the_last_bit_with_the_callback(tmp_path, classes):
    kinds = {"trainer_class": classes[0], "config_class": classes[1]}
    plain = train(tmp_path / "plain", callback=False, **kinds)
    watched = train(tmp_path / "watched", callback=True, at_start=True, **kinds)
    ours, theirs = watched.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert watched.model.training and losses(watched) == losses(plain) and len(losses(plain)) == 5
    logged = [row for row in watched.state.log_history if "eval_demo/pass@1" in row]
    assert [row["step"] for row in logged] == [0, 2, 4, 5]
    rows = read_rows(tmp_path / "watched" / "evaluation")
    assert [row["model"] for row in rows] == [f"checkpoint-{step}" for step in (0, 2, 4, 5)]
    for row, log in zip(rows, logged, strict=True):
        assert all(log[f"eval_demo/{m}"] == score["value"] for m, score in row["metrics"].items())
        assert log["eval_demo/mean_length"] == row["mean_length_tokens"]
    # the weights of step 4 are those of its checkpoint: the same samples, from a file
    (row,) = run(tmp_path / "later", models=[str(tmp_path / "watched" / "checkpoint-4")], max_problems=6)
    assert row["metrics"] == rows[2]["metrics"]


@pytest.mark.slow
def test_a_resumed_run_keeps_its_rows_and_a_new_one_does_not(tmp_path):
    train(tmp_path, callback=True, steps=4)
    first = read_rows(tmp_path / "evaluation")
    assert [row["model"] for row in first] == ["checkpoint-2", "checkpoint-4"]
    train(tmp_path, callback=True, steps=4, resume=str(tmp_path / "checkpoint-2"))
    assert read_rows(tmp_path / "evaluation") == first  # resumed to the last bit
    train(tmp_path, callback=True, steps=5, resume=str(tmp_path / "checkpoint-4"))
    assert [row["model"] for row in read_rows(tmp_path / "evaluation")] == [f"checkpoint-{s}" for s in (2, 4, 5)]
    train(tmp_path, callback=True, steps=1)
    assert [row["model"] for row in read_rows(tmp_path / "evaluation")] == ["checkpoint-1"]
    assert [p.name for p in (tmp_path / "evaluation" / "samples").iterdir()] == ["checkpoint-1"]


def stale_rows(models):
    score = {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6, "interval": "bootstrap"}}
    common = {"revision": None, "set": "s", "protocol": "p", "problems": 1, "samples_per_problem": 1, "by_level": {}}
    common |= {"temperature": 1.0, "mean_length_tokens": 1.0, "truncated_share": 0.0, "metrics": score}
    return [{"model": model, **common} for model in models]


def stale_folder(tmp_path, models):
    folder = tmp_path / "run" / "evaluation"
    write_rows(folder, stale_rows(models))
    (folder / "evaluation.png").write_bytes(b"old")
    for model in models:
        write_samples(folder / "samples" / file_name(model) / "s-p.jsonl", {"version": 1, "set": "s"}, [])
    return folder


@pytest.mark.parametrize(
    ("step", "kept"), [(4, ["checkpoint-2", "checkpoint-4", "org/base"]), (0, ["org/base"]), (9, None)]
)
def test_stale_evaluations_are_dropped(tmp_path, step, kept):
    models = ["checkpoint-2", "checkpoint-4", "checkpoint-6", "runs/run", "run", "org/base"]
    kept = models[:3] + models[5:] if kept is None else kept
    folder = stale_folder(tmp_path, models)
    forget_after(folder, step)
    assert [row["model"] for row in read_rows(folder)] == kept
    assert {path.name for path in (folder / "samples").iterdir()} == {file_name(model) for model in kept}
    assert "checkpoint-6" in (folder / "evaluation.md").read_text() or step != 9
    assert "runs/run" not in (folder / "evaluation.md").read_text()
    assert (folder / "evaluation.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_with_only_stale_rows_loses_its_table(tmp_path):
    forget_after(tmp_path / "none", 0)
    assert not (tmp_path / "none").exists()
    folder = stale_folder(tmp_path, ["checkpoint-2", "runs/run"])
    forget_after(folder, 0)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    for damaged in ("{", "[" * 50_000, '{"version": 1, "rows": [3]}', '{"version": 1, "rows": [{}]}'):
        (folder / "evaluation.json").write_text(damaged)
        with pytest.raises(ValueError, match="evaluation.json is damaged .*: delete it"):
            forget_after(folder, 0)


def results(output: str) -> list:
    return [json.loads(x.partition("RESULT ")[2])["logged"] for x in output.splitlines() if "RESULT " in x]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp", "fsdp2", pytest.param("cpu_zero3", marks=pytest.mark.deepspeed)])
def test_two_processes_evaluate_as_one(tmp_path, capfd, layout):
    run_evaluation.main(str(tmp_path / "1"))
    (alone,) = results(capfd.readouterr().out)
    launch = TORCHRUN if layout == "ddp" else accelerate(layout, tmp_path)
    output = run_processes(*launch, run_evaluation.__file__, tmp_path / "2")
    assert results(output) == [alone, alone] and len(alone) == 2
    names = [f"samples/checkpoint-{step}/demo-demo.jsonl" for step in (2, 3)] + ["evaluation.json"]
    for name in names:
        one, two = ((tmp_path / str(n) / "evaluation" / name).read_bytes() for n in (1, 2))
        assert one == two


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps=0 .*must be at least 1"),
        ({"protocol": "x"}, "unknown --protocol 'x'"),
        ({"sets": ["math500"]}, "has the sets demo"),
        ({"samples": 2}, "--metrics maj@4 needs 4 samples"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"max_context": 9, "every_n_steps": 4}, "within 9: raise --max_context"),
    ],
)
def test_invalid_settings_are_refused_before_training(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, callback=True, **settings)
    assert not (tmp_path / "evaluation").exists()
    assert not list(tmp_path.glob("checkpoint-*"))
