"""The model card, and pushes to a real HTTP server: what arrives, what never does, and what a failure costs."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
import pytest
import torch
import yaml
from hub_server import HubServer, Repo
from huggingface_hub import ModelCard
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM

from trl_credit import ALGORITHMS
from trl_credit.demo import DEMO_SETTINGS, demo_settings
from trl_credit.hub import (
    PushCallback,
    PushError,
    TrainingData,
    open_repo,
    publishable,
    push,
    retry_command,
    write_model_card,
)
from trl_credit.hub.card import escape
from trl_credit.hub.papers import EIGHTY_TWENTY, papers_of
from trl_credit.hub.recipe import changed, public_command, to_yaml
from trl_credit.hub.secrets import Secrets
from trl_credit.report import plot_rewards
from trl_credit.report.credit_plot import plot_credit


EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
QUICK = "--max_steps 2 --per_device_train_batch_size 8 --num_generations 4 --logging_steps 1".split()
SECRET = "hf_thisIsSecretAndMustNotLeak0"


@pytest.fixture
def folder(tmp_path, tiny_model) -> Path:
    """A run's folder: a model, a card, a plot, and what must stay at home."""
    run = tmp_path / "run"
    run.mkdir()
    for path in Path(tiny_model).iterdir():
        (run / path.name).write_bytes(path.read_bytes())
    (run / "README.md").write_text("---\nlibrary_name: transformers\n---\n# x\n")
    (run / "credit_plot.png").write_bytes(b"\x89PNG")
    for name in ("checkpoint-2/model.safetensors", "training_args.bin", ".env", "completions/c.json", "wandb/run.json"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(SECRET)
    (run / "evaluation" / "samples").mkdir(parents=True)
    (run / "evaluation" / "samples" / "s.jsonl").write_text("{}")
    (run / "evaluation" / "evaluation.md").write_text("| model |\n|---|\n")
    return run


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.rglob("*")) if p.is_file()}


def environment(hub: HubServer, home: Path) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    clean |= {"HF_ENDPOINT": hub.url, "NO_PROXY": "127.0.0.1,localhost", "HF_HUB_DISABLE_XET": "1"}
    return clean | {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(home / "hf"), "HF_TOKEN": hub.token}


def run_in_shell(words: list[str], hub: HubServer, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *words], cwd=cwd, env=environment(hub, cwd), capture_output=True, text=True)


# A push


def test_what_is_pushed_and_what_stays(hub, folder):
    before = snapshot(folder)
    url = push(folder, "me/x", private=True, token=hub.token, endpoint=hub.url)
    repo = hub.repos["me/x"]
    files = repo.branches["main"]
    assert repo.private and len(repo.commits) == 1 and url.startswith(f"{hub.url}/me/x/commit/")
    assert set(files) == set(publishable(folder))
    assert set(files) >= {"model.safetensors", "config.json", "tokenizer.json", "README.md", "credit_plot.png"}
    assert files == {name: (folder / name).read_bytes() for name in files}
    assert not any(SECRET.encode() in content for content in files.values())
    assert not any("samples" in name or "checkpoint" in name for name in files)
    assert "evaluation/evaluation.md" in files and snapshot(folder) == before
    assert push(folder, "me/x", private=True, token=hub.token, endpoint=hub.url) == url  # nothing is new
    assert len(repo.commits) == 1


def test_a_name_alone_and_a_branch(hub, folder):
    push(folder, "x", revision="step-2", token=hub.token, endpoint=hub.url)
    repo = hub.repos["me/x"]
    assert not repo.private and repo.branches["main"] == {} and "model.safetensors" in repo.branches["step-2"]


def requests_of_a_push(hub: HubServer, folder: Path) -> int:
    hub.mend()
    push(folder, "me/counted", private=True, token=hub.token, endpoint=hub.url)
    n = len(hub.requests)
    hub.repos.clear()
    hub.large.clear()
    return n


