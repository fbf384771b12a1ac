"""Runs that look like the one that wrote a checkpoint, and are not; folders and functions of other runs."""

import functools
import importlib
import shutil
import sys
from pathlib import Path

import pytest
from datasets import Dataset, IterableDataset
from reward_helpers import scaled
from run_helpers import SAVES, length_reward, refused, survived
from tiny_models import CHARACTERS, tiny_qwen3
from transformers import AutoTokenizer, GenerationConfig
from warm_start import make_tokenizer

from trl_credit.hub import write_model_card
from trl_credit.runs.checkpoints import last_checkpoint
from trl_credit.runs.identity import differences, functions_of, identity, in_words


pytestmark = refused
ROWS = [{"prompt": f"{i % 10}+{i // 10 % 10}=", "answer": str(i)} for i in range(64)]
WRONG = [row | {"answer": "0"} for row in ROWS]


def stream(rows):
    return IterableDataset.from_generator(lambda: iter(rows))


def copied(model, folder):
    return Path(shutil.copytree(model, folder / "model"))


def tokenizer(model, **settings):
    loaded = AutoTokenizer.from_pretrained(model)
    for name, value in settings.items():
        setattr(loaded, name, value)
    return loaded


def other_weights(model, folder):
    tiny_qwen3(AutoTokenizer.from_pretrained(model), seed=1).save_pretrained(copied(model, folder))
    return folder / "model"


def other_stop(model, folder):
    """Only the model's generation ends at another token."""
    stops = [tokenizer(model).eos_token_id, tokenizer(model).convert_tokens_to_ids("a")]
    GenerationConfig(eos_token_id=stops).save_pretrained(copied(model, folder))
    return folder / "model"


# the same batch in other pieces
CUT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
# what differs → the argument of the trainer, how two runs make it of a model and an empty folder, and what is named
ARGUMENTS = {
    "rows": ("train_dataset", lambda *_: Dataset.from_list(ROWS), lambda *_: Dataset.from_list(WRONG), "data.content"),
    "stream": ("train_dataset", lambda *_: stream(ROWS), lambda *_: stream(WRONG), "data.first_rows"),
    "weights": ("model", copied, other_weights, "model.weights"),
    "folder": ("model", copied, copied, ""),
    "stop": ("model", copied, other_stop, "tokenizer.eos_token_ids"),
}
TOKENIZERS = {
    "pad_token_id": (tokenizer, lambda model: tokenizer(model, pad_token=";")),
    "chat_template": (tokenizer, lambda model: tokenizer(model, chat_template="{{ messages[0]['content'] }}!")),
    "vocabulary": (lambda _: make_tokenizer(CHARACTERS), lambda _: make_tokenizer(CHARACTERS[::-1])),
}


def changes(make_trainer, one, other, algo="grpo"):
    """What two runs differ in, in words."""
    return in_words(differences(*(identity(make_trainer(algo, **x)) for x in (one, other)), defaults={}))


@pytest.mark.parametrize("case", ARGUMENTS)
def test_another_argument_of_the_trainer(make_trainer, tiny_model, tmp_path, case):
    argument, *makers, named = ARGUMENTS[case]
    runs = []
    for i, make in enumerate(makers):
        (tmp_path / str(i)).mkdir()
        value = make(tiny_model, tmp_path / str(i))
        runs.append({"trainer_kwargs": {argument: str(value) if isinstance(value, Path) else value}})
    text = changes(make_trainer, *runs)
    assert text.startswith(named) and text.count(" → ") == bool(named)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_another_tokenizer(make_trainer, tiny_model, name):
    one, other = ({"trainer_kwargs": {"processing_class": make(tiny_model)}} for make in TOKENIZERS[name])
    assert changes(make_trainer, one, other).startswith(f"tokenizer.{name} ")


CUTS = [
    ("grpo", {"loss_type": "bnpo"}, "micro_batch.rows 8 → 4"),
    ("grpo", {"top_entropy_quantile": 0.5}, "micro_batch.rows_of_all_processes 8 → 4"),
    ("spo_chain", {"whiten_advantages": "microbatch"}, "micro_batch.rows_of_all_processes 8 → 4"),
    ("grpo", {}, ""),
]


@pytest.mark.parametrize(("algo", "settings", "change"), CUTS)
def test_another_cut_where_it_changes_the_loss(make_trainer, algo, settings, change):
    assert changes(make_trainer, settings, {**settings, **CUT}, algo) == change


