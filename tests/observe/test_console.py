"""What the console shows beside its lines, and what `trainer.train()` leaves: plots, a card, and its arguments."""

import inspect
import logging
import math
import os
import re
import shutil

import pytest
import trl
from custom_functions import custom
from transformers import PrinterCallback, ProgressCallback
from transformers.trainer_callback import TrainerControl, TrainerState

import trl_credit
from trl_credit import CreditTrainer, STraceTrainer
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.observe.banner import banner
from trl_credit.observe.console import ConsoleCallback, Sample, sample_lines


def test_a_prompt_and_its_response_are_shown_at_the_start_and_at_the_end(make_trainer, capsys):
    seen = []

    def reward(prompts, completions, **kwargs):
        rewards = [sum(c in "abc" for c in text) / 8 for text in completions]
        seen.extend(zip(prompts, completions, rewards, strict=True))
        return rewards

    make_trainer(reward_funcs=reward, max_steps=3).train()
    lines = capsys.readouterr().out.splitlines()
    places = [i for i, line in enumerate(lines) if line.startswith("prompt ")]
    steps = [i for i, line in enumerate(lines) if line.startswith("step ")]
    assert len(places) == 2 and places[0] < steps[0] and steps[-1] < places[1]
    known = {f"{prompt} / {' '.join(text.split())}  (step %d, reward {x:.3g})" for prompt, text, x in seen}
    for i, step in zip(places, (1, 3), strict=True):
        label, prompt = lines[i].split(maxsplit=1)
        response = lines[i + 1].removeprefix("response").strip()
        assert f"{prompt} / {response}".replace(f"(step {step},", "(step %d,") in known


def test_samples_are_two_lines_of_visible_characters(monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda fallback: os.terminal_size((60, 24)))
    prompt, response = sample_lines(Sample("a\n\nb \x1b[2J\u202e", "日本" * 50 + "\x9b", 0.25), step=3)
    assert prompt == "prompt        a b ␛[2J<202e>"
    assert response.endswith("…  (step 3, reward 0.25)") and response.startswith("response      日本日本日")
    assert len(response) < 60  # each of these characters takes two columns
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]
    lines = sample_lines(Sample(chat, [{"role": "assistant", "content": None}], math.nan), step=0)
    assert lines == ["prompt        What is it?", "response        (step 0, no reward)"]


class Halved:
    def credit(self, config, tokens):
        return trl_credit.assign_credit(config, tokens)


def test_the_banner_names_a_custom_credit_and_the_embedded_task(make_trainer, tmp_path):
    def first(algo="s_trace", **settings):
        return banner(make_trainer(algo, **settings))[0]

    assert first() == "S-trace on 64 prompts: 4 responses per prompt"
    assert first(credit=custom("half_decay")).startswith(
        "S-trace with credit own_functions.py:half_decay on 64 prompts"
    )
    assert first(credit=lambda config, tokens: None).startswith("S-trace with credit <lambda> on")
    assert first(credit=Halved).startswith("S-trace with credit test_console.Halved on 64")
    args = trl_credit.STraceConfig(output_dir=str(tmp_path / "run"), report_to="none")
    trainer = STraceTrainer(demo_model_path(), demo_reward, args, train_dataset=demo_dataset())
    assert banner(trainer)[1].startswith("embedded task: six additions and subtractions modulo 10")


ROW = {"reward": 1.0, "reward_std": 0.5, "rewards/accuracy/mean": 0.75, "rewards/accuracy/std": 0.4, "loss": -4e-5}
FULL = {"reward": 0.8418, "reward_std": 0.3659, "loss": 0.00123, "kl": 0.00123, "entropy": 0.312, "step_time": 0.214}
FULL |= {"credit/clip_fraction": 0.0, "credit/groups_without_signal": 0.25}
FULL |= {"completions/mean_length": 23.91, "completions/clipped_ratio": 0.125}
LINES = {
    "reward 1.000 ± 0.500": ROW,
    # each of several reward functions has its mean
    "reward 1.000 ± 0.500  accuracy 0.750  format 0.250  loss -0.0100": ROW
    | {"rewards/format/mean": 0.25, "loss": -0.01},
    "reward 1.000 ± 0.500  accuracy 0.750  a/b –": ROW | {"rewards/a/b/mean": None},
    "evaluation  reward 0.250 ± 0.500": {"eval_loss": 0.1, "eval_reward": 0.25, "eval_reward_std": 0.5},
    "loss +0.2500  2.00 s/step": {"loss": 0.25, "step_time": 2.0},  # between two generation batches
    "reward 0.842 ± 0.366  loss +0.0012  length 23.9  cut off 12.5 %  no signal 25.0 %  KL 0.0012  entropy 0.31  "
    "0.21 s/step": FULL,
    "reward 0.000 ± 0.000": dict.fromkeys(FULL, 0.0),
    "no reward  entropy 0.50": dict.fromkeys(FULL) | {"entropy": 0.5},
}


def test_what_was_logged_is_a_line_without_zeros(capsys):
    callback, state = ConsoleCallback(), TrainerState(global_step=5, is_world_process_zero=True)
    for row in (*LINES.values(), {"train_runtime": 2.0, "train_loss": 0.1}):
        callback.on_log(None, state, TrainerControl(), row)
    assert capsys.readouterr().out.splitlines() == [f"step     5  {line}" for line in LINES]


