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
    for name in ("a", "b"):
        for path in (tmp_path / "work" / name).rglob("credit_run.json"):
            record = path.read_text()
            path.write_text(record.replace(str(trained), str(tmp_path / "work")))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def change(run, part, **values):
    """Changes what the file of a run says, in its folder and in its checkpoints."""
    for path in (Path(run) / "credit_run.json", *Path(run).glob("checkpoint-*/credit_run.json")):
        record = json.loads(path.read_text())
        record[part] |= values
        path.write_text(json.dumps(record))


def ids_of(folder, run) -> list[str]:
    lines = (Path(folder) / "samples" / run / "mine_unseen-as_trained.jsonl").read_text().splitlines()
    return [json.loads(line)["id"] for line in lines[1:]]


def rows_of(ids) -> list[str]:
    rows = [json.loads(line)["q"] for line in Path("mine.jsonl").read_text().splitlines()]
    return [rows[int(row_id.removeprefix("mine-"))] for row_id in ids]


def test_a_run_knows_what_it_trained_on(here):
    task = json.loads((here / "a" / "credit_run.json").read_text())["task"]
    reward = [f"{here}/mine.py:is_right", "format"]
    named = {"prompt_column": "q", "prompt_style": "plain"}
    assert task == {"dataset_name": f"{here}/mine.jsonl", "reward": reward, **named}


def test_one_run_on_rows_that_it_did_not_sample_for(command_said, here):
    sampled = set(Path("sampled_for.txt").read_text().split())
    code, said, error = command_said("eval", "a", *FEW)
    assert code == 0, error
    assert "problems  all 14 rows of mine.jsonl that a did not train on\n" in said
    assert (
        "2 responses to each, at most 40 tokens, temperature 0.9, prompt style plain; judged by mine.py:is_right\n"
        in said
    )
    assert "mine unseen pass@2" in said
    ids = ids_of("a/evaluation", "a")
    assert len(sampled) == 16 and len(ids) == 14 and not set(rows_of(ids)) & sampled
    found = plan(["a/checkpoint-2"], max_problems=5)  # a checkpoint knows its run too
    assert found.problems == "5 of the 14 rows of mine.jsonl that a/checkpoint-2 did not train on"


@pytest.mark.slow
def test_two_runs_on_rows_that_neither_sampled_for_and_then_from_stored_samples(command_said, here):
    code, said, error = command_said("eval", "a", "b", *FEW)
    assert code == 0, error
    both = set(rows_of(ids_of("evaluation", "a")))
    assert f"all {len(both)} rows of mine.jsonl that no run trained on\n" in said and 0 < len(both) < 14
    assert ids_of("evaluation", "a") == ids_of("evaluation", "b")
    assert "| b     | a        | mine unseen (as trained) | pass@1 |" in said
    table = Path("evaluation/differences.md").read_text()
    assert table.startswith("* b − a, pass@1 on mine unseen: ") and ": no difference shown" in table.partition("\n")[0]
    code, said, error = command_said("eval", "a", "b", *FEW)  # the same command again
    assert code == 0 and Path("evaluation/differences.md").read_text() == table, error
    Path("mine.jsonl").unlink()  # nothing is sampled again
    code, said, error = command_said("eval", "a", "b", "--quiet", "--trust_run")
    assert code == 0 and "problems" not in said.partition("|")[0].partition("\n")[0], error
    assert Path("evaluation/differences.md").read_text() == table
    # samples that are missing are drawn, with those that are there
    shutil.rmtree("evaluation/samples/b")
    code, _, error = command_said("eval", "a", "b", "--quiet", "--trust_run")
    assert code == 2 and "there is no file 'mine.jsonl'" in error


def test_a_run_whose_prompts_were_drawn_by_difficulty(here):
    change("a", "identity", prompt_sampler="difficulty")
    with pytest.raises(ValueError, match="^'a': its order of rows is not known.*prompt_rates.jsonl: give --sets"):
        plan(["a"])
    lines = [{"row": row, "prompt": "0" * 16, "rate": 0.5, "groups": 1} for row in (1, 4, 31)]
    for folder, sampled in (("a", lines), ("a/checkpoint-2", lines[:1])):
        text = "".join(json.dumps(line) + "\n" for line in sampled)
        (Path(folder) / "prompt_rates.jsonl").write_text(text)
    # row 31 is a copy of row 1; rows 0 and 30 are copies of each other
    assert plan(["a"]).problems == "all 29 rows of mine.jsonl that a did not train on"
    found = plan(["a/checkpoint-2"])
    assert found.problems == "all 30 rows of mine.jsonl that a/checkpoint-2 did not train on"


def test_a_model_beside_a_run_is_evaluated_as_the_run_was_trained(here):
    found = plan(["demo", "a"], changes={"temperature": 0.5})
    assert found.problems == "all 14 rows of mine.jsonl that a did not train on"
    assert "temperature 0.5" in found.sampling and found.options["protocols"] == ["custom"]  # not as trained