@pytest.mark.parametrize("how", [403, 503, "drop", "lost"])
def test_a_push_that_fails_at_any_request_loses_nothing(hub, folder, monkeypatch, how):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client waits between its tries
    before, n = snapshot(folder), requests_of_a_push(hub, folder)
    assert n > 8  # create, look, validate twice, modes, large files, commit
    for k in range(n):
        hub.repos.clear()
        hub.large.clear()
        hub.break_at(k, how)
        with pytest.raises(PushError) as failure:
            push(folder, "me/x", private=True, token=hub.token, endpoint=hub.url)
        message = str(failure.value)
        command = f"trl-credit push {folder} --repo_id me/x --private"
        assert message.endswith(command) and message.count("\n") == 0 and len(message) < 700, message
        assert hub.token not in message and snapshot(folder) == before
        if how == 403:
            assert "write access" in message
        if how != "lost" and hub.repos:
            assert hub.repos["me/x"].branches["main"] == {}  # all or nothing
        hub.mend()
        push(folder, "me/x", private=True, token=hub.token, endpoint=hub.url)
        repo = hub.repos["me/x"]
        assert repo.private and repo.branches["main"] == {f: (folder / f).read_bytes() for f in publishable(folder)}
        assert len(repo.commits) == 1  # also where the answer to the commit was lost


