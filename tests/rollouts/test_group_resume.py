"""A run that chooses groups and prompts, resumed inside an epoch, is the uninterrupted one to the last bit."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from custom_functions import args_of
from group_helpers import SMALL
from transformers import TrainerCallback
from weight_helpers import same_weights

from trl_credit.rollouts.groups import SignalGroups
from trl_credit.rollouts.prompts import PROMPT_RATES_FILE
from trl_credit.rollouts.sources import Responses


SAVED = {**SMALL, "save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant", "max_steps": 5}
CHAIN = {"rollouts": "chain", "loss_type": "dapo", "rollouts_per_state": 2, "segmentation": "fixed_length"}
CASES = {
    "replace": {"groups": "replace"},
    "difficulty and refill": {"prompt_sampler": "difficulty", "groups": "refill", "retire_above": 0.9},
    "chain by advantage": {"groups": "refill", "group_signal": "advantage", **CHAIN, "segment_length": 3},
    "tree": {"groups": "refill", "rollouts": "tree", "loss_type": "dapo"},
}


def metrics_of(trainer) -> list[dict]:
    timed = ("seconds", "time", "runtime", "per_second")
    return [{k: v for k, v in row.items() if not any(word in k for word in timed)} for row in trainer.state.log_history]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_resumed_is_uninterrupted(trained, tmp_path, case):
    settings = {**SAVED, **CASES[case]}
    reference = trained(**settings, output_dir=str(tmp_path / "reference"))
    trained(**{**settings, "max_steps": 3})
    resumed = trained(**settings, resume=True)
    assert resumed.state.global_step == 5
    assert same_weights(reference, resumed)
    assert metrics_of(reference)[:5] == metrics_of(resumed)[:5]
    files = [Path(t.args.output_dir) / "checkpoint-5" / PROMPT_RATES_FILE for t in (resumed, reference)]
    assert files[0].exists() == files[1].exists() == (case != "replace")
    if files[0].exists():
        contents = {path.read_bytes() for path in (*files, files[0].parents[1] / PROMPT_RATES_FILE)}
        assert len(contents) == 1


def test_groups_that_waited_in_an_earlier_version_are_left_out_with_a_warning(caplog):
    policy = SimpleNamespace(args=args_of(groups="replace"))
    groups = SignalGroups(Responses(policy), SimpleNamespace(stateful=()))
    groups.load_state_dict({"file": "waiting_groups.safetensors", "batches": 3, "waiting": 2}, Path())
    assert groups.state_dict(Path()) == {"batches": 3} and len(caplog.records) == 1


def test_settings_that_lose_or_lack_the_state_are_refused(make_trainer, trained, tmp_path):
    trained(**{**SAVED, "groups": "refill", "max_steps": 1})
    checkpoint, more = str(tmp_path / "run" / "checkpoint-1"), {"allow_changed": ["groups"]}
    with pytest.raises(ValueError, match=r"would lose \(groups, prompts\)"):
        make_trainer(**SAVED, **more).train(resume_from_checkpoint=checkpoint)


class Evaluate(TrainerCallback):
    """Evaluates in the middle of a run."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate = state.global_step == 2


def test_an_evaluation_changes_nothing(trained, tmp_path):
    """Its batches are plain, and its groups of another size."""
    settings = {**SMALL, "groups": "refill", "prompt_sampler": "difficulty", "max_steps": 3, "seed": 3}
    plain = trained(**settings)
    kwargs = {"eval_dataset": plain.train_dataset.select(range(4)), "callbacks": [Evaluate()]}
    more = {"num_generations_eval": 2, "per_device_eval_batch_size": 4, "overwrite_output_dir": True}
    torch.manual_seed(0)
    evaluated = trained(**settings, **more, trainer_kwargs=kwargs)
    (row,) = [row for row in evaluated.state.log_history if "eval_reward" in row]
    assert "eval_credit/groups/signal" not in row
    first = [json.dumps(metrics_of(t)[:2]) for t in (plain, evaluated)]
    assert first[0] == first[1]
