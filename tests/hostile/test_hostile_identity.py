"""Runs that look like the one that wrote a checkpoint, and are not: other rows, helpers, weights, tokens, or cuts."""

import importlib
import itertools
import shutil
import sys
from pathlib import Path

import pytest
from datasets import Dataset, IterableDataset
from run_helpers import SAVES, length_reward, refused, survived
from tiny_models import CHARACTERS, tiny_qwen3
from transformers import AutoTokenizer, GenerationConfig
from trl import chat_template_utils
from warm_start import make_tokenizer

from trl_credit.hub import write_model_card
from trl_credit.runs.checkpoints import last_checkpoint


ROWS = [{"prompt": f"{i % 10}+{i // 10 % 10}=", "answer": str(i)} for i in range(64)]


@pytest.fixture
def other_run(make_trainer):
    """Trains one step with settings of GRPO, and then another run that resumes from it."""

    def run(before: dict, after: dict, **more):
        make_trainer("grpo", max_steps=1, **{**SAVES, **more, **before}).train()
        trainer = make_trainer("grpo", max_steps=2, **{**SAVES, **more, **after})
        trainer.train(resume_from_checkpoint=True)
        return trainer

    return run


def on(dataset) -> dict:
    return {"trainer_kwargs": {"train_dataset": dataset}}


@refused
def test_every_second_gold_of_40001_rows_is_another(other_run):
    data = {"prompt": ["1+1="] * 40_001, "answer": [str(i) for i in range(40_001)]}
    other = data | {"answer": [x if i % 2 == 0 else "0" for i, x in enumerate(data["answer"])]}
    with pytest.raises(ValueError, match=r"differs from this one \(data.content"):
        other_run(*(on(Dataset.from_dict(rows).shuffle(seed=1)) for rows in (data, other)))


@survived
def test_the_same_rows_stored_in_another_way(other_run, tmp_path):
    rows = Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "data")
    back = Dataset.load_from_disk(str(tmp_path / "data")).select(range(63, -1, -1)).select(range(63, -1, -1))
    assert other_run(on(rows), on(back)).state.global_step == 2


def stream(rows: list[dict]) -> IterableDataset:
    return IterableDataset.from_generator(lambda: iter(rows))


@refused
def test_a_stream_with_other_rows(other_run):
    with pytest.raises(ValueError, match=r"differs from this one \(data.first_rows"):
        other_run(on(stream(ROWS)), on(stream([row | {"answer": "0"} for row in ROWS])))