def test_short_trouble_is_outlived(hub, folder, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    n = requests_of_a_push(hub, folder)
    retried = 0
    for k in range(n):
        hub.repos.clear()
        hub.break_at(k, 503, times=1)
        try:
            push(folder, "me/x", private=True, token=hub.token, endpoint=hub.url)
        except PushError:
            continue
        retried += 1
    assert retried > n / 2  # the client repeats uploads; making, looking, validating and committing it does not


def test_a_hub_that_falls_silent(hub, folder, monkeypatch):
    monkeypatch.setitem(push.__globals__, "IDLE_TIMEOUT", 0.2)
    hub.break_at(1, "hang")
    with pytest.raises(PushError, match=r"no answer from http://127.0.0.1:\d+ \(.*timed out.*\)\. .* is complete"):
        push(folder, "me/x", private=True, token=hub.token, endpoint=hub.url)


def test_no_hub_at_all(hub, folder):
    with pytest.raises(PushError, match="no answer from http://127.0.0.1:9 "):
        push(folder, "me/x", token=hub.token, endpoint="http://127.0.0.1:9")
    with pytest.raises(PushError, match="does not accept the token"):
        push(folder, "me/x", token="hf_wrong", endpoint=hub.url)
    with pytest.raises(PushError, match="write access.*You have no rights under them"):
        open_repo("them/x", token=hub.token, endpoint=hub.url)


def test_offline_is_an_error_with_its_reason(folder):
    with pytest.raises(PushError, match="HF_HUB_OFFLINE"):
        push(folder, "me/x", token="hf_any")


@pytest.mark.parametrize("act", [push, open_repo])
def test_a_public_repository_is_refused_where_private_was_asked_for(hub, folder, act):
    hub.repos["me/x"] = Repo(private=False)
    first = (folder,) if act is push else ()
    with pytest.raises(ValueError, match="me/x is there already and public.*--hub_private_repo"):
        act(*first, "me/x", private=True, token=hub.token, endpoint=hub.url)
    assert hub.repos["me/x"].branches["main"] == {}
    act(*first, "me/x", token=hub.token, endpoint=hub.url)


def test_a_file_with_the_token_is_refused(hub, folder):
    (folder / "recipe.yaml").write_text(f"hub_token: {hub.token}")
    with pytest.raises(ValueError, match=r"recipe\.yaml holds your access token"):
        push(folder, "me/x", token=hub.token, endpoint=hub.url)
    assert hub.requests == []


def test_pushes_while_training(hub, make_trainer, tmp_path, caplog):
    callback = PushCallback("me/x", private=True, token=hub.token, endpoint=hub.url)
    trainer = make_trainer("s_trace", save_strategy="steps", save_steps=1, max_steps=1)
    trainer.add_callback(callback)
    open_repo("me/x", private=True, token=hub.token, endpoint=hub.url)
    trainer.train()
    callback.wait()
    files = hub.repos["me/x"].branches["main"]
    assert hub.repos["me/x"].commits == ["Step 1"] and "optimizer.pt" not in files
    assert files["model.safetensors"] == (tmp_path / "run" / "checkpoint-1" / "model.safetensors").read_bytes()

    hub.break_at(0, 403)
    trainer = make_trainer("s_trace", save_strategy="steps", save_steps=1, max_steps=2)
    trainer.add_callback(callback)
    trainer.train()
    callback.wait()
    assert trainer.state.global_step == 2 and len(hub.repos["me/x"].commits) == 1
    assert "training goes on, but step" in caplog.text and "write access" in caplog.text


def test_the_flags_of_the_trainer_are_taken_over(hub, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    config = ALGORITHMS["s_trace"][0]
    flags = {"push_to_hub": True, "hub_private_repo": True, "hub_token": hub.token, "report_to": "none"}
    with pytest.raises(ValueError, match="hub_strategy='all_checkpoints'.*--hub_strategy every_save"):
        PushCallback.from_arguments(config("out", hub_strategy="all_checkpoints", **flags), script="push.py")
    assert hub.requests == []
    args = config(str(tmp_path / "named"), hub_strategy="end", hub_revision="v1", **flags)
    callback = PushCallback.from_arguments(args, script="push.py")
    assert not args.push_to_hub and args.hub_model_id == "me/named" and hub.repos["me/named"].private
    assert not callback.every_save
    callback.finish(folder)
    assert "model.safetensors" in hub.repos["me/named"].branches["v1"]
    assert PushCallback.from_arguments(args, script="push.py") is None
    hub.repos["me/named"].private = False
    args.push_to_hub = True
    with pytest.raises(ValueError, match="is there already and public"):
        PushCallback.from_arguments(args, script="push.py")


# As a user runs it


def test_train_and_push_end_to_end(hub, tmp_path):
    words = [str(EXAMPLES / "train.py"), *QUICK, "--output_dir", "out", "--push_to_hub", "--hub_model_id", "me/x"]
    words += ["--hub_private_repo", "true", "--hub_strategy", "end"]
    done = run_in_shell(words, hub, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    repo = hub.repos["me/x"]
    files = repo.branches["main"]
    local = {"model.safetensors", "tokenizer.json", "README.md", "reward_curve.png", "credit_plot.png", "recipe.yaml"}
    assert repo.private and local <= set(files) and "training_args.bin" not in files
    assert files["model.safetensors"] == (tmp_path / "out" / "model.safetensors").read_bytes()

    # and back: the weights that were trained, from the Hub
    loading = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "tokenizer = AutoTokenizer.from_pretrained('me/x')\n"
        "model = AutoModelForCausalLM.from_pretrained('me/x')\n"
        "ids = tokenizer('1+1-1+1-1+1-1:', return_tensors='pt', return_token_type_ids=False)\n"
        "print(tokenizer.decode(model.generate(**ids, max_new_tokens=8, do_sample=False)[0]))\n"
    )
    loaded = run_in_shell(["-c", loading], hub, tmp_path)
    assert loaded.returncode == 0, loaded.stderr[-2000:]
    assert "1+1-1+1-1+1-1:1+1=2" in loaded.stdout
    assert "GET /me/x/resolve/main/model.safetensors" in " ".join(hub.requests).replace(repo.sha("main"), "main")


def test_a_push_replaces_the_weights_of_an_earlier_one(hub, folder, tmp_path):
    push(folder, "me/x", token=hub.token, endpoint=hub.url)
    hub.repos["me/x"].branches["main"]["notes.txt"] = b"of the user"
    sharded = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(sharded, max_shard_size="20KB")
    push(sharded, "me/x", token=hub.token, endpoint=hub.url)
    files = set(hub.repos["me/x"].branches["main"])
    assert "model.safetensors" not in files and "model.safetensors.index.json" in files and "notes.txt" in files
    assert "credit_plot.png" not in files and "evaluation/evaluation.md" not in files  # of the earlier model
    assert push(sharded, "me/x", token=hub.token, endpoint=hub.url).endswith(hub.repos["me/x"].sha("main"))
    assert len(hub.repos["me/x"].commits) == 2  # nothing was left to delete


def test_a_push_leaves_the_users_files_alone(hub, folder):
    ours = {"pytorch_model.bin", "adapter_config.json", "adapter_model.safetensors", "evaluation/evaluation.png"}
    theirs = {"onnx/model.bin", "v1/model.safetensors", "v1/recipe.yaml", "photo.png", "evaluation/mine.md", "LICENSE"}
    hub.repos["me/x"] = Repo(
        private=False, branches={"main": dict.fromkeys(ours | theirs, b"x"), "old": {"a.bin": b""}}
    )
    push(folder, "me/x", token=hub.token, endpoint=hub.url)
    assert set(hub.repos["me/x"].branches["main"]) == theirs | set(publishable(folder))
    assert set(hub.repos["me/x"].branches["old"]) == {"a.bin"}
    assert hub.repos["me/x"].commits == ["End of training"]  # both in one


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize(
    ("request_", "message"), [("create", "was taken away meanwhile"), ("preupload", "on the Hub: .*")]
)
def test_a_file_that_vanishes_during_a_push_stops_it(hub, folder, monkeypatch, name, request_, message):
    def count(request):  # as save_total_limit does it, after the push has made its list
        if request_ in request:
            (folder / name).unlink(missing_ok=True)

    monkeypatch.setattr(hub, "count", count)
    with pytest.raises(PushError, match=message) as failure:
        push(folder, "me/x", token=hub.token, endpoint=hub.url)
    assert name in str(failure.value) and hub.repos["me/x"].branches["main"] == {}


def test_a_model_that_lacks_a_shard_is_not_pushed(folder, tmp_path):
    sharded = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(sharded, max_shard_size="20KB")
    assert len(publishable(sharded)) > 4
    next(sharded.glob("model-00002-*")).unlink()
    with pytest.raises(ValueError, match="lacks model-00002"):
        publishable(sharded)
    for content, message in {"{}": "has no weight_map", "[1]": "has no weight_map", "{": "is not JSON"}.items():
        (sharded / "model.safetensors.index.json").write_text(content)
        with pytest.raises(ValueError, match=rf"index\.json {message}"):
            publishable(sharded)


def test_a_command_shows_neither_secrets_nor_folders_inside_its_values():
    words = [
        "train.py",
        "--model_init_kwargs",
        '{"cache_dir": "/home/bob/c", "token": "abc123secret", "dtype": "auto"}',
    ]
    words += ["--dataset_name", "../../bob/secret.jsonl", "--env", "WANDB=/home/bob/z", "--algo", "s_trace"]
    shown = public_command(words)
    assert not any(word in shown for word in ("bob", "abc123secret", "cache_dir"))
    assert '{"dtype": "auto"}' in shown and "--algo s_trace" in shown and "secret.jsonl" in shown


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("file:///home/bob/x", "x"),
        ("WANDB=/home/bob/z", "WANDB=z"),
        ("API_KEY=abc123secret", "API_KEY=(removed)"),
        ("--env=API_KEY=abc123secret", "--env=API_KEY=(removed)"),
        ("data/../../bob/x.jsonl", "x.jsonl"),
        ("~/bob/x.jsonl", "x.jsonl"),
        ('{"a": {"api_key": "k", "b": ["~/bob/x", "u=/home/bob/y", 1.5, null, true]}}', None),
        ('["/home/bob/x", {"token": "abc123secret"}]', '["x", {}]'),
        ("{cache_dir: /home/bob}", "{...}"),
        ("[/home/bob/x]", "[...]"),
        ("data/x.jsonl", "data/x.jsonl"),
        ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-1.7B"),
    ],
)
def test_a_word_of_a_command_is_shown_without_folders_and_secrets(word, shown):
    shown = shown or '{"a": {"b": ["x", "u=y", 1.5, null, true]}}'
    assert shlex.split(public_command(["train.py", word])) == ["train.py", shown]


