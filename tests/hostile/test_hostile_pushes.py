"""Secrets and strange files in a run's folder, and a Hub that hangs."""

import html
import json
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import quote

import hub_server
import pytest
import yaml
from hub_helpers import EXAMPLES, model_folder, push_to, start
from passes_helpers import with_slow
from transformers import AutoModelForCausalLM

from trl_credit.hub import PushInterrupted, publishable, push
from trl_credit.hub.markdown import escape


KIND = "cards and pushes"
TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh"
# put together here, so that no scanner of repositories takes them for real ones
SHAPES = {
    "hf": TOKEN,
    "ghp": "ghp_" + "0aB1cD2eF3" * 3 + "gH4iJ5",
    "gho": "gho_" + "0aB1cD2eF3" * 3 + "gH4iJ5",
    "ghs": "ghs_" + "0aB1cD2eF3" * 3 + "gH4iJ5",
    "github_pat": "github_pat_" + "11ABCDEFG0" + "abcdefGHIJ_KL3mn" * 4,
    "sk": "sk-" + "aB3dE6gH9jK2" * 4,
    "sk-proj": "sk-proj-" + "aB3-dE6_gH9jK2" * 4,
    "sk-ant": "sk-ant-api03-" + "aB3-dE6_gH9jK2" * 6,
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "slack": "xoxb-" + "123456789012-abcdefABCDEF",
    "jwt": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    "key": "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
}
PASSWORDS = [
    r"it's a\new&<pass>word",
    'quo"ted`$ecret',
    "пароль-из-букв",
    "correct horse battery staple",
    "a_b*c[d]#e|f~g!",
]


@pytest.fixture
def folder(tmp_path, tiny_model) -> Path:
    return model_folder(tmp_path / "run", tiny_model)


def escapes(secret: str) -> dict[str, str]:
    """What a secret looks like in files of all kinds."""
    long = "word " * 18
    return {
        "raw": secret,
        "markdown": escape(secret),
        "html": html.escape(secret),
        "html numbers": "".join(f"&#{ord(c)};" for c in secret),
        "json": json.dumps({"a": secret}),
        "json in json": json.dumps(json.dumps({"a": secret})),
        "json, every letter": "".join(f"\\u{ord(c):04x}" for c in secret),
        "shell": shlex.quote(secret),
        "yaml": yaml.safe_dump({"a": secret}, allow_unicode=True),
        "yaml, ascii": yaml.safe_dump({"a": secret}),
        "yaml, folded": yaml.safe_dump({"a": long + secret + " " + long}, width=40),
        "yaml, quoted and folded": yaml.safe_dump({"a": long + secret + " " + long}, width=40, default_style='"'),
        "repr": repr(secret),
        "address": quote(secret, safe=""),
    }


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize("secret", PASSWORDS)
def test_a_password_of_the_environment_is_found_however_it_is_escaped(folder, monkeypatch, record_property, secret):
    monkeypatch.setenv("TRACKER_PASSWORD", secret)
    assert publishable(folder)
    names = ("README.md", "recipe.yaml", "evaluation/evaluation.md", "generation_config.json", "chat_template.jinja")
    (folder / "evaluation").mkdir()
    for number, text in enumerate(escapes(secret).values()):
        path = folder / names[number % len(names)]
        before = path.read_bytes() if path.exists() else b""
        path.write_text(f"some text {text} more\n", encoding="utf-8")
        with pytest.raises(
            ValueError, match=rf"^{path.name if path.parent == folder else 'evaluation/' + path.name} holds"
        ):
            push(folder, "me/x", token="hf_any")
        path.write_bytes(before)
    record_property("tried", len(escapes(secret)))


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_of_somebody_else_is_found_by_its_shape(folder, record_property, shape):
    for text in escapes(SHAPES[shape]).values():
        (folder / "README.md").write_text(f"# x\n\n{text}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=r"^README\.md holds") as failure:
            push(folder, "me/x", token="hf_any")
        assert SHAPES[shape] not in str(failure.value)
    record_property("tried", len(escapes(SHAPES[shape])))


# What goes


@pytest.mark.hostile(KIND, "survived")
def test_files_of_others_stay(folder, tmp_path, record_property):
    before = publishable(folder)
    foreign = [".env", "model-00001-of-00002.safetensors", "old.safetensors", "model.safetensors.index.json"]
    foreign += [
        "tokenizer_private.json",
        "notes.jinja",
        "secret.model",
        "my_processor_config.json",
        "adapter.safetensors",
    ]
    foreign += ["additional_chat_templates/mine.jinja", "training_args.bin", "id_rsa", "evaluation/notes.md", "x.py"]
    foreign += ["service_account.json", "modeling_x.py", "photo.png", "package.json", "evaluation/x.png"]
    for name in foreign:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    assert publishable(folder) == before  # the whole file of weights is what loading takes, not the index
    sharded = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(sharded, max_shard_size="20KB")
    listed = set(json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"].values())
    (sharded / "model-00001-of-00009.safetensors").write_bytes(b"of an earlier save")
    assert {name for name in publishable(sharded) if name.endswith(".safetensors")} == listed
    record_property("tried", len(foreign) + 1)


NO_SHARDS = ("../outside.safetensors", "/etc/passwd", ".hidden.safetensors", "a/b.safetensors", ".env")


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    ("index", "message"),
    [
        *((json.dumps({"weight_map": {"a": shard}}), "not a weights file beside it") for shard in NO_SHARDS),
        *(("{}", "has no weight_map"), ("[1]", "has no weight_map"), ("{", "is not JSON")),
    ],
)
def test_an_index_of_no_whole_model_is_refused(folder, index, message):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=rf"index\.json .*{message}"):
        publishable(folder)


