"""What a row of a comparison pools: runs of one algorithm, with the same code, settings, data and model."""

import json
from dataclasses import dataclass, replace

import pytest
from comparison_helpers import history
from test_compare import SMALL, in_this_process

from trl_credit import GRPOConfig, GRPOTrainer
from trl_credit.lab.comparison import processes
from trl_credit.lab.comparison.groups import group_runs
from trl_credit.lab.comparison.histories import read_history
from trl_credit.lab.comparison.rows import unlike
from trl_credit.support.source_code import code_of, needed_code


CREDIT = """
import functools
import torch
from trl_credit import Credit

SCALE, TABLE = 0.9, {}
TABLE["a"] = 1.0
for letter in "bc":
    TABLE[letter] = 3.0
with open(__file__) as text:
    TABLE.update(d=4.0)


def half(x):
    return x * SCALE * TABLE["a"]


def mine(config, tokens):
    return Credit(None, half(tokens.advantages))


bound = functools.partial(mine, None)
short = lambda config, tokens: mine(config, tokens)


def other(x):
    return x


if __name__ == "__main__":
    print(mine)
"""
REWARD = "def even(completions, **kwargs):\n    return [float(len(text) % 2 == 0) for text in completions]\n"


@pytest.mark.parametrize("name", ["mine", "bound", "short"])
def test_a_function_needs_what_it_uses_of_its_file(tmp_path, name):
    file = tmp_path / "mine.py"

    def code(text):
        file.write_text(text)
        return needed_code(file, name)[0]

    before = code(CREDIT)
    spaced = CREDIT.replace("half(t", "half( t").replace("\n\n\n", "\n# x\n")
    same = CREDIT + "\ndef more():\n    return half(1)\n", CREDIT.replace("return x\n", "return 2 * x\n"), spaced
    assert {code(text) for text in same} == {before}
    changes = {"0.9": "0.5", '["a"] = 1.0': '["a"] = 2.0', "3.0": "3.5", "4.0": "4.5", "x * SCALE": "x / SCALE"}
    changes |= {"Credit(None, h": "Credit(None, -h"}
    assert before not in {code(CREDIT.replace(*change)) for change in changes.items()}
    assert needed_code(file, "mine")[1] == 18 and needed_code(file, "absent")[1] == 0
    assert code_of(f"{file}:{name}")["function"] == name and code_of("trl_credit.demo.demo_reward") is None


@pytest.fixture
def files(tmp_path):
    """A credit function and a reward in files of folders of their own."""
    paths = tmp_path / "credit" / "mine.py", tmp_path / "reward" / "mine.py"
    for path, text in zip(paths, (CREDIT, REWARD), strict=True):
        path.parent.mkdir()
        path.write_text(text)
    return paths


def argv_of(folder, files, *seeds):
    argv = ["--algo", "grpo", "--credit", f"{files[0]}:mine", "--reward", f"{files[1]}:even", "--max_steps", "1"]
    return [*argv, "--model_name_or_path", "demo", "--dataset_name", "demo", "--seeds", *seeds, *SMALL, folder / "out"]


@pytest.mark.slow
def test_a_row_takes_no_run_after_an_edit(command_said, files, tmp_path, monkeypatch):
    trained = []
    in_this_process(monkeypatch, trained)
    call = lambda *seeds: command_said("compare", *argv_of(tmp_path, files, *seeds))  # noqa: E731
    assert call("0", "1")[0] == 0
    files[0].write_text(CREDIT + "\n\ndef later():\n    pass\n")
    assert call("0", "1", "2")[0] == 0 and len(trained) == 6
    files[0].write_text(CREDIT.replace("0.9", "0.5"))
    code, _, error = call("0", "1", "2", "3")
    assert code == 2 and "mine/seed-0 was trained before an edit of `mine` in line 18 of" in error and "NAME=…" in error
    code, out, _ = call("0", "1", "2")  # nothing is added, so the report is of the old code, and says so
    assert code == 0 and "mine was trained before an edit of `mine`" in out and len(trained) == 6
    files[0].write_text(CREDIT)
    files[1].write_text(REWARD.replace("== 0", "== 1"))
    code, _, error = call("0", "1", "2", "3")
    assert code == 2 and "grpo/seed-0 was trained before an edit of `even` in line 1 of" in error
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["runs"]) == 6


