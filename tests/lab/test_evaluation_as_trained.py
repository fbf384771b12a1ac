"""`trl-credit eval RUN…` without a protocol: problems that no run trained on, sampled and judged as in training."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from data_helpers import whole_is_slow
from evaluation_helpers import save_noisy_model
from transformers import AutoTokenizer

from trl_credit.cli.training import build
from trl_credit.demo import demo_dataset
from trl_credit.lab.evaluation import plan_as_trained


REWARD = """
def is_right(prompts, completions, digit, **kwargs):
    with open("sampled_for.txt", "a") as file:
        file.write("".join(prompt + "\\n" for prompt in prompts))
    return [float(text[-1:] == d) for text, d in zip(completions, digit)]
"""
plan = partial(plan_as_trained, trust_run=True)  # of our own
FEW = ["--trust_run", "--quiet", "--samples", "2", "--batch_size", "128"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with the run `a` of two steps on 16 of the 30 problems of `mine.jsonl`, and `b`, of another seed."""
    root = tmp_path_factory.mktemp("trained")
    problems = demo_dataset(30, seed=5)
    rows = [{"q": p, "digit": d} for p, d in zip(problems["prompt"], problems["answer"], strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows[:2]]))
        Path("mine.py").write_text(REWARD)
        words = ["--algo", "grpo", "--model_name_or_path", "demo", "--dataset_name", "mine.jsonl", "--prompt_column"]
        words += ["q", "--reward", "mine.py:is_right", "format", "--prompt_style", "plain", "--max_steps", "2"]
        words += ["--save_steps", "2", "--output_dir", "a", "--disable_tqdm", "true", "--temperature", "0.9"]
        trainer, _ = build(words, command=["trl-credit", "train"])
        trainer.results.writes_at_end = False
        trainer.train()
        trainer.save_model()
        trainer.release_output_dir()
        shutil.copytree("a", "b")
        save_noisy_model("b", 0.3)
        change("b", "identity", seed=1)
    return root


@pytest.fixture
def here(trained, tmp_path, monkeypatch) -> Path:
    """A copy of that folder, which is the working folder."""
    shutil.copytree(trained, tmp_path / "work")
    for path in (tmp_path / "work").rglob("credit_run.json"):
        path.write_text(path.read_text().replace(str(trained), str(tmp_path / "work")))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def change(run, part, **values):
    """Changes what the file of a run says, in its folder and in its checkpoints."""
    for path in (Path(run) / "credit_run.json", *Path(run).glob("checkpoint-*/credit_run.json")):
        record = json.loads(path.read_text())
        record[part] |= values
        path.write_text(json.dumps(record))


def prompts_of(folder, run) -> list[str]:
    lines = (Path(folder) / "samples" / run / "mine_unseen-as_trained.jsonl").read_text().splitlines()
    rows = [json.loads(line)["q"] for line in Path("mine.jsonl").read_text().splitlines()]
    return [rows[int(json.loads(line)["id"].removeprefix("mine-"))] for line in lines[1:]]


def test_one_run_on_rows_that_it_did_not_sample_for(command_said, here):
    sampled = set(Path("sampled_for.txt").read_text().split())
    code, out, error = command_said("eval", "a", *FEW)
    assert code == 0, error
    assert "problems  14 of 14 rows of mine.jsonl that no run trained on\n" in out
    assert "2 responses to each, at most 40 tokens, temperature 0.9, prompt style plain; judged by mine.py:" in out
    assert "mine unseen pass@2" in out
    prompts = prompts_of("a/evaluation", "a")
    assert len(sampled) == 16 and len(prompts) == 14 and not set(prompts) & sampled
    # a checkpoint knows its run too
    assert plan(["a/checkpoint-2"], max_problems=5)[1].startswith("problems  5 of 14 rows of mine.jsonl")


@pytest.mark.slow
def test_two_runs_on_rows_that_neither_sampled_for(command_said, here):
    code, out, error = command_said("eval", "a", "b", *FEW)
    assert code == 0, error
    both = prompts_of("evaluation", "a")
    assert f"{len(both)} of {len(both)} rows of mine.jsonl" in out and 0 < len(set(both)) < 14
    assert both == prompts_of("evaluation", "b")
    assert "| b     | a        | mine unseen (as trained) | pass@1 |" in out
    table = Path("evaluation/differences.md").read_text()
    assert command_said("eval", "a", "b", *FEW)[0] == 0  # the same command again
    Path("mine.jsonl").unlink()
    code, out, error = command_said("eval", "evaluation/samples/a", "evaluation/samples/b")
    assert code == 0 and Path("evaluation/differences.md").read_text() == table, error


