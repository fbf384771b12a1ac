"""What a run's data and weights are known by: equal for the same ones however they are stored, else different."""

import random
import shutil
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
from accelerate import PartialState
from datasets import Dataset, IterableDataset, concatenate_datasets
from transformers import AutoConfig

from trl_credit.runs.data_identity import data_identity, read_first_rows
from trl_credit.runs.model_identity import weights_digest


ROWS = [{"prompt": [{"role": "user", "content": f"{i}?"}], "answer": str(i), "level": i % 5} for i in range(2500)]


def of(dataset) -> dict:
    return data_identity(dataset, first_rows=[])


def test_rows_count_and_not_how_they_are_stored(tmp_path):
    rows = Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "saved", num_shards=3)
    mapped = Dataset.load_from_disk(str(tmp_path / "saved"))
    in_parts = concatenate_datasets([rows.select(range(a, b)) for a, b in ((0, 7), (7, 1999), (1999, 2500))])
    backwards = rows.select(range(2499, -1, -1))
    for same in (mapped, in_parts, backwards.select(range(2499, -1, -1)), rows.with_format("torch")):
        assert of(same) == of(rows)
    assert of(rows.with_transform(lambda batch: {"prompt": [random.random() for _ in batch["prompt"]]})) == of(rows)
    assert of(backwards)["content"] != of(rows)["content"]


@pytest.mark.parametrize("row", [0, 999, 1000, 2499])
@pytest.mark.parametrize("column", ["answer", "level", "prompt"])
def test_any_cell_counts(row, column):
    other = {"answer": "x", "level": 7, "prompt": [{"role": "user", "content": "x"}]}[column]
    changed = [one | {column: other} if i == row else one for i, one in enumerate(ROWS)]
    assert of(Dataset.from_list(changed))["content"] != of(Dataset.from_list(ROWS))["content"]


def draws(row):
    return row | {"a": random.random(), "b": np.random.rand(), "c": torch.rand(1).item()}


def test_a_stream_that_draws_at_random_is_the_same_stream(caplog):
    PartialState()  # as after the configuration of a run is made
    stream = IterableDataset.from_generator(lambda: iter(ROWS)).map(draws)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    rows = read_first_rows(stream, count=3, seed=0)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
    assert torch.equal(before[0], after[0]) and before[1] == after[1] and (before[2] == after[2]).all()
    assert read_first_rows(stream, count=3, seed=0) == rows and not caplog.text
    remaining = iter(ROWS)
    read_once = IterableDataset.from_generator(lambda: iter(remaining))
    assert [row["answer"] for row in read_first_rows(read_once, count=3, seed=0)] == ["0", "1", "2"]
    assert "4 rows are lost" in caplog.text


def test_a_model_of_the_hub_is_known_by_its_weights_and_else_by_its_commit(tiny_model, tmp_path, monkeypatch):
    args, commit = SimpleNamespace(output_dir=str(tmp_path / "run")), "0" * 40
    repo = tmp_path / "models--user--model"
    snapshot = repo / "snapshots" / commit
    shutil.copytree(tiny_model, snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    config = AutoConfig.from_pretrained(tiny_model)
    config._name_or_path, config._commit_hash = "user/model", commit
    of_folder = weights_digest(AutoConfig.from_pretrained(tiny_model), args)
    assert weights_digest(config, args) == of_folder != commit
    (snapshot / "README.md").write_text("# another commit of the same weights")
    assert weights_digest(config, args) == of_folder
    config._name_or_path = "user/other"
    assert weights_digest(config, args) == commit
    config._name_or_path = ""
    assert weights_digest(config, args) is None


def test_weights_in_pieces_are_all_compared(tiny_model, tmp_path):
    args = SimpleNamespace(output_dir=str(tmp_path / "run"))
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    whole = folder / "model.safetensors"
    shutil.copy(whole, folder / "model-00002-of-00002.safetensors")
    pieces = [whole.rename(folder / "model-00001-of-00002.safetensors"), folder / "model-00002-of-00002.safetensors"]
    config = AutoConfig.from_pretrained(folder)
    before = weights_digest(config, args)
    for file in pieces:
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        assert before != (before := weights_digest(config, args))
