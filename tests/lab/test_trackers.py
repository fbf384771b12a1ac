"""Credit pages and metrics in the trackers of `report_to`, as their offline modes store them."""

import importlib.util
import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback
from viewer_helpers import Page, header, response, s_trace

from trl_credit import CreditPageCallback
from trl_credit.lab.viewer import trackers
from trl_credit.lab.viewer.excerpt import excerpt, ranked_groups
from trl_credit.lab.viewer.trackers import page_of
from trl_credit.observe.schema import Shard, shard_path


@pytest.fixture
def run(make_trainer):
    """Trains two steps with a page of each, and returns the trainer."""

    def train(*report_to: str, before: TrainerCallback | None = None, **settings):
        trainer = make_trainer("s_trace", report_to=list(report_to), **{"log_credit": 1, **settings})
        if before is not None:
            trainer.add_callback(before)
        trainer.add_callback(CreditPageCallback(trainer))
        trainer.train()
        return trainer

    return train


# Trackers


def test_tensorboard(run):
    trainer = run("tensorboard")
    (folder,) = Path(trainer.args.output_dir).glob("runs/*")
    (events,) = folder.iterdir()  # no second writer
    written = EventAccumulator(str(events)).Reload()
    scalars = written.Tags()["scalars"]
    assert {"credit/clip_fraction", "credit/effective_horizon", "train/reward", "train/loss"} <= set(scalars)
    assert [name for name in scalars if name.startswith("train/credit")] == []
    logged = [row["credit/effective_horizon"] for row in trainer.state.log_history if "credit/effective_horizon" in row]
    assert [x.value for x in written.Scalars("credit/effective_horizon")] == pytest.approx(logged)
    assert [x.step for x in written.Scalars("credit/effective_horizon")] == [1, 2]


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio(run, tmp_path):
    from trackio.utils import MEDIA_DIR, TRACKIO_DIR

    trainer = run("trackio", project=tmp_path.name, run_name="one")
    with sqlite3.connect(TRACKIO_DIR / f"{tmp_path.name}.db") as database:
        rows = [json.loads(text) for (text,) in database.execute("SELECT metrics FROM metrics ORDER BY step")]
    database.close()
    with_page = [row for row in rows if "credit/page" in row]
    assert [row["train/global_step"] for row in with_page] == [1, 2]
    pages = [(MEDIA_DIR / row["credit/page"]["file_path"]).read_text("utf-8") for row in with_page]
    shards = [shard for page in pages for shard in Page(page).data["shards"]]
    assert [(shard["header"]["step"], len(shard["responses"])) for shard in shards] == [(1, 8), (2, 8)]
    # Trackio makes a part `credit` of the section `train` by itself
    masses = [row["train/credit/effective_horizon"] for row in rows if "train/credit/effective_horizon" in row]
    logged = [row["credit/effective_horizon"] for row in trainer.state.log_history if "credit/effective_horizon" in row]
    assert masses == pytest.approx(logged) and len(masses) == 2


class Spoils(TrainerCallback):
    """Damages each shard before it is sent."""

    def on_step_end(self, args, state, control, **kwargs):
        shard_path(args.output_dir, state.global_step).write_text("{}", encoding="utf-8")


def test_a_step_is_sent_when_its_pass_ends_and_a_damaged_shard_is_one_warning(run, caplog, monkeypatch):
    """With two optimizer steps in a generation batch, the shard of step 3 is written in step 4."""
    pages = {}

    def log(values):
        pages[values["train/global_step"]] = values["credit/page"]

    tracker = SimpleNamespace(Html=lambda text, inject: text.read(), log=log)  # the module of one that shows HTML
    monkeypatch.setattr(CreditPageCallback, "trackers_of", staticmethod(lambda callbacks: [tracker]))
    run("tensorboard", steps_per_generation=2, gradient_accumulation_steps=1, max_steps=4, log_credit=3)
    assert list(pages) == [3] and Page(pages[3]).data["shards"][0]["header"]["step"] == 3
    trainer = run("tensorboard", before=Spoils(), overwrite_output_dir=True)
    assert trainer.state.global_step == 2 and list(pages) == [3]
    warnings = [r.message.split(":")[0] for r in caplog.records if "credit page" in r.message]
    assert warnings == ["no credit page of step 1, nor of later ones"]


def test_what_a_callback_is_given(make_trainer, tmp_path):
    with pytest.raises(ValueError, match="names none of wandb, trackio and tensorboard"):
        CreditPageCallback(make_trainer())

    class Mine(TensorBoardCallback):
        pass

    writer, mine = object(), Mine()
    trainer = make_trainer(trainer_kwargs={"callbacks": [mine, TensorBoardCallback(writer)]})
    CreditPageCallback(trainer)
    theirs = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, TensorBoardCallback)]
    assert theirs[0] is mine and [type(callback) for callback in theirs[1:]] == [trackers._GroupedTensorBoard]
    assert theirs[1].tb_writer is writer


# What is sent


def test_the_best_and_the_worst_of_the_most_different_group_come_first():
    rewards = {0: (0.5, 0.5, 0.5), 1: (0.1, 0.9, 0.0, 1.0), 2: (1.0, 0.0)}
    rows = [response("a b", group=g, index=i, reward=r) for g, rs in rewards.items() for i, r in enumerate(rs)]
    for row in rows:
        row["credit"] = [0.0 if row["group"] == 2 else 1.0] * len(row["tokens"])
    shard = Shard(header("GRPO"), {1: [], 2: []}, rows)
    order = [[(row["group"], row["index"]) for row in group] for group in ranked_groups([shard])]
    assert order == [[(1, 3), (1, 2), (1, 1), (1, 0)], [(0, 0), (0, 2), (0, 1)], [(2, 0), (2, 1)]]
    kept = excerpt(shard, max_tokens=3 * len(rows[0]["tokens"]))
    assert [row["index"] for row in kept.responses] == [1, 2, 3] and list(kept.trees) == [1]
    assert len(excerpt(shard, max_tokens=0).responses) == 1
    assert excerpt(shard, max_tokens=10**6).responses == rows


def test_a_page_has_at_most_its_size(monkeypatch):
    whole = page_of(s_trace(), title="run")
    assert "logged responses" not in whole and len(Page(whole).data["shards"][0]["responses"]) == 8
    monkeypatch.setattr(trackers, "MAX_BYTES", len(whole.encode()) - 1)
    part = page_of(s_trace(), title="run")
    shown = len(Page(part).data["shards"][0]["responses"])
    assert len(part) < len(whole) and 1 < shown < 8 and f"{shown} of 8 logged responses" in part
    monkeypatch.setattr(trackers, "MAX_BYTES", 0)
    assert len(Page(page_of(s_trace(), title="run")).data["shards"][0]["responses"]) == 1