# What `trainer.train()` leaves without a script


LEFT = {"reward_curve.png", "credit_plot.png", "README.md", "recipe.yaml"}


def left(tmp_path) -> set[str]:
    return {path.name for path in (tmp_path / "run").iterdir()} & LEFT


@pytest.fixture
def alone(make_trainer):
    """A trainer as one makes it in a notebook."""

    def make(*args, **kwargs) -> CreditTrainer:
        trainer = make_trainer(*args, **kwargs)
        trainer.results.writes_at_end = True
        return trainer

    return make


def test_training_leaves_plots_and_card_and_says_so(alone, tmp_path, capsys):
    trainer = alone("grpo_lambda", advantage_floor=None, eval_strategy="no")
    trainer.train()
    assert left(tmp_path) == LEFT
    out = capsys.readouterr().out
    first = r"GRPO-λ on 64 prompts: 4 responses per prompt\nGRPO-λ sets beta 0.0 → 0.04, .*\n  .*\n"
    first += r"prompt .*\nresponse .*\nstep     1  reward "
    assert re.match(first, out)
    assert re.search(r"\nmodel card    .*README.md\nplots +.*curve.png, .*plot.png\nreward +0\.\d+ → 0\.\d+\n$", out)
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"\bNone\b", card) and "| advantage\\_floor | – | -0.1 |" in card
    assert "* Prompts: 64 rows." in card and "\nalgo: grpo_lambda\n" in card


@pytest.mark.slow
def test_the_last_line_names_what_shows_the_credit(alone, here, capsys):
    for logs in (0, 5):
        trainer = alone("s_trace", max_steps=1, log_credit=logs, output_dir=f"a run {logs}")
        capsys.readouterr()
        trainer.train()
        last = capsys.readouterr().out.splitlines()[-1]
        shown = "credit        show_credit(trainer) in a notebook, or trl-credit view 'a run 5'"
        assert last == shown if logs else last.startswith("reward ")
        trainer.results.show()
        command = "trl-credit view 'a run 5'" if logs else "trl-credit explain 'a run 0'"
        assert capsys.readouterr().out.splitlines()[-1] == f"credit        {command}"


def test_nothing_is_written_where_nothing_was_trained(alone, tmp_path, capsys):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    alone("s_trace", **settings).train()
    for name in LEFT:
        (tmp_path / "run" / name).unlink()
    capsys.readouterr()
    again = alone("s_trace", **settings)
    again.train(resume_from_checkpoint=True)
    assert again.was_done and left(tmp_path) == set() and "model card" not in capsys.readouterr().out


def test_training_that_breaks_off_leaves_nobody_listening(alone):
    def fails(completions, **kwargs):
        raise KeyError("no")

    before = list(logging.getLogger("trl_credit").handlers)
    with pytest.raises(RuntimeError, match="'fails' .*KeyError"):
        alone("grpo", reward_funcs=fails, max_steps=1).train()
    assert logging.getLogger("trl_credit").handlers == before


def test_a_card_that_fails_costs_no_weights(alone, tmp_path, capsys, caplog):
    trainer = alone("s_trace", max_steps=1)
    trainer.results.card = {"choices": (object(),)}  # of which a recipe cannot be made
    trainer.train()
    assert left(tmp_path) == {"reward_curve.png"} and trainer.state.global_step == 1
    assert "no plots and no card in " in caplog.text


class Mine(ConsoleCallback):
    """The user's own console callback. The trainer then adds none."""


@pytest.mark.parametrize(("quiet", "console"), [(True, ConsoleCallback), (False, Mine)])
def test_one_console_in_the_place_of_transformers(make_trainer, quiet, console):
    own = {"callbacks": [Mine()]} if console is Mine else {}
    trainer = make_trainer("s_trace", disable_tqdm=quiet, trainer_kwargs=own)
    callbacks = trainer.callback_handler.callbacks
    assert not {PrinterCallback, ProgressCallback} & set(map(type, callbacks))
    (shown,) = [callback for callback in callbacks if isinstance(callback, ConsoleCallback)]
    trainer.train()
    assert type(shown) is console and (shown.training_bar is None or not quiet)


@pytest.mark.slow
def test_trls_name_for_a_card_writes_ours(alone, tmp_path):
    trainer = alone("s_trace", max_steps=1)
    trainer.train()
    trainer.create_model_card(model_name="mine", dataset_name="me/sums", tags="sums")
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "\n# mine\n" in card and "datasets:\n- me/sums" in card
    assert all(f"- {tag}\n" in card for tag in ("sums", "s-trace", "trl-credit"))
    assert "S-trace" in card and "2605.05965" in card and "Selective Eligibility Traces" in card
    assert "[on the Hub](https://huggingface.co/datasets/me/sums)), 64 rows" in card
    assert not re.search(r"\bNone\b", card)


# The signature


def test_every_argument_of_trl_is_named():
    theirs = inspect.signature(trl.GRPOTrainer.__init__).parameters
    for kind in (CreditTrainer, STraceTrainer):
        ours = inspect.signature(kind.__init__).parameters
        shared = [name for name in ours if name in theirs]
        assert shared == [name for name in theirs if name in ours] and set(theirs) <= set(ours)
        for name in shared[2:]:  # `model` and what has a default of its own
            assert ours[name].default == theirs[name].default or name == "args"
