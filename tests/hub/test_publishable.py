"""The files of a run's folder that a push sends."""

import json
from pathlib import Path

import pytest
from hub_helpers import run_folder, sharded

from trl_credit.hub import publishable


@pytest.fixture
def folder(tmp_path, tiny_model) -> Path:
    return run_folder(tmp_path / "run", tiny_model)


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