class Seen:
    """A reward that keeps the prompts it was called with."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def __call__(self, prompts, completions, **kwargs):
        self.prompts += prompts[::4]  # of each group one
        return [float("a" in text) for text in completions]


def only_once(rows: list[dict]) -> IterableDataset:
    left = iter(rows)

    def read():
        yield from left

    return IterableDataset.from_generator(read)


@survived
@pytest.mark.parametrize("make", [stream, only_once])
def test_a_stream_that_is_looked_at_loses_no_row(make_trainer, make):
    seen, data = Seen(), make(ROWS[:8])
    trainer = make_trainer("grpo", max_steps=4, reward_funcs=seen, shuffle_dataset=False, **on(data))
    trainer.train()
    assert seen.prompts == [row["prompt"] for row in ROWS[:8]]


@survived
def test_a_stream_without_an_end_is_not_read_to_it(other_run):
    def read():
        yield from itertools.cycle(ROWS)

    settings = on(IterableDataset.from_generator(read)) | {"shuffle_dataset": False}
    assert other_run(settings, settings).state.global_step == 2


HELPERS = {
    "scorer.py": "import deeper\ndef score(text):\n    return deeper.score(text)\n",
    "deeper.py": "def score(text):\n    from package import late\n    return late.score(text)\n",
    "package/__init__.py": "",
    "package/late.py": "from .constants import WEIGHT\ndef score(text):\n    return WEIGHT * ('a' in text)\n",
    "package/constants.py": "WEIGHT = 1.0\n",
}
REWARD = "import scorer\ndef reward(completions, **kwargs):\n    return [scorer.score(text) for text in completions]\n"


@refused
def test_a_helper_of_the_reward_is_another(make_trainer, tmp_path, monkeypatch, record_property):
    for name, text in {**HELPERS, "own_reward.py": REWARD}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    reward = importlib.import_module("own_reward").reward
    make_trainer("grpo", max_steps=1, reward_funcs=reward, **SAVES).train()
    for name in ("own_reward", "scorer", "deeper", "package.late", "package.constants", "package"):
        sys.modules.pop(name)
    reward = importlib.import_module("own_reward").reward  # which imports two of the four before it is called
    for changed in ("scorer", "deeper", "package.late", "package.constants"):
        path = tmp_path / f"{changed.replace('.', '/')}.py"
        before = path.read_text()
        path.write_text(before + "# another\n")
        with pytest.raises(ValueError, match=rf"\(the code of `{changed}` changed\).*allow_changed=\[\"modules\"\]"):
            make_trainer("grpo", max_steps=2, reward_funcs=reward, **SAVES).train(resume_from_checkpoint=True)
        path.write_text(before)
    make_trainer("grpo", max_steps=2, reward_funcs=reward, **SAVES).train(resume_from_checkpoint=True)
    for name in ("own_reward", "scorer", "deeper", "package.late", "package.constants", "package"):
        sys.modules.pop(name)
    record_property("tried", 4)


def copied(model: str, folder: Path) -> Path:
    return Path(shutil.copytree(model, folder / "model"))


@refused
def test_other_weights_in_a_folder_of_the_same_name(other_run, tiny_model, tmp_path):
    same, other = copied(tiny_model, tmp_path / "one"), copied(tiny_model, tmp_path / "two")
    tiny_qwen3(AutoTokenizer.from_pretrained(tiny_model), seed=1).save_pretrained(other)
    with pytest.raises(ValueError, match=r"differs from this one \(model.weights"):
        other_run({"trainer_kwargs": {"model": str(same)}}, {"trainer_kwargs": {"model": str(other)}})


@survived
def test_the_same_weights_in_a_folder_that_moved(other_run, tiny_model, tmp_path):
    one, two = copied(tiny_model, tmp_path / "one"), copied(tiny_model, tmp_path / "two")
    for_one, for_two = ({"trainer_kwargs": {"model": str(path)}} for path in (one, two))
    assert other_run(for_one, for_two, beta=0.1).state.global_step == 2


@refused
def test_a_permuted_vocabulary(other_run):
    one, other = make_tokenizer(CHARACTERS), make_tokenizer(CHARACTERS[::-1])
    assert len(one) == len(other) and sorted(one.get_vocab()) == sorted(other.get_vocab())
    with pytest.raises(ValueError, match=r"differs from this one \(tokenizer.vocabulary"):
        other_run({"trainer_kwargs": {"processing_class": one}}, {"trainer_kwargs": {"processing_class": other}})


@refused
@pytest.mark.parametrize(("name", "token"), [("eos_token_ids", "a"), ("pad_token_id", ";")])
def test_another_token_that_ends_or_fills(other_run, tiny_model, tmp_path, name, token):
    other = AutoTokenizer.from_pretrained(tiny_model)
    if name == "pad_token_id":
        other.pad_token = token
        given = {"processing_class": other}
    else:  # only the model's generation ends there
        stops = [other.eos_token_id, other.convert_tokens_to_ids(token)]
        folder = copied(tiny_model, tmp_path)
        GenerationConfig(eos_token_id=stops).save_pretrained(folder)
        (tmp_path / "other").mkdir()
        given = {"model": str(folder)}
    before = {"model": str(copied(tiny_model, tmp_path / "before"))} if "model" in given else {}
    with pytest.raises(ValueError, match=rf"differs from this one \(tokenizer.{name} "):
        other_run({"trainer_kwargs": before}, {"trainer_kwargs": given})


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: A number.
        b: Another.
    """
    return a + b


def add_wrongly(a: int, b: int) -> int:
    """Adds.

    Args:
        a: A number.
        b: Another.
    """
    return a - b


CUT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}


@refused
@pytest.mark.parametrize(
    ("algo", "settings", "message"),
    [
        ("grpo", {"loss_type": "bnpo"}, "micro_batch.rows 8 → 4"),
        ("grpo", {"top_entropy_quantile": 0.5}, "micro_batch.rows_of_all_processes 8 → 4"),
        ("spo_chain", {"whiten_advantages": "microbatch"}, "micro_batch.rows_of_all_processes 8 → 4"),
    ],
)
def test_another_cut_where_it_changes_the_loss(make_trainer, algo, settings, message):
    make_trainer(algo, max_steps=1, **SAVES, **settings).train()
    other = make_trainer(algo, max_steps=2, **SAVES, **settings, **CUT)
    with pytest.raises(ValueError, match=rf"differs from this one \({message}\)"):
        other.train(resume_from_checkpoint=True)


