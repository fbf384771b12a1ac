"""Checkpoints: the state in them, which of them are complete, and runs that are killed during a save."""

import json

import pytest
from processes import results, run

from trl_credit.runs.checkpoints import VERSION, is_complete, last_checkpoint, read_state, write_state


NEEDED = {"difficulty": "difficulty='history'"}


def test_a_state_that_cannot_be_resumed_is_named_with_the_fix(tmp_path):
    assert read_state(tmp_path, needed={})["parts"] == {}  # a checkpoint of plain TRL
    with pytest.raises(ValueError, match=r"credit_state.json holds no state for difficulty='history'"):
        read_state(tmp_path, needed=NEEDED)
    write_state(tmp_path, {"parts": {"difficulty": {"beliefs": [0.1, 0.2]}}})
    assert read_state(tmp_path, needed=NEEDED)["parts"] == {"difficulty": {"beliefs": [0.1, 0.2]}}
    write_state(tmp_path, {"parts": {"replay": {}}})
    with pytest.raises(ValueError, match="holds no state for difficulty='history'"):
        read_state(tmp_path, needed=NEEDED)
    with pytest.raises(ValueError, match="would lose .replay."):
        read_state(tmp_path, needed={})
    (tmp_path / "credit_state.json").write_text(json.dumps({"version": VERSION + 1, "parts": {}}))
    with pytest.raises(ValueError, match="newer trl_credit"):
        read_state(tmp_path, needed={})


def test_the_last_checkpoint_is_the_last_complete_one(tmp_path):
    assert last_checkpoint(tmp_path) is None
    for step, text in ((2, '{"global_step": 2}'), (10, '{"global_step": 10}'), (11, '{"global_st'), (12, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if text is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    (tmp_path / "checkpoint-best").mkdir()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert not is_complete(tmp_path / "checkpoint-11") and not is_complete(tmp_path / "nowhere")


def test_a_refused_resume_leaves_the_folder_as_it_was(make_trainer, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1}
    make_trainer("ha_dw", max_steps=2, **settings).train()
    run_file = tmp_path / "run" / "credit_run.json"
    before, first = run_file.read_bytes(), tmp_path / "run" / "checkpoint-1"
    (first / "credit_state.json").unlink()
    with pytest.raises(ValueError, match="no state for difficulty"):
        make_trainer("ha_dw", max_steps=3, **settings).claim_output_dir(first)  # as the command does, before train()
    assert run_file.read_bytes() == before
    assert last_checkpoint(tmp_path / "run") == tmp_path / "run" / "checkpoint-2"


@pytest.mark.slow
def test_kills_lose_no_checkpoint(tmp_path):
    (result,) = results(run("run_kills.py", tmp_path / "run", 12))
    steps = result["steps"]
    assert len(steps) == 12 and steps == sorted(set(steps))  # every resume continued from the save before
    assert result["half_written"] > 0  # or no kill hit a save, and nothing was shown