def test_files_that_belong_to_nobody_s_model_stay_at_home(folder):
    before = publishable(folder)
    foreign = ("service_account.json", "my_reward.py", "modeling_x.py", "photo.png", "package.json", "evaluation/x.png")
    for name in foreign:
        (folder / name).write_text("{}")
    assert publishable(folder) == before
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "modeling_x.Config"}}))
    (folder / "modeling_x.py").write_text("from .layers_x import Layer\nimport my_reward\n")
    (folder / "layers_x.py").write_text("Layer = None\n")
    assert {"layers_x.py", "modeling_x.py"} == set(publishable(folder)) - set(before)  # what it needs, no other


def test_a_link_out_of_the_folder_is_refused(folder, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / "link.json").symlink_to(secret)
    (folder / "recipe.yaml").symlink_to("config.json")
    assert "recipe.yaml" in publishable(folder)  # both in the folder
    (folder / "vocab.json").symlink_to(secret)
    with pytest.raises(ValueError, match=r"vocab\.json is a link to .*secret\.json, outside of the folder"):
        publishable(folder)


def test_a_folder_of_the_cache_can_be_pushed(folder, tmp_path):
    cached = tmp_path / "models--me--x" / "snapshots" / "abc"
    blobs = cached.parents[1] / "blobs"
    cached.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (blobs / name[:5]).write_bytes((folder / name).read_bytes())
        (cached / name).symlink_to(f"../../blobs/{name[:5]}")
    assert publishable(cached) == ["config.json", "model.safetensors"]


def test_the_card_in_a_checkpoint_stays_at_home(folder):
    assert "README.md" in publishable(folder)
    (folder / "trainer_state.json").write_text("{}")  # PEFT's card names the folder of the base model
    assert not {"README.md", "trainer_state.json"} & set(publishable(folder))


