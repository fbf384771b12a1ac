"""A run that chooses groups and prompts, resumed inside an epoch, is the uninterrupted one to the last bit."""

import json
from pathlib import Path

import pytest
import torch
from group_helpers import SMALL, by_prompt
from passes_helpers import with_slow
from safetensors.torch import load_file
from transformers import TrainerCallback
from weight_helpers import same_weights

from trl_credit.rollouts.group_store import load_groups
from trl_credit.rollouts.groups import GROUPS_FILE
from trl_credit.rollouts.prompt_rates import PROMPT_RATES_FILE


SAVED = {**SMALL, "save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant", "max_steps": 8}
CHAIN = {"rollouts": "chain", "loss_type": "dapo", "rollouts_per_state": 2, "segmentation": "fixed_length"}
CASES = {
    "refill": {"groups": "refill"},
    "replace": {"groups": "replace"},
    "difficulty": {"prompt_sampler": "difficulty"},
    "difficulty and refill": {"prompt_sampler": "difficulty", "groups": "refill", "retire_above": 0.9},
    "chain": {"groups": "refill", **CHAIN, "segment_length": 3},
    "chain by advantage": {"groups": "refill", "group_signal": "advantage", **CHAIN, "segment_length": 3},
    "tree": {"groups": "refill", "rollouts": "tree", "loss_type": "dapo"},
}


def metrics_of(trainer) -> list[dict]:
    timed = ("seconds", "time", "runtime", "per_second")
    return [{k: v for k, v in row.items() if not any(word in k for word in timed)} for row in trainer.state.log_history]


def waiting(folder: Path, step: int) -> int:
    path = folder / f"checkpoint-{step}" / GROUPS_FILE
    return len(load_groups(path)) if path.exists() else 0


QUICK = ("refill", "difficulty and refill")


@pytest.mark.slow
@pytest.mark.parametrize("case", with_slow(CASES, *CASES.keys() - set(QUICK)))
def test_resumed_is_uninterrupted(trained, tmp_path, case):
    settings = {**SAVED, **CASES[case]}
    reference = trained(**settings, output_dir=str(tmp_path / "reference"))
    # where groups wait, if they do in any of the first checkpoints
    at = max(range(2, 7), key=lambda step: (waiting(tmp_path / "reference", step), -step))
    if case in ("refill", "difficulty and refill", "chain"):
        assert waiting(tmp_path / "reference", at) > 0
    trained(**{**settings, "max_steps": at})
    resumed = trained(**settings, resume=True)
    assert resumed.state.global_step == 8
    assert same_weights(reference, resumed)
    assert metrics_of(reference)[:8] == metrics_of(resumed)[:8]
    for name in (GROUPS_FILE, PROMPT_RATES_FILE):
        ours, theirs = (Path(t.args.output_dir) / "checkpoint-8" / name for t in (resumed, reference))
        assert ours.exists() == theirs.exists()
        if name == PROMPT_RATES_FILE and ours.exists():
            assert ours.read_bytes() == theirs.read_bytes() == (ours.parents[1] / name).read_bytes()
        elif ours.exists():
            ours, theirs = load_file(ours), load_file(theirs)
            assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_file_of_waiting_groups(make_trainer, trained, tmp_path, damage):
    trained(**{**SAVED, "groups": "refill", "max_steps": 2})
    path = tmp_path / "run" / "checkpoint-2" / GROUPS_FILE
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-20] if damage == "cut" else content.replace(b'"sha256":"', b'"sha256":"0', 1)[:-1])
    trainer = make_trainer(**{**SAVED, "groups": "refill"})
    with pytest.raises(ValueError, match=r"does not fit groups='refill' \(cannot restore the waiting groups from"):
        trainer.train(resume_from_checkpoint=True)


def test_settings_that_lose_or_lack_the_state_are_refused(make_trainer, trained, tmp_path):
    trained(**{**SAVED, "groups": "refill", "max_steps": 2})
    checkpoint, more = str(tmp_path / "run" / "checkpoint-2"), {"allow_changed": ["groups"]}
    with pytest.raises(ValueError, match=r"holds state that this run would lose \(groups, prompts\)"):
        make_trainer(**SAVED, **more).train(resume_from_checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"holds no state for prompt_sampler='difficulty'|would lose"):
        make_trainer(**SAVED, prompt_sampler="difficulty", **more).train(resume_from_checkpoint=checkpoint)


class Evaluate(TrainerCallback):
    """Evaluates in the middle of a run."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate = state.global_step == 2


def test_an_evaluation_changes_nothing(trained, tmp_path):
    """Its batches are plain, its groups of another size, and what waits is untouched."""
    settings = {**SMALL, "groups": "refill", "prompt_sampler": "difficulty", "max_steps": 5, "seed": 3}
    plain = trained(**settings)
    rows = plain.train_dataset.select(range(4))
    kwargs = {"eval_dataset": rows, "callbacks": [Evaluate()]}
    more = {"num_generations_eval": 2, "per_device_eval_batch_size": 4, "overwrite_output_dir": True}
    torch.manual_seed(0)
    evaluated = trained(**settings, **more, trainer_kwargs=kwargs)
    found = [row for row in evaluated.state.log_history if "eval_reward" in row]
    assert len(found) == 1 and "eval_credit/groups/signal" not in found[0]
    first = [json.dumps(metrics_of(t)[:2]) for t in (plain, evaluated)]
    assert first[0] == first[1]
    counts = [row for row in evaluated.state.log_history if "credit/groups/sampled" in row]
    assert len(counts) == 5  # it sampled by torch's generator, so the batches after it may differ


def none_for_some(prompts, completions, **kwargs):
    """No score for a prompt that begins with 1, 2 or 3, and none for every fourth response."""
    scores = by_prompt(prompts, completions)
    return [None if p[0] in "123" or i % 4 == 3 else x for i, (p, x) in enumerate(zip(prompts, scores, strict=True))]


HOSTILE = {
    "no score": {"reward_funcs": none_for_some, "groups": "refill"},
    "uneven groups": {"per_device_train_batch_size": 6, "steps_per_generation": 2, "groups": "refill"},
    "several updates": {"per_device_train_batch_size": 4, "steps_per_generation": 4, "groups": "refill"},
    "several batches": {"steps_per_generation": 1, "gradient_accumulation_steps": 2, "groups": "refill"},
    "one refill": {"groups": "refill", "max_refills": 1},
    "few prompts": {"groups": "refill", "n_prompts": 6},
    "unused columns": {"prompt_sampler": "difficulty", "remove_unused_columns": True},
    "a floor of 0": {"prompt_sampler": "difficulty", "prompt_floor": 0.0, "n_prompts": 8, "max_steps": 6},
    "everything": {"groups": "refill", "prompt_sampler": "difficulty", "beta": 0.1, "dull_kl": "drop",
                   "difficulty": "history", "whiten_advantages": "batch", "token_mask": "probability",
                   "loss_type": "dapo", "prompt_average": True, "num_iterations": 2},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", with_slow(HOSTILE, *HOSTILE.keys() - {"no score", "uneven groups", "everything"}))
def test_runs_go_through(trained, case):
    trainer = trained(**{**SMALL, "max_steps": 3, **HOSTILE[case]})
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert trainer.state.global_step == len(losses) and all(abs(x) < 100 for x in losses)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
