"""Evaluation during training: it changes nothing, processes agree, and stale evaluations are dropped."""

import pytest
import run_evaluation
import torch
from evaluation_helpers import SMALL, run
from processes import TORCHRUN, accelerate, results
from processes import run as run_processes
from trl import GRPOConfig, GRPOTrainer

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.lab.evaluation import EvaluationCallback, forget_after
from trl_credit.lab.evaluation.sample_store import SampleFile, file_name
from trl_credit.lab.evaluation.score_report import read_rows, write_rows


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
