"""Runs that would mislead: nothing to train, and the folder, checkpoint, functions or settings of another run."""

import functools

import datasets
import pytest
from reward_helpers import scaled
from run_helpers import SAVES, length_reward, refused, survived

from trl_credit.hub import write_model_card
from trl_credit.runs.checkpoints import last_checkpoint


pytestmark = refused
STREAM = datasets.IterableDataset.from_generator(lambda: iter([{"prompt": "1+1=", "answer": "2"}]))
SHORT = [({"steps_per_generation": 4}, 3, 8), ({}, 1, 2), ({"trainer_kwargs": {"train_dataset": STREAM}}, 1, 2)]


@pytest.mark.parametrize(("settings", "n_prompts", "needed"), SHORT)
def test_nothing_to_train(make_trainer, tmp_path, settings, n_prompts, needed):
    with pytest.raises(ValueError, match=f"one generation batch takes {needed} prompts"):
        make_trainer("grpo", n_prompts=n_prompts, **settings).train()
    record = {"credit_run.json", ".credit_run.lock"} if settings.keys() == {"trainer_kwargs"} else set()  # of a stream
    assert {path.name for path in (tmp_path / "run").iterdir()} == record


OTHER = [
    ("p_trace", {}, "algorithm GRPO → P-trace"),
    ("grpo", {"learning_rate": 1e-5}, "learning_rate 0.001 → 1e-05"),
    ("grpo", {"per_device_train_batch_size": 4}, "batch_size 8 → 4"),
    ("grpo", {"model_init_kwargs": {"dtype": "bfloat16"}}, "model.dtype float32 → bfloat16"),
    ("grpo", {"reward_funcs": length_reward}, "reward_funcs.count_a left out, reward_funcs.length_reward added"),
]


def test_another_run_in_the_folder(make_trainer, tmp_path, record_property):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    before = (tmp_path / "run" / "credit_run.json").read_bytes()
    for algo, settings, difference in OTHER:
        for resume, fix in ((None, "overwrite_output_dir"), (True, 'allow_changed=\\["')):
            other = make_trainer(algo, max_steps=2, **{**SAVES, **settings})
            with pytest.raises(ValueError, match=f"{difference}.*{fix}"):
                other.train(resume_from_checkpoint=resume)
    for settings, resume, named in (
        ({"allow_changed": ["lerning_rate"]}, True, "did you mean 'learning_rate'"),
        ({"allow_changed": ["seed"]}, None, "allow_changed"),
        ({"overwrite_output_dir": True}, True, "overwrite_output_dir"),
    ):
        with pytest.raises(ValueError, match=named):
            make_trainer("grpo", max_steps=2, **SAVES, **settings).train(resume_from_checkpoint=resume)
    assert (tmp_path / "run" / "credit_run.json").read_bytes() == before
    record_property("tried", 2 * len(OTHER) + 3)


@survived
def test_an_allowed_change_is_kept_and_on_the_card(make_trainer, trained, tmp_path):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    free = {"logging_steps": 5, "reward_timeout": 60.0, "length_sort": "off"}  # do not change the loss
    cut = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}  # the same batch in other pieces
    changes = {"learning_rate": 1e-5, "beta": 0.1}
    allowed = {**SAVES, **free, **cut, **changes, "allow_changed": ["learning_rate", "beta"]}
    changed = trained("grpo", max_steps=2, **allowed, resume=True)
    change = "From step 1: learning_rate 0.001 → 1e-05, beta 0.0 → 0.1."
    assert changed.changes_of_run() == [change]
    assert f"* {change}" in write_model_card(changed, name="GRPO").read_text().replace("\\_", "_")
    assert "allow_changed" not in (tmp_path / "run" / "recipe.yaml").read_text()  # it belongs to this resume alone
    # the next resume is compared with this one
    assert trained("grpo", max_steps=3, **SAVES, **changes, resume=True).changes_of_run() == [change]


@survived
def test_the_same_run_from_scratch_ignores_older_checkpoints(make_trainer, tmp_path):
    run = tmp_path / "run"
    make_trainer("grpo", max_steps=4, **SAVES).train()
    make_trainer("grpo", max_steps=2, **SAVES).train()
    assert last_checkpoint(run).name == "checkpoint-2"  # of 4, which are still there
    # the same holds for an abandoned resume
    make_trainer("grpo", max_steps=2, **{**SAVES, "save_strategy": "no"}).train(str(run / "checkpoint-1"))
    assert last_checkpoint(run).name == "checkpoint-1"
    make_trainer("grpo", max_steps=2, save_strategy="no", lr_scheduler_type="constant").train()
    with pytest.raises(ValueError, match="no complete checkpoint.*checkpoint-1"):
        make_trainer("grpo", max_steps=3, **SAVES).train(resume_from_checkpoint=True)


def test_two_runs_at_once(make_trainer):
    holder = make_trainer("grpo", max_steps=1, **SAVES)
    holder.claim_output_dir()
    with pytest.raises(ValueError, match="another process is training in output_dir="):
        make_trainer("grpo", **SAVES).train()  # in this process or another: the lock is a file's
    holder.train()  # its own claim is no obstacle


def test_a_checkpoint_from_elsewhere_into_the_folder_of_another_run(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=1, output_dir=str(tmp_path / "one"), **SAVES).train()
    make_trainer("p_trace", max_steps=2, **SAVES).train()
    checkpoint = str(tmp_path / "one" / "checkpoint-1")
    with pytest.raises(ValueError, match="algorithm P-trace → GRPO"):
        make_trainer("grpo", max_steps=2, **SAVES).train(resume_from_checkpoint=checkpoint)
    # its checkpoints may be removed: the one to resume from is not among them
    make_trainer("grpo", max_steps=2, overwrite_output_dir=True, **SAVES).train(resume_from_checkpoint=checkpoint)
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]


PARTIALS = [functools.partial(length_reward, scale=scale) for scale in (1, 2)]
# the settings of a run, of one with the same functions, and of one with others
FUNCTIONS = {
    "share": ("grpo", *({"reward_funcs": scaled(weight)} for weight in (1.0, 1.0, 2.0))),
    "credit": ("base", *({"credit": f"{{folder}}{name}"} for name in ("own.py:one", "./own.py:one", "own.py:two"))),
    "length_reward_2": ("grpo", *({"reward_funcs": x} for x in (PARTIALS, PARTIALS, PARTIALS[::-1]))),
}
OWN = "from trl_credit.loss.assignment import assign_credit\n\n"
OWN += "".join(f"def {name}(config, tokens):\n    return assign_credit(config, tokens)\n\n" for name in ("one", "two"))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_another_run(make_trainer, tmp_path, function):
    (tmp_path / "own.py").write_text(OWN)
    algo, *runs = FUNCTIONS[function]
    if algo == "base":
        runs = [{"credit": run["credit"].format(folder=f"{tmp_path}/")} for run in runs]
    one, same, other = runs
    make_trainer(algo, max_steps=1, **one, **SAVES).train()
    make_trainer(algo, max_steps=2, **same, **SAVES).train(True)
    with pytest.raises(ValueError, match=f"the code of `{function}` changed"):
        make_trainer(algo, max_steps=3, **other, **SAVES).train(True)


@survived
def test_a_function_may_change_what_it_captured(make_trainer):
    seen: list[str] = []

    def reward(completions, **kwargs):
        seen.extend(completions)
        return [len(text) / 8 for text in completions]

    for steps, resume in ((1, None), (2, True)):
        make_trainer("grpo", max_steps=steps, reward_funcs=reward, **SAVES).train(resume)
