"""Secrets and strange files in a run's folder, and a Hub that hangs."""

import json
import signal
import subprocess
import threading
from pathlib import Path

import hub_server
import pytest
from hub_helpers import EXAMPLES, model_folder, push_to, sharded, start

from trl_credit.hub import PushInterrupted, Repository, publishable, push


pytestmark = pytest.mark.hostile("cards and pushes", "survived")
refused = pytest.mark.hostile("cards and pushes", "refused")
TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh"
# put together here, so that no scanner of repositories takes them for real ones
TOKENS = [
    TOKEN,
    "ghp_" + "0aB1cD2eF3" * 3 + "gH4iJ5",
    "github_pat_" + "11ABCDEFG0" + "abcdefGHIJ_KL3mn" * 4,
    "sk-ant-" + "api03-" + "aB3-dE6_gH9jK2" * 6,
    "AKIA" + "IOSFODNN7EXAMPLE",
    "correct horse battery staple",  # of the environment
]


@pytest.fixture
def folder(tmp_path, tiny_model) -> Path:
    return model_folder(tmp_path / "run", tiny_model)


@refused
def test_a_file_with_a_token_is_refused_and_the_token_not_shown(folder, monkeypatch, record_property):
    monkeypatch.setenv("TRACKER_PASSWORD", TOKENS[-1])
    (folder / "evaluation").mkdir()
    names = ("README.md", "recipe.yaml", "evaluation/evaluation.md", "generation_config.json", "chat_template.jinja")
    for name in names:
        path = folder / name
        before = path.read_bytes() if path.exists() else b""
        for token in TOKENS:
            path.write_text(f"some text {token} more\n", encoding="utf-8")
            with pytest.raises(ValueError, match=rf"^{name} holds") as failure:
                push(folder, Repository("me/x", token="hf_any"))
            assert token not in str(failure.value)
        path.write_bytes(before)
    record_property("tried", len(names) * len(TOKENS))


# What goes


def test_files_of_others_stay(folder, tmp_path, record_property):
    before = publishable(folder)
    foreign = [".env", "model-00001-of-00002.safetensors", "old.safetensors", "model.safetensors.index.json"]
    foreign += ["tokenizer_private.json", "notes.jinja", "secret.model", "additional_chat_templates/mine.jinja"]
    foreign += ["training_args.bin", "id_rsa", "evaluation/notes.md", "modeling_x.py", "photo.png"]
    for name in foreign:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    assert publishable(folder) == before  # the whole file of weights is what loading takes, not the index
    shards = sharded(folder, tmp_path / "sharded")
    listed = set(json.loads((shards / "model.safetensors.index.json").read_text())["weight_map"].values())
    (shards / "model-00001-of-00009.safetensors").write_bytes(b"of an earlier save")
    assert {name for name in publishable(shards) if name.endswith(".safetensors")} == listed
    record_property("tried", len(foreign) + 1)


LISTED = ("../o.safetensors", "/etc/passwd", ".env")
INDEXES = ["{}", "[1]", "{", *(f'{{"weight_map": {{"a": "{name}"}}}}' for name in LISTED)]


@refused
@pytest.mark.parametrize("index", INDEXES)
def test_an_index_of_no_whole_model_is_refused(folder, index):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=r"index\.json"):
        publishable(folder)


@refused
def test_a_model_and_an_adapter_in_one_folder_are_refused(folder):
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="one model"):
        publishable(folder)


# A Hub that hangs


def interrupt_elsewhere():
    """Ctrl-C as the kernel may hand it out: to a thread that is not the main one, whose wait it does not end."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


def test_an_interrupt_ends_a_hanging_push_at_once(hub, folder, monkeypatch):
    count, let_go = hub.count, threading.Event()

    def hang(request: str):
        count(request)
        if "large/" not in request:
            return None
        threading.Timer(0.2, interrupt_elsewhere).start()
        return "hang"

    monkeypatch.setattr(hub, "count", hang)
    monkeypatch.setattr(hub, "wait_for_end", let_go.wait)
    with pytest.raises(PushInterrupted, match=r"^interrupted: .*trl-credit push .* me/x$"):
        push_to(hub, folder)
    assert not any(repo.commits for repo in hub.repos.values())
    let_go.set()


@pytest.mark.slow
def test_an_interrupted_run_does_not_wait_for_the_push_of_a_checkpoint(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_server, "LARGE_FILES", (".safetensors", ".json"))  # a thread of the client for each file
    words = [str(EXAMPLES / "train.py"), "--output_dir", "out", "--push_to_hub", "--hub_model_id", "x"]
    words += "--max_steps 100000 --per_device_train_batch_size 8 --num_generations 4 --save_steps 1".split()
    hanging, count = threading.Event(), hub.count
    hub.count = lambda request: count(request) or ("/large/" in request and (hanging.set() or "hang")) or None
    process = start(words, hub, tmp_path, stderr=subprocess.PIPE)
    try:
        assert hanging.wait(120)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in error and "interrupted at step" in error