@whole_is_slow
def test_a_test_split_comes_before_unseen_rows(here, data_folder):
    many = len(data_folder.rows("gsm8k_test"))
    task = {"dataset_name": "gsm8k", "data_dir": str(data_folder.path), "reward": ["accuracy"], "prompt_column": None}
    for run in ("a", "b"):
        change(run, "task", **task)
    found = plan(["a", "b"], max_problems=many + 1)
    assert found.problems == f"all {many:,} problems of gsm8k's test split" and found.sampling.endswith("by accuracy")
    assert found.options["sets"] == ["gsm8k"] and found.options["reward"] is None
    tokenizer = AutoTokenizer.from_pretrained("a")
    first, again = (plan(["a"], max_problems=7).options["data"]["gsm8k"](tokenizer)["id"] for _ in range(2))
    assert first == again and len(set(first)) == 7
    # by the user's choice all of it is another's
    sets = plan(["a"], sets=["gsm8k"]).options
    assert sets["sets"] == ["gsm8k"] and "data" not in sets and sets["max_problems"] is None


def test_rewards_of_the_form_are_left_out_and_the_set_has_its_own(here):
    change("a", "task", dataset_name="demo_hum", prompt_column=None, reward=["demo"])
    assert plan(["a"]).options["sets"] == ["demo_hum"]
    change("a", "task", dataset_name="demo")
    found = plan(["a"])
    assert found.options["sets"] == ["demo"] and found.options["reward"] is None
    assert found.options["changes"] == {
        "samples": 4,
        "temperature": 0.9,
        "top_p": 1.0,
        "top_k": 0,
        "max_new_tokens": 40,
    }
    greedy = plan(["a"], changes={"temperature": 0.0, "samples": None}).options
    assert greedy["changes"]["samples"] == 1 and greedy["protocols"] == ["custom"]


def test_a_run_that_was_started_from_python_needs_a_set(here):
    for run in ("a", "b"):
        path = Path(run) / "credit_run.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps({name: part for name, part in record.items() if name != "task"}))
    with pytest.raises(ValueError, match="started from Python.*--sets FILE, --reward FILE.py:.*--prompt_style"):
        plan(["a", "b"])
    found = plan(["a", "b"], sets=["mine.jsonl"], reward="mine.py:is_right")
    assert found.options["reward"] == "mine.py:is_right" and found.options["changes"]["temperature"] == 0.9
    assert "prompt style boxed; judged by" in found.sampling and found.options["protocols"] == ["custom"]


def test_another_prompt_style_is_not_as_trained(here):
    for style, protocol in ((None, "as trained"), ("plain", "as trained"), ("boxed", "custom")):
        found = plan(["a"], prompt_style=style)
        assert found.options["protocols"] == [protocol] and f"prompt style {style or 'plain'};" in found.sampling


DIFFERENT = {
    "data": ("task", {"dataset_split": "test"}, "data is 'mine.jsonl prompt_column=q' and 'mine.jsonl .*give --sets"),
    "reward": ("task", {"reward": ["demo"]}, r"reward is \('mine.py:is_right',\) and \('demo',\).*give --reward"),
    "style": ("task", {"prompt_style": "boxed"}, "prompt_style is 'plain' and 'boxed'.*give --prompt_style"),
    "temperature": ("identity", {"temperature": 1.0}, "temperature is 0.9 and 1.0.*give --temperature"),
    "length": ("identity", {"max_completion_length": 9}, "is 40 and 9.*give --max_new_tokens"),
    "template": ("identity", {"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs is None .*with a --protocol"),
}


@pytest.mark.parametrize(("part", "values", "message"), DIFFERENT.values(), ids=DIFFERENT)
def test_runs_that_were_trained_differently(here, part, values, message):
    change("b", part, **values)
    with pytest.raises(ValueError, match=f"'a' and 'b' were trained differently: .*{message}"):
        plan(["a", "b"])


def test_what_is_given_settles_a_difference(here):
    change("b", "identity", temperature=1.0)
    assert plan(["a", "b"], changes={"temperature": 0.7}).options["changes"]["temperature"] == 0.7


REFUSED = {
    "no run": (lambda: None, ["demo"], "'demo' is not the folder of a run, .*give a --protocol"),
    "other data": (lambda: Path("mine.jsonl").open("a").write('{"q": "1+1", "digit": "2"}\n'), ["a"], "not the data"),
    "no checkpoint": (lambda: shutil.rmtree("a/checkpoint-2"), ["a"], "no checkpoint that says how far .*give --sets"),
    "several rewards": (
        lambda: change("a", "task", reward=["demo", "accuracy"]),
        ["a"],
        r"2 rewards that say .* \(demo, acc",
    ),
    "form alone": (lambda: change("a", "task", reward=["format"]), ["a"], "0 rewards that say what is right"),
    "damage": (lambda: change("a", "task", reward=3), ["a"], "credit_run.json in 'a' is damaged"),
    "scores": (lambda: change("a", "task", dataset_name="reasoning_gym:x"), ["a"], "gives scores between 0 and 1"),
}


@pytest.mark.parametrize(("damage", "models", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals_name_the_fix(here, damage, models, message):
    damage()
    with pytest.raises(ValueError, match=message):
        plan(models)


def test_a_run_that_trained_on_every_row(here):
    state = Path("a/checkpoint-2/trainer_state.json")
    state.write_text(json.dumps(json.loads(state.read_text()) | {"max_steps": 9}))
    with pytest.raises(ValueError, match="'a' trained on every row of 'mine.jsonl': give --sets"):
        plan(["a"])