@pytest.mark.slow
def test_an_edit_between_two_seeds_of_a_command_ends_the_second(command_said, files, tmp_path, monkeypatch):
    def sleep(seconds, sleep=processes.time.sleep):
        if any((tmp_path / "out" / "runs" / "mine" / "seed-0").glob("checkpoint-*/trainer_state.json")):
            files[0].write_text(CREDIT.replace("0.9", "0.5"))
        sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(processes.time, "sleep", sleep)
        code, out, error = command_said("compare", *argv_of(tmp_path, files, "0", "1"), "--jobs", "1")
    assert code == 1 and "mine/seed-1: failed" in out
    assert "mine/seed-0 and mine/seed-1 would be one row, and differ (the code of `credit` changed)" in error
    assert not [*(tmp_path / "out" / "runs" / "mine" / "seed-1").glob("checkpoint-*")]


def test_what_follows_from_the_seed_is_no_difference():
    identity = {"algorithm": "GRPO", "seed": 0, "modules": {"a": "1"}, "learning_rate": 1e-5}
    identity |= {"data": {"rows": 4, "content": "x"}, "model": {"name": "m", "weights": "w"}}
    one = {"identity": identity, "task": {"dataset_name": "demo"}}

    def differ(task="demo", beside=None, **changes):
        other = {"identity": identity | changes, "task": {"dataset_name": task}}
        return unlike(one | {"task": {"dataset_name": task}}, other, beside=beside)

    old = {"identity": identity | {"credit": "SHA-256 " + "a" * 16}}
    new = old | {"code": {"credit": {"code": "SHA-256 " + "b" * 16}}}
    assert unlike(old, new, beside=None) == {} and unlike(new, new, beside=None) == {}  # 0.2.0 wrote the first
    drawn = {"rows": 4, "content": "y"}
    assert differ(seed=1, data=drawn, modules={"b": "2"}) == {}
    assert differ(task="mine.jsonl", data=drawn).keys() == {"data"} == differ(data={"rows": 5, "content": "y"}).keys()
    assert differ(model={"name": "m", "weights": "v"}).keys() == {"model"}
    assert differ(modules={"a": "2"}).keys() == {"modules"}
    assert differ(learning_rate=2e-5).keys() == {"learning_rate"}
    assert not differ("demo", "learning_rate", learning_rate=2e-5)


@dataclass
class WeightedConfig(GRPOConfig):
    weight: float = 0.0


class WeightedTrainer(GRPOTrainer):
    pass


def test_settings_of_a_subclass_tell_rows_apart(make_trainer, finished_run, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    folders = []
    for weight in (0.0, 50.0):
        folders.append(tmp_path / f"{weight:g}")
        own = (WeightedConfig, WeightedTrainer)
        make_trainer(own, output_dir=str(folders[-1]), weight=weight, seed=int(weight), **settings).train()
    folders.append(finished_run("grpo", **settings).folder)
    runs = [read_history(folder) for folder in folders]
    labels = ["WeightedTrainer (weight 0)", "WeightedTrainer (weight 50)", "GRPO"]
    assert [group.label for group in group_runs(runs)] == labels
    assert [run.is_plain for run in runs] == [False, False, True]
    named = [replace(run, name="mine") for run in runs[:2]]
    differ = r"are named mine, and differ \(weight 0.0 → 50.0\): give them different names"
    with pytest.raises(ValueError, match=differ):
        group_runs(named)


def test_runs_keep_the_names_that_they_are_given(command_said, finished_run, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    grpo, trace = (finished_run(algo, seed=0, **settings).folder for algo in ("grpo", "s_trace"))
    words = ["--runs", f"mine={trace}", f"plain={grpo}", "--output_dir", tmp_path]
    code, out, error = command_said("compare", *words)
    assert (code, error) == (0, "") and "| plain" in out
    assert {run["label"] for run in json.loads((tmp_path / "results.json").read_text())["runs"]} == {"mine", "plain"}
    long = {"loss_type": "a name that is too long", "trace_lambda": 0.9, "beta": 0.1, "epsilon": 0.2}
    twin = [history([0.1], **{name: value * 2 for name, value in long.items()}), history([0.1], **long)]
    labels = [f"GRPO (beta {beta}, epsilon {epsilon})" for beta, epsilon in ((0.2, 0.4), (0.1, 0.2))]
    assert [group.label for group in group_runs(twin)] == labels
    codes = [history([0.1], reward_funcs={"r": f"SHA-256 {digit * 16}"}) for digit in "ab"]
    assert [group.label for group in group_runs(codes)] == ["GRPO", "GRPO #2"]
    own = history([0.1], baseline="SHA-256 abc")
    assert not own.is_plain and not history([0.1], record={"credit": {"is_own": True}}).is_plain


def test_a_run_that_logged_nothing_says_why(finished_run):
    folder = finished_run("grpo", save_strategy="steps", save_steps=2, max_steps=2, logging_steps=5).folder
    nothing = "logged nothing in 2 steps with logging_steps=5: train with --logging_steps 1"
    with pytest.raises(ValueError, match=nothing):
        read_history(folder)