@refused
def test_a_reference_that_a_resumed_run_would_load_from_the_trained_model(make_trainer, tiny_model, tmp_path):
    folder = copied(tiny_model, tmp_path)
    before = (folder / "model.safetensors").read_bytes()
    given = {"output_dir": str(folder), "trainer_kwargs": {"model": str(folder)}}
    with pytest.raises(ValueError, match="output_dir=.* is the folder of the model"):
        make_trainer("grpo", beta=0.1, **given).train()
    assert (folder / "model.safetensors").read_bytes() == before
    assert make_trainer("grpo", beta=0.0, max_steps=1, **given).train().global_step == 1  # has no reference


@survived
def test_a_longer_schedule_is_said_with_both_numbers(make_trainer, trained, caplog):
    settings = {**SAVES, "lr_scheduler_type": "linear", "n_prompts": 8}
    make_trainer("grpo", max_steps=4, **settings).train()
    longer = trained("grpo", **settings, max_steps=8, resume=True)
    jump = "the learning rate jumps from 0 to 0.5 of its peak: its schedule ends at step 8, and ended at 4"
    assert f"checkpoint-4: {jump}: set max_steps" in caplog.text
    assert longer.changes_of_run() == [f"From step 4: {jump}."]
    assert f"* From step 4: {jump}." in write_model_card(longer, name="GRPO").read_text().replace("\\", "")
    caplog.clear()
    again = trained("grpo", **settings, max_steps=8, resume=True)  # at its end, with the same schedule
    assert "jumps" not in caplog.text and again.changes_of_run() == longer.changes_of_run()


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
    assert changed.changes_of_run() == ["From step 2: learning_rate 0.001 → 1e-05."]


@refused
def test_what_the_optimizer_brings_back_cannot_change(make_trainer, record_property):
    make_trainer("grpo", max_steps=1, **SAVES).train()
    for name in ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"):
        other = make_trainer("grpo", max_steps=2, **SAVES, **{name: 0.5}, allow_changed=[name])
        with pytest.raises(ValueError, match=f"allow_changed {name}: the state of the optimizer in "):
            other.train(resume_from_checkpoint=True)
    record_property("tried", 4)


@refused
def test_a_link_to_the_checkpoint_that_would_be_removed(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=1, output_dir=str(tmp_path / "one"), **SAVES).train()
    kept, link = tmp_path / "one" / "checkpoint-1", tmp_path / "run" / "checkpoint-1"
    link.parent.mkdir()
    link.symlink_to(kept)
    resumed = make_trainer("grpo", max_steps=2, overwrite_output_dir=True, **SAVES)
    with pytest.raises(ValueError, match="overwrite_output_dir=True would remove"):
        resumed.train(resume_from_checkpoint=str(link))
    assert link.is_symlink()


@survived
def test_links_to_checkpoints_are_removed_and_what_they_point_to_is_kept(make_trainer, tmp_path):
    make_trainer("grpo", max_steps=1, output_dir=str(tmp_path / "one"), **SAVES).train()
    kept = tmp_path / "one" / "checkpoint-1"
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    for overwrites in (True, False):  # without it the save itself would write through the link
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "checkpoint-1").symlink_to(kept)
        shutil.copy(kept / "credit_run.json", tmp_path / "run")
        make_trainer("grpo", max_steps=1, overwrite_output_dir=overwrites, **SAVES).train()
        assert not (tmp_path / "run" / "checkpoint-1").is_symlink()
        assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-1"


@refused
def test_another_tool(make_trainer, tiny_model):
    def trainer(tools):
        tokenizer = AutoTokenizer.from_pretrained(tiny_model)
        tokenizer.chat_template = chat_template_utils.qwen3_chat_template
        rows = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]
        given = {"processing_class": tokenizer, "tools": tools, "train_dataset": Dataset.from_list(rows)}
        return make_trainer("grpo", max_steps=1, reward_funcs=length_reward, trainer_kwargs=given, **SAVES)

    trainer([add]).train()
    with pytest.raises(ValueError, match="tools.add left out, tools.add_wrongly added"):
        trainer([add_wrongly]).train()
