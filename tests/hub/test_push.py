"""Pushes to a real HTTP server: what arrives, what never does, and what a failure costs."""

import json
import shlex
import time
from pathlib import Path

import pytest
from hub_helpers import EXAMPLES, SECRET, output_of, push_to, run_folder, sharded
from hub_server import Repo
from script_helpers import error_of
from scripts import load_script

from trl_credit import ALGORITHMS
from trl_credit.hub import PushCallback, PushError, Repository, publishable, push


@pytest.fixture
def folder(tmp_path, tiny_model) -> Path:
    return run_folder(tmp_path / "run", tiny_model)


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.rglob("*")) if p.is_file()}


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in publishable(folder)}


def test_what_is_pushed_and_what_stays(hub, folder):
    before = snapshot(folder)
    url = push_to(hub, folder, private=True)
    repo = hub.repos["me/x"]
    files = repo.branches["main"]
    assert repo.private and len(repo.commits) == 1 and url.startswith(f"{hub.url}/me/x/commit/")
    assert files == content(folder) and snapshot(folder) == before
    expected = {"model.safetensors", "config.json", "tokenizer.json", "README.md", "credit_plot.png"}
    assert set(files) >= expected | {"evaluation/evaluation.md"}
    assert not any(SECRET.encode() in text for text in files.values())
    assert not any("samples" in name or "checkpoint" in name for name in files)
    assert push_to(hub, folder, private=True) == url and len(repo.commits) == 1  # nothing is new


@pytest.mark.parametrize("failing", [403, 503, "drop", "lost", pytest.param("hang", marks=pytest.mark.slow)])
def test_a_push_that_fails_at_any_request_loses_nothing(hub, folder, monkeypatch, failing):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client waits between its tries
    before = snapshot(folder)
    push_to(hub, folder, "me/counted", private=True)
    n = len(hub.requests)
    assert n > 8  # create, look, validate twice, modes, large files, commit
    for k in range(n):
        hub.repos.clear()
        hub.large.clear()
        hub.break_at(k, failing)
        with pytest.raises(PushError) as failure, monkeypatch.context() as patch:
            patch.setitem(push.__globals__, "IDLE_TIMEOUT", 0.2 if failing == "hang" else 60.0)
            push_to(hub, folder, private=True)
        message = str(failure.value)
        assert message.endswith(f"trl-credit push {folder} --repo_id me/x --private")
        assert message.count("\n") == 0 and len(message) < 700 and hub.token not in message
        assert {403: "write access", "hang": hub.url}.get(failing, "") in message
        assert snapshot(folder) == before
        if failing != "lost" and hub.repos:
            assert hub.repos["me/x"].branches["main"] == {}  # all or nothing
        hub.mend()
        push_to(hub, folder, private=True)
        repo = hub.repos["me/x"]
        assert repo.private and repo.branches["main"] == content(folder)
        assert len(repo.commits) == 1  # also if the answer to the commit was lost


def test_a_public_repository_is_refused_if_private_was_asked_for(hub, folder):
    hub.repos["me/x"] = Repo(private=False)
    with pytest.raises(PushError, match="me/x exists and is public"):
        push_to(hub, folder, private=True)
    assert hub.repos["me/x"].branches["main"] == {}
    push_to(hub, folder)


def test_a_push_replaces_the_weights_of_an_earlier_one(hub, folder, tmp_path):
    push_to(hub, folder)
    theirs = {"notes.txt", "v1/model.safetensors", "onnx/model.bin", "evaluation/mine.md"}
    hub.repos["me/x"].branches["main"] |= dict.fromkeys(theirs | {"pytorch_model.bin"}, b"x")
    shards = sharded(folder, tmp_path / "sharded")
    push_to(hub, shards)
    files = set(hub.repos["me/x"].branches["main"])
    assert files >= theirs | set(publishable(shards))
    assert not files & {"model.safetensors", "pytorch_model.bin", "credit_plot.png", "evaluation/evaluation.md"}
    assert push_to(hub, shards).endswith(hub.repos["me/x"].sha("main"))
    assert len(hub.repos["me/x"].commits) == 2  # nothing was left to delete


# During a run


def test_pushes_while_training(hub, make_trainer, tmp_path, caplog):
    repo = Repository("me/x", private=True, token=hub.token, endpoint=hub.url)
    callback = PushCallback(repo)
    trainer = make_trainer("s_trace", save_strategy="steps", save_steps=1, max_steps=1)
    trainer.add_callback(callback)
    repo.open()
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