def test_a_killed_push_is_repeated_by_its_command(hub, folder, tmp_path):
    before, n = snapshot(folder), requests_of_a_push(hub, folder)
    words = [str(EXAMPLES / "push.py"), str(folder), "--repo_id", "me/x", "--private"]
    hub.break_at(n - 1, "hang")  # in the middle of the commit
    process = subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=environment(hub, tmp_path))
    while len(hub.requests) < n:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert hub.requests[-1] == "POST /api/models/me/x/commit/main"
    assert hub.repos["me/x"].branches["main"] == {} and snapshot(folder) == before
    hub.mend()
    done = run_in_shell(words, hub, tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(f"pushed  {hub.url}/me/x/commit/"), done.stderr
    repo = hub.repos["me/x"]
    assert repo.private and repo.branches["main"] == {f: (folder / f).read_bytes() for f in publishable(folder)}


@pytest.fixture
def push_script(tmp_path, monkeypatch):
    """`main` of `examples/push.py`, started in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["there/push.py"])
    spec = importlib.util.spec_from_file_location("push_script", EXAMPLES / "push.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.main


def test_a_failed_push_says_how_to_repeat_it(hub, folder, push_script, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    words = ["run", "--repo_id", "me/x", "--private", "--revision", "a b"]
    hub.break_at(2, 403)
    with pytest.raises(SystemExit) as stop:
        push_script(words)
    error = capsys.readouterr().err.strip()
    assert stop.value.code == 1 and error.startswith("error: me/x on the Hub: the token may not write there")
    assert error.endswith(f"run is complete. To try again: python there/push.py {shlex.join(words)}")
    hub.mend()
    push_script(shlex.split(error.partition("push.py ")[2]))
    assert "pushed" in capsys.readouterr().out and "config.json" in hub.repos["me/x"].branches["a b"]


def test_the_command_that_tries_again_goes_to_the_same_hub(hub, folder):
    hub.break_at(0, 403)
    with pytest.raises(PushError) as failure:
        push(folder, "me/x", token=hub.token, endpoint=hub.url)
    assert f"To try again: HF_ENDPOINT={hub.url} trl-credit push {folder}" in str(failure.value)
    assert retry_command("a", "b", endpoint="http://a b").startswith("HF_ENDPOINT='http://a b' trl-credit ")
    assert retry_command("a", "b") == "trl-credit push a --repo_id b"


@pytest.mark.parametrize(
    ("name", "repo_id", "message"),
    [
        ("no_such", "me/x", "there is no folder 'no_such'"),
        ("empty", "me/x", "'empty' holds no model"),
        ("text", "me/x", "'text' holds no model"),
        ("run", "me/x/y", "me/x/y"),
        ("run", "bad name", "bad name"),
    ],
)
def test_wrong_input_is_exit_code_2(folder, tmp_path, push_script, capsys, name, repo_id, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "README.md").write_text("x")
    with pytest.raises(SystemExit) as stop:
        push_script([name, "--repo_id", repo_id])
    error = capsys.readouterr().err.strip()
    assert stop.value.code == 2 and error.startswith("error: ") and message in error


# The card


@dataclass
class Choices:
    reward: str | None = None
    data_dir: str | None = None
    lora_r: int = 16


@pytest.fixture
def finished(make_trainer, tmp_path, monkeypatch):
    """A trainer after two steps, with secrets all around it, and its card."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("WANDB_API_KEY", "wandb0123456789secret")

    def make(algo="s_trace", *, evaluation=None, data=None, command=None, **settings):
        trainer = make_trainer(algo, hub_token=SECRET, hub_model_id="me/x", **settings)
        trainer.train()
        trainer.save_model()
        if evaluation is not None:
            (tmp_path / "run" / "evaluation").mkdir()
            (tmp_path / "run" / "evaluation" / "evaluation.json").write_text(evaluation)
            table = "# Scores\n\n| set |\n|---|\n| 61.2 <b> |\n\n" + r"\<i> \\<u> ![a](b) \![c](d) \\![e](f)"
            (tmp_path / "run" / "evaluation" / "evaluation.md").write_text(table)
        choices = Choices(reward=f"{tmp_path}/mine.py:score", data_dir="/home/someone/data", lora_r=8)
        path = write_model_card(
            trainer, name="S-trace", data=data, choices=(choices,), recipe={"algo": algo}, command=command
        )
        return trainer, ModelCard.load(path)

    return make


def test_the_card_has_its_sections(finished, tmp_path):
    data = TrainingData("gsm8k", 7473, hub_id="openai/gsm8k", revision="e53f048", cleaning="3 rows without an answer")
    command = ["accelerate", "launch", "examples/train.py", "--algo", "s_trace", "--hub_token", SECRET, "--max_steps=2"]
    _, card = finished(data=data, command=[*command, "--output_dir", str(tmp_path), "--config", "/home/me/a.yaml"])
    text = card.text
    heads = [line for line in text.splitlines() if line.startswith("#")]
    expected = ["Credit", "Training", "Recipe", "Command", "Curves", "Versions", "Citations"]
    assert [h.removeprefix("## ") for h in heads[1:]] == expected
    assert "eligibility traces from the 20% of a response's tokens with the highest entropy" in text
    assert (
        "Prompts: gsm8k ([on the Hub](https://huggingface.co/datasets/openai/gsm8k)), revision e53f048, 7,473" in text
    )
    assert "3 rows without an answer" in text and "2 optimizer steps, 4 responses per prompt" in text
    # of the flags those that the run had in the end, whichever files they came from
    shown = re.search(r"^accelerate launch examples/train.py (.*)$", text, re.MULTILINE)[1]
    assert shown.startswith("--algo s_trace --reward mine.py:score --lora_r 8 ") and " --max_steps 2" in shown
    assert not any(flag in shown for flag in ("--config", "--hub_token", "--output_dir"))
    assert "![How credit was assigned, by optimizer step](credit_plot.png)" in text
    assert (tmp_path / "run" / "credit_plot.png").read_bytes().startswith(b"\x89PNG")
    assert f"* torch {torch.__version__}" in text and "from_pretrained('me/x')" in text
    assert card.data.datasets == ["openai/gsm8k"] and "s-trace" in card.data.tags and card.data.model_name == "x"
    assert "licence" not in card.data.to_dict()


def test_no_secret_and_no_path_of_this_machine(finished, tmp_path):
    # a prompt style, a server, a nested option: places that a token may hide in
    _, card = finished(
        command=["train.py", f"--hub_token={SECRET}", "--reward", f"{tmp_path}/mine.py:score"],
        data=TrainingData(f"{tmp_path}/x.jsonl", 1, cleaning=f"loaded with {SECRET} and wandb0123456789secret"),
        model_init_kwargs={"token": SECRET, "revision": SECRET},
        chat_template_kwargs={"key": "hf_anotherTokenOfSomebody123"},
    )
    for name in publishable(tmp_path / "run"):
        content = (tmp_path / "run" / name).read_bytes()
        for secret in (SECRET, "wandb0123456789secret", "hf_anotherTokenOfSomebody123", str(tmp_path), "/home/someone"):
            assert secret.encode() not in content, (name, secret)
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert recipe["reward"] == "mine.py:score" and recipe["lora_r"] == 8
    assert recipe["model_init_kwargs"] == {"revision": "(removed)"}
    assert not {"hub_token", "hub_model_id", "output_dir", "report_to", "data_dir", "disable_tqdm"} & set(recipe)


def test_evaluation_becomes_a_table_and_a_model_index(finished):
    def row(model, value, **more):
        return {"model": model, "revision": None, "set": "math500", "protocol": "avg@4"} | {
            "metrics": {"pass@1": {"value": value, "low": 0.5, "high": 0.7}, "bad": {"value": float("nan")}},
            **more,
        }

    rows = [row("Qwen/Qwen3-1.7B", 0.5), row("checkpoint-1", 0.55), row("checkpoint-2", 0.612)]
    strictly = {"pass@1": {"value": 0.1, "low": 0.0, "high": 0.3}}
    rows.append(row("checkpoint-2", 0.2, set="aime24", metrics_strict=strictly))
    _, card = finished(evaluation=json.dumps({"version": 1, "rows": rows}))
    assert "## Evaluation\n\n### Scores\n\n| set |\n|---|\n| 61.2 &lt;b> |" in card.text
    # a backslash before an entity would show it as it is written, and two before "!" would make it a picture
    assert r"&lt;i> \\&lt;u> \![a](b) \![c](d) \\\![e](f)" in card.text
    assert {r.metric_type for r in card.data.eval_results} == {"pass@1"}
    results = {(r.dataset_name, r.dataset_config, r.metric_name): r.metric_value for r in card.data.eval_results}
    assert results == {
        ("math500", "avg@4", "pass@1"): 0.612,
        ("aime24", "avg@4", "pass@1 (permissive)"): 0.2,
        ("aime24", "avg@4", "pass@1 (strict)"): 0.1,
    }
    assert card.data.to_dict()["model-index"][0]["name"] == "x"


HUGE = {"model": "checkpoint-2", "set": "s", "protocol": "p", "metrics": {"m": {"value": 10**400}}}


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"rows": [{"model": "x"}]}', '{"rows": [1]}', json.dumps({"rows": [HUGE]}), "[" * 100_000],
    ids=["empty", "list", "fields", "row", "huge", "deep"],
)
def test_a_damaged_evaluation_costs_its_section_alone(finished, tmp_path, caplog, content):
    _, card = finished(evaluation=content)
    assert f"{tmp_path}/run/evaluation/evaluation.json was not written by trl_credit" in caplog.text
    assert "## Evaluation" not in card.text and "61.2" not in card.text and card.data.eval_results is None
    assert "## Versions" in card.text