def test_another_tool(make_trainer):
    trainer, records = make_trainer("grpo"), []
    for tool in (copied, tokenizer):
        trainer.arguments["tools"] = [tool]
        records.append({"tools": functions_of(trainer)["tools"]})
    text = in_words(differences(*records, defaults={}))
    assert "tools.copied left out" in text and "tools.tokenizer added" in text


HELPERS = {
    "own_reward": "import scorer\ndef reward(completions, **row):\n    return [*map(scorer.score, completions)]\n",
    "scorer": "def score(text):\n    from later import WEIGHT\n    return WEIGHT * ('a' in text)\n",
    "later": "WEIGHT = 1.0\n",
}


@pytest.mark.parametrize("helper", ["scorer", "later"])
def test_a_helper_of_the_reward_is_another(make_trainer, tmp_path, monkeypatch, helper):
    for name, text in HELPERS.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    reward = importlib.import_module("own_reward").reward
    make_trainer("grpo", max_steps=1, reward_funcs=reward, **SAVES).train()
    for name in HELPERS:
        sys.modules.pop(name)
    (tmp_path / f"{helper}.py").write_text(HELPERS[helper] + "# another\n")
    reward = importlib.import_module("own_reward").reward  # which imports one of the two before it is called
    with pytest.raises(ValueError, match=rf"\(the code of `{helper}` changed\).*allow_changed=\[\"modules\"\]"):
        make_trainer("grpo", max_steps=2, reward_funcs=reward, **SAVES).train(resume_from_checkpoint=True)
    for name in HELPERS.keys() & sys.modules.keys():
        sys.modules.pop(name)


def test_a_reference_that_a_resumed_run_would_load_from_the_trained_model(make_trainer, tiny_model, tmp_path):
    folder = copied(tiny_model, tmp_path)
    before = (folder / "model.safetensors").read_bytes()
    same = {"output_dir": str(folder), "trainer_kwargs": {"model": str(folder)}}
    with pytest.raises(ValueError, match="output_dir=.* is the folder of the model"):
        make_trainer("grpo", beta=0.1, **same).train()
    assert (folder / "model.safetensors").read_bytes() == before
    assert make_trainer("grpo", beta=0.0, max_steps=1, **same).train().global_step == 1  # has no reference


@survived
def test_a_longer_schedule_is_named_with_both_lengths(make_trainer, trained, caplog):
    settings = {**SAVES, "lr_scheduler_type": "linear", "n_prompts": 8}
    make_trainer("grpo", max_steps=2, **settings).train()
    longer = trained("grpo", **settings, max_steps=4, resume=True)
    assert "checkpoint-2: max_steps was 2 and is 4" in caplog.text
    assert "* From step 2: max_steps 2 → 4." in write_model_card(longer, name="GRPO").read_text().replace("\\", "")


@pytest.mark.slow
@survived
@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_a_learning_rate_that_may_change_changes(make_trainer, trained, schedule):
    settings = {**SAVES, "lr_scheduler_type": schedule, "max_steps": 4}
    whole = trained("grpo", **settings, learning_rate=1e-5)
    shutil.rmtree(whole.args.output_dir)
    make_trainer("grpo", **settings).train()
    first = str(Path(whole.args.output_dir) / "checkpoint-2")
    changed = trained("grpo", **settings, learning_rate=1e-5, allow_changed=["learning_rate"], resume=first)
    rates = [[row["learning_rate"] for row in x.state.log_history if "learning_rate" in row] for x in (whole, changed)]
    assert rates[1][2:] == pytest.approx(rates[0][2:], rel=1e-12) and rates[1][:2] != rates[0][:2]


@survived
@pytest.mark.parametrize("overwrites", [True, False])  # without it the save itself would write through the link
def test_links_to_checkpoints_are_removed_and_what_they_point_to_is_kept(make_trainer, tmp_path, overwrites):
    make_trainer("grpo", max_steps=1, output_dir=str(tmp_path / "one"), **SAVES).train()
    kept, link = tmp_path / "one" / "checkpoint-1", tmp_path / "run" / "checkpoint-1"
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    link.parent.mkdir()
    link.symlink_to(kept)
    shutil.copy(kept / "credit_run.json", tmp_path / "run")
    make_trainer("grpo", max_steps=1, overwrite_output_dir=overwrites, **SAVES).train()
    assert not link.is_symlink() and {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-1"


# Nothing to train, and the folder, checkpoint, functions or settings of another run


STREAM = stream([{"prompt": "1+1=", "answer": "2"}])
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
    changes = {"learning_rate": 1e-5, "beta": 0.1}
    allowed = {**SAVES, **free, **CUT, **changes, "allow_changed": ["learning_rate", "beta"]}
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