@whole_is_slow
def test_a_test_split_comes_before_unseen_rows(here, data_folder):
    many = len(data_folder.rows("gsm8k_test"))
    task = {"dataset_name": "gsm8k", "data_dir": str(data_folder.path), "reward": ["accuracy"], "prompt_column": None}
    for run in ("a", "b"):
        change(run, "task", **task)
    options, description = plan(["a", "b"], max_problems=many + 1)
    assert description.startswith(f"problems  {many:,} of {many:,} problems of gsm8k's test split\n")
    assert description.endswith("by accuracy") and options["sets"] == ["gsm8k"] and options["reward"] is None
    tokenizer = AutoTokenizer.from_pretrained("a")
    first, again = (plan(["a"], max_problems=7)[0]["data"]["gsm8k"](tokenizer)["id"] for _ in range(2))
    assert first == again and len(set(first)) == 7
    options = plan(["a"], sets=["gsm8k"])[0]  # by the user's choice all of it
    assert options["sets"] == ["gsm8k"] and "data" not in options and options["max_problems"] is None


def test_decoding_and_reward_of_the_embedded_task(here):
    change("a", "task", dataset_name="demo", prompt_column=None, reward=["demo"])
    options = plan(["a"])[0]
    assert options["sets"] == ["demo"] and options["reward"] is None and options["protocols"] == ["as trained"]
    decoding = {"samples": 4, "temperature": 0.9, "top_p": 1.0, "top_k": 0, "max_new_tokens": 40}
    assert options["changes"] == decoding
    options = plan(["a"], changes={"temperature": 0.0, "samples": None})[0]
    assert options["changes"]["samples"] == 1 and options["protocols"] == ["custom"]
    assert plan(["a"], prompt_style="plain")[0]["protocols"] == ["as trained"]
    boxed = plan(["demo", "a"], prompt_style="boxed")  # a model beside a run
    assert boxed[0]["protocols"] == ["custom"] and "prompt style boxed;" in boxed[1]


def test_a_run_that_was_started_from_python_needs_a_set(here):
    for run in ("a", "b"):
        path = Path(run) / "credit_run.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps({name: part for name, part in record.items() if name != "task"}))
    with pytest.raises(ValueError, match="started from Python.*--sets, --reward"):
        plan(["a", "b"])
    options = plan(["a", "b"], sets=["mine.jsonl"], reward="mine.py:is_right")[0]
    assert options["reward"] == "mine.py:is_right" and options["changes"]["temperature"] == 0.9
    assert options["prompt_style"] == "boxed" and options["protocols"] == ["custom"]


DIFFERENT = {
    "--sets": {"dataset_split": "test"},
    "--reward": {"reward": ["demo"]},
    "--temperature": {"temperature": 1.0},
    "--protocol": {"chat_template_kwargs": {"x": 1}},
}


@pytest.mark.parametrize("flag", DIFFERENT)
def test_runs_that_were_trained_differently(here, flag):
    change("b", "identity" if flag in ("--temperature", "--protocol") else "task", **DIFFERENT[flag])
    with pytest.raises(ValueError, match=f"'a' and 'b' were trained differently: .* give for both {flag} "):
        plan(["a", "b"])
    if flag == "--temperature":
        assert plan(["a", "b"], changes={"temperature": 0.7})[0]["changes"]["temperature"] == 0.7


def train_on_every_row():
    state = Path("a/checkpoint-2/trainer_state.json")
    state.write_text(json.dumps(json.loads(state.read_text()) | {"max_steps": 9}))


REFUSED = {
    "other data": (lambda: Path("mine.jsonl").open("a").write('{"q": "1+1", "digit": "2"}\n'), "not the data"),
    "no checkpoint": (lambda: shutil.rmtree("a/checkpoint-2"), "no checkpoint that says how far .*give --sets"),
    "rewards": (lambda: change("a", "task", reward=["demo", "accuracy"]), "2 rewards .*--reward"),
    "damage": (lambda: change("a", "task", reward=3), "credit_run.json in 'a' is damaged"),
    "every row": (train_on_every_row, "there are no rows of mine.jsonl that no run trained on: give --sets"),
}


@pytest.mark.parametrize(("damage", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals_name_the_fix(here, damage, message):
    damage()
    with pytest.raises(ValueError, match=message):
        plan(["a"])