def test_a_table_that_is_no_text_costs_its_section_alone(finished, tmp_path, caplog):
    trainer, _ = finished(evaluation='{"rows": []}')
    (tmp_path / "run" / "evaluation" / "evaluation.md").write_bytes(b"\xff\xfe")
    card = write_model_card(trainer, name="S-trace").read_text()
    assert "evaluation.md was not written by trl_credit" in caplog.text and "## Evaluation" not in card


def test_the_plot_of_an_earlier_run_is_not_shown(finished, tmp_path):
    trainer, card = finished()
    assert "(credit_plot.png)" in card.text and (tmp_path / "run" / "credit_plot.png").is_file()
    trainer.state.log_history = []
    assert "(credit_plot.png)" not in write_model_card(trainer, name="S-trace").read_text()
    assert "credit_plot.png" not in publishable(tmp_path / "run")


def test_names_of_others_are_text(finished):
    hostile = "a<script>alert(1)</script>\n# b [c](http://d) `e` | ![f](g)"
    _, card = finished(data=TrainingData(hostile, 1, hub_id="../../x", cleaning="```\n<script>\n# no head"))
    assert "<script>alert" not in card.text and "\n# b" not in card.text and escape(hostile) in card.text
    assert "\\[c\\](http://d) \\`e\\` \\| \\!\\[f\\]" in card.text
    assert "````text\n```\n<script>\n# no head\n````" in card.text  # inside a block that it cannot leave
    assert card.data.datasets is None and "huggingface.co/datasets" not in card.text