@pytest.mark.hostile(KIND, "refused")
def test_a_model_and_an_adapter_in_one_folder_are_refused(folder):
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="holds a model and an adapter .*: move the older away"):
        publishable(folder)


# A Hub that hangs


def interrupt_elsewhere():
    """Ctrl-C as the kernel may hand it out: to a thread that is not the main one, whose wait it does not end."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


@pytest.mark.hostile(KIND, "survived")
@pytest.mark.parametrize(
    "at", with_slow(["create", "preupload", "batch", "large/", "commit"], "preupload", "batch", "create")
)
def test_an_interrupt_ends_a_hanging_push_at_once(hub, folder, monkeypatch, at):
    for name in ("reward_curve.png", "credit_plot.png"):  # of several large files, each has a thread of the client
        (folder / name).write_bytes(name.encode())
    count, hung, let_go = hub.count, [], threading.Event()

    def hang(request: str):
        count(request)
        if at not in request or hung:
            return None
        hung.append(request)
        threading.Timer(0.2, interrupt_elsewhere).start()
        return "hang"

    monkeypatch.setattr(hub, "count", hang)
    monkeypatch.setattr(hub, "wait_for_end", let_go.wait)
    start = time.monotonic()
    message = r"^interrupted: .*run is complete. To push it later: .*trl-credit push .* me/x"
    with pytest.raises(PushInterrupted, match=message):
        push_to(hub, folder)
    assert time.monotonic() - start < 20
    let_go.set()  # the connection ends, and the client tries again
    for thread in [thread for thread in threading.enumerate() if thread.name == "push"]:
        thread.join(60)
        assert not thread.is_alive()
    assert hung and not any(repo.commits for repo in hub.repos.values())  # what nobody waits for does not arrive


def error_of_interrupted(words: list[str], hub, tmp_path) -> str:
    """Standard error of a script that gets a Ctrl-C while the Hub hangs in an upload."""
    hanging, count = threading.Event(), hub.count
    hub.count = lambda request: count(request) or ("/large/" in request and (hanging.set() or "hang")) or None
    process = start(words, hub, tmp_path, stderr=subprocess.PIPE)
    try:
        assert hanging.wait(120)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in error
    return error


@pytest.mark.slow
@pytest.mark.hostile(KIND, "survived")
def test_an_interrupted_script_does_not_wait_for_the_threads_of_its_client(hub, folder, tmp_path):
    for name in ("reward_curve.png", "credit_plot.png"):  # Python waits for the client's threads, one for each file
        (folder / name).write_bytes(name.encode())
    words = [str(EXAMPLES / "push.py"), str(folder), "--repo_id", "me/x"]
    error = error_of_interrupted(words, hub, tmp_path)  # around its line the client's threads may still move their bars
    said = f"interrupted: {folder} is complete. To push it later: trl-credit push {folder} --repo_id me/x"
    assert error.count("interrupted:") == error.count(said) == 1


@pytest.mark.slow
@pytest.mark.hostile(KIND, "survived")
def test_an_interrupted_run_does_not_wait_for_the_push_of_a_checkpoint(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_server, "LARGE_FILES", (".safetensors", ".json"))  # several threads, as above
    words = [str(EXAMPLES / "train.py"), "--output_dir", "out", "--push_to_hub", "--hub_model_id", "x"]
    words += "--max_steps 100000 --per_device_train_batch_size 8 --num_generations 4 --save_steps 1".split()
    assert "interrupted at step" in error_of_interrupted(words, hub, tmp_path)
