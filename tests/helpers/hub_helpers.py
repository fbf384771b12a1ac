"""Folders of trained models, and processes that talk to a `HubServer`."""

import os
import subprocess
import sys
from pathlib import Path

from hub_server import HubServer
from transformers import AutoModelForCausalLM

from trl_credit.hub import Repository, push


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECRET = "hf_thisIsSecretAndMustNotLeak0"


def model_folder(folder: Path, model: str) -> Path:
    """A run's folder with a model and a card."""
    folder.mkdir()
    for path in Path(model).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# x\n")
    return folder


def run_folder(folder: Path, model: str) -> Path:
    """The same with a plot and an evaluation, and with files that hold `SECRET` and must not be pushed."""
    model_folder(folder, model)
    (folder / "credit_plot.png").write_bytes(b"\x89PNG")
    for name in ("checkpoint-2/model.safetensors", "training_args.bin", ".env", "completions/c.json", "wandb/run.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(SECRET)
    (folder / "evaluation" / "samples").mkdir(parents=True)
    (folder / "evaluation" / "samples" / "s.jsonl").write_text("{}")
    (folder / "evaluation" / "evaluation.md").write_text("| model |\n|---|\n")
    return folder


def sharded(model: Path, folder: Path) -> Path:
    """The model in shards of 20 kB."""
    AutoModelForCausalLM.from_pretrained(model).save_pretrained(folder, max_shard_size="20KB")
    return folder


def push_to(hub: HubServer, folder: Path, repo_id: str = "me/x", **options) -> str:
    return push(folder, Repository(repo_id, token=hub.token, endpoint=hub.url, **options))


def environment(hub: HubServer, home: Path) -> dict[str, str]:
    """Variables of a process that talks to `hub`."""
    clean = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    clean |= {"HF_ENDPOINT": hub.url, "NO_PROXY": "127.0.0.1,localhost", "HF_HUB_DISABLE_XET": "1"}
    return clean | {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(home / "hf"), "HF_TOKEN": hub.token}


def start(words: list[str], hub: HubServer, cwd: Path, **options) -> subprocess.Popen:
    """Starts Python with `words` in `cwd`."""
    return subprocess.Popen([sys.executable, *words], cwd=cwd, env=environment(hub, cwd), text=True, **options)


def output_of(words: list[str], hub: HubServer, cwd: Path) -> str:
    """Standard output of a process that must end with exit code 0."""
    process = start(words, hub, cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, error = process.communicate()
    assert process.returncode == 0, error[-2000:]
    return output