@pytest.mark.parametrize(
    ("algo", "knobs", "arxiv"),
    [
        ("s_trace", {}, ["2605.05965", "2402.03300"]),
        ("s_trace", {"difficulty": "history"}, ["2605.05965", "2601.08521", "2402.03300"]),
        ("grpo", {}, ["2402.03300"]),
        ("dapo", {}, ["2503.14476", "2402.03300"]),
        ("grpo", {"top_entropy_quantile": 0.2}, [EIGHTY_TWENTY["id"], "2402.03300"]),
        ("grpo_lambda", {"baseline": "optimal"}, ["2510.00194", "2505.23585", "2402.03300"]),
        ("vine_ppo", {}, ["2410.01679", "2402.03300"]),
        ("spo_tree", {"importance": "sequence_token"}, ["2507.18071", "2505.23564", "2503.14476", "2402.03300"]),
    ],
)
def test_every_knob_in_use_is_cited(algo, knobs, arxiv, tmp_path):
    args = ALGORITHMS[algo][0](output_dir=str(tmp_path), **knobs)
    assert [paper["id"] for paper in papers_of(args)] == arxiv


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_cites_its_own_paper_first(algo, tmp_path):
    config, trainer = ALGORITHMS[algo]
    assert papers_of(config(output_dir=str(tmp_path)))[0] == trainer._paper


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_recipe_gives_the_same_configuration_again(algo, tmp_path):
    config = ALGORITHMS[algo][0]
    more = {"difficulty": "hard", "reward_range": [0.0, 2.0], "steps_per_generation": 2}
    knobs = demo_settings(config, **more)
    args = config(output_dir=str(tmp_path), report_to="none", lr_scheduler_kwargs={"a": 1}, **knobs)
    recipe = yaml.safe_load(to_yaml(changed(args)))
    again = config(output_dir=str(tmp_path), report_to="none", **recipe)
    assert again.to_dict() == args.to_dict()
    assert set(recipe) <= set(knobs) | {"lr_scheduler_kwargs"}  # what nobody chose is not there


def test_the_recipe_of_the_embedded_model_names_what_differs_from_its_defaults(tmp_path):
    # 8 is TRL's default but not that of the embedded model
    args = ALGORITHMS["s_trace"][0](output_dir=str(tmp_path), per_device_train_batch_size=8, report_to="none")
    assert changed(args, defaults=DEMO_SETTINGS)["per_device_train_batch_size"] == 8