def test_the_flags_of_the_trainer_are_taken_over(own_hub, folder, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    config = ALGORITHMS["s_trace"][0]
    flags = {"push_to_hub": True, "hub_private_repo": True, "hub_token": own_hub.token, "report_to": "none"}
    with pytest.raises(ValueError, match="hub_strategy='all_checkpoints'.*--hub_strategy every_save"):
        PushCallback.from_arguments(config("out", hub_strategy="all_checkpoints", **flags))
    assert own_hub.requests == []
    args = config(str(tmp_path / "named"), hub_strategy="end", hub_revision="v1", **flags)
    callback = PushCallback.from_arguments(args)
    assert not args.push_to_hub and args.hub_model_id == "me/named" and own_hub.repos["me/named"].private
    assert not callback.every_save
    callback.finish(folder)
    assert "model.safetensors" in own_hub.repos["me/named"].branches["v1"]
    assert PushCallback.from_arguments(args) is None
    own_hub.repos["me/named"].private = False
    args.push_to_hub = True
    with pytest.raises(PushError, match="exists and is public"):
        PushCallback.from_arguments(args)


# From the command line


@pytest.mark.slow
def test_train_and_push_end_to_end(hub, tmp_path):
    words = [str(EXAMPLES / "train.py"), "--output_dir", "out", "--push_to_hub", "--hub_model_id", "me/x"]
    words += "--max_steps 2 --per_device_train_batch_size 8 --num_generations 4 --logging_steps 1".split()
    output_of([*words, "--hub_private_repo", "true", "--hub_strategy", "end"], hub, tmp_path)
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
    assert "1+1-1+1-1+1-1:1+1=2" in output_of(["-c", loading], hub, tmp_path)
    assert "GET /me/x/resolve/main/model.safetensors" in " ".join(hub.requests).replace(repo.sha("main"), "main")


def test_a_failed_push_says_how_to_repeat_it(own_hub, folder, here, capsys):
    push_script = load_script("examples/push.py").main
    words = ["run", "--repo_id", "me/x", "--private", "--revision", "a b"]
    own_hub.break_at(2, 403)
    error = error_of(push_script, words, capsys, code=1)
    assert error.startswith("me/x on the Hub: the token may not write there")
    assert error.endswith(f"run is complete. To try again: trl-credit push {shlex.join(words)}")
    own_hub.mend()
    push_script(shlex.split(error.partition("trl-credit push ")[2]))
    assert "pushed" in capsys.readouterr().out and "config.json" in own_hub.repos["me/x"].branches["a b"]


def test_the_command_that_tries_again_goes_to_the_same_hub():
    command = Repository("b", endpoint="http://a b").retry_command("a")
    assert command.startswith("HF_ENDPOINT='http://a b' trl-credit push a ")


# The files of a run's folder that a push sends


def test_code_that_the_model_needs_goes_and_no_other(folder):
    before = publishable(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "modeling_x.Config"}}))
    (folder / "modeling_x.py").write_text("from .layers_x import Layer\nimport my_reward\n")
    for name in ("layers_x.py", "my_reward.py"):
        (folder / name).write_text("Layer = None\n")
    assert {"layers_x.py", "modeling_x.py"} == set(publishable(folder)) - set(before)


def test_a_link_out_of_the_folder_is_refused(folder, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / "link.json").symlink_to(secret)
    (folder / "recipe.yaml").symlink_to("config.json")
    assert "recipe.yaml" in publishable(folder)  # both in the folder
    (folder / "vocab.json").symlink_to(secret)
    with pytest.raises(ValueError, match=r"vocab\.json is a link"):
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


def test_the_card_in_a_checkpoint_stays(folder):
    assert "README.md" in publishable(folder)
    (folder / "trainer_state.json").write_text("{}")  # PEFT's card names the folder of the base model
    assert not {"README.md", "trainer_state.json"} & set(publishable(folder))


def test_a_model_that_lacks_a_shard_is_refused(folder, tmp_path):
    shards = sharded(folder, tmp_path / "sharded")
    assert len(publishable(shards)) > 4
    next(shards.glob("model-00002-*")).unlink()
    with pytest.raises(ValueError, match="model-00002"):
        publishable(shards)