def test_commands_lose_what_is_private():
    words = ["train.py", "--hub_token", "t", "--output-dir=/x/y", "--reward", "a", "/b/c.py:f", "--hub_strategy", "end"]
    words += ["--config", "/r/a.yaml", "b.yaml", "--wandb_api_key", "k", "--use_peft", "--model_name_or_path", "Q/Q 3"]
    assert public_command(words) == (
        "train.py --reward a c.py:f --config a.yaml b.yaml --use_peft --model_name_or_path 'Q/Q 3'"
    )
    assert Secrets("short").scrub("a hf_0123456789abcdefgh b") == "a (removed) b"


# Plots


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    saved, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: saved.append(self) or save(self, *args))
    return saved


def test_the_axes_of_shares_labels_and_what_is_no_news(tmp_path, figures):
    def drawn(**metrics):
        logs = [{"step": step} | {f"credit/{name}": x for name, x in metrics.items()} for step in (1, 2, 3)]
        names = plot_credit(logs, tmp_path / "c.png", title="t")
        return names, figures[-1].axes if names else []

    names, (axes,) = drawn(groups_without_signal=1.0)
    assert axes.get_ylim() == (0, 100)  # once up to 200 %
    names, (axes,) = drawn(clip_fraction=0.0013)
    assert axes.get_ylim() == pytest.approx((0, 0.156))  # or nothing would be seen
    names, (axes,) = drawn(clip_fraction=0.0)
    assert axes.get_ylim() == (0, 100)
    names, (axes,) = drawn(**{"difficulty_weight/harder_positive": 1.2})
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["harder, A > 0"]
    names, (axes,) = drawn(**{"segment_value/level_1": 0.5})
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["level 1"]
    assert drawn(rollout_token_share=1.0, kept_fraction=1.0, rows_missing=0.0, **{"replay/age": 0.0}) == ([], [])
    assert drawn(rollout_token_share=0.7)[0] == ["rollout_token_share"]
    tenths = {f"coefficient/entropy_decile_{d}": 1.0 + (d > 7) for d in range(10)}
    names, (axes,) = drawn(**tenths)
    assert names == list(tenths) and len({tuple(line.get_color()) for line in axes.lines}) == 10
    assert [text.get_text() for text in axes.get_legend().get_texts()][:10:3] == [
        *("lowest tenth", "4th tenth", "7th tenth", "highest tenth")
    ]


def test_the_band_of_the_reward_stays_in_its_range(make_trainer, tmp_path, figures):
    trainer = make_trainer("grpo", max_steps=3)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert any(row["reward"] - row["reward_std"] < row["reward_min"] for row in rows)  # or there is nothing to show
    assert all(0 <= row["reward_min"] <= row["reward"] <= row["reward_max"] <= 1 for row in rows)
    plot_rewards(trainer.state.log_history, tmp_path / "r.png", title="t")
    heights = figures[-1].axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert min(row["reward_min"] for row in rows) <= heights.min() < heights.max() <= 1
    # of a run before these were logged
    assert plot_rewards([{"step": 1, "reward": 0.9, "reward_std": 0.3}], tmp_path / "r.png", title="t") == (0.9, 0.9)


def test_what_was_logged_is_drawn(tmp_path, figures):
    logs = [
        {"step": step, "reward": 1.0, "credit/clip_fraction": 0.1 * step, "credit/skipped_updates": 0.0}
        | {f"credit/abs_advantage/quarter_{q}": q / step for q in range(1, 5)}
        | {"credit/new_metric": step, "eval_credit/clip_fraction": 3.0, "credit/trace_mass": float("nan")}
        for step in range(1, 4)
    ]
    drawn = plot_credit(logs, tmp_path / "c.png", title="t")
    assert drawn == ["clip_fraction", *(f"abs_advantage/quarter_{q}" for q in range(1, 5)), "new_metric"]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    axes, *_, unknown = figures[-1].axes
    assert axes.get_ylim() == (0, 100)  # 10 … 30 % of tokens
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["of all tokens"]
    assert unknown.get_legend() is None
    logs[0]["credit/skipped_updates"] = 0.5
    assert "skipped_updates" in plot_credit(logs, tmp_path / "c.png", title="t")
    assert plot_credit([{"step": 1, "reward": 1.0}], tmp_path / "none.png", title="t") == []
    assert not (tmp_path / "none.png").exists()
