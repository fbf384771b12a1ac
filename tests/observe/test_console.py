"""What the console shows beside its lines: the banner, samples, and each reward function."""

import math
import os
import shutil

from transformers.trainer_callback import TrainerControl, TrainerState

import trl_credit
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
    assert sample_lines(Sample(chat, [{"role": "assistant", "content": None}], math.nan), step=0) == [
        "prompt        What is it?",
        "response        (step 0, no reward)",
    ]


class Halved:
    def credit(self, config, tokens):
        return trl_credit.assign_credit(config, tokens)


def test_the_banner_names_a_custom_credit_and_the_embedded_task(make_trainer, tmp_path):
    (tmp_path / "mine.py").write_text("from trl_credit import assign_credit as halved")

    def first(algo="s_trace", **settings):
        return banner(make_trainer(algo, **settings))[0]

    assert first() == "S-trace on 64 prompts: 4 responses per prompt"
    assert first(credit=f"{tmp_path}/mine.py:halved").startswith("S-trace with credit mine.py:halved on 64 prompts")
    assert first(credit=lambda config, tokens: None).startswith("S-trace with credit <lambda> on")
    assert first(credit=Halved).startswith("S-trace with credit test_console.Halved on 64")
    trainer = trl_credit.STraceTrainer(
        model=demo_model_path(),
        reward_funcs=demo_reward,
        args=trl_credit.STraceConfig(output_dir=str(tmp_path / "run"), report_to="none"),
        train_dataset=demo_dataset(),
    )
    assert banner(trainer)[1].startswith("embedded task: six additions and subtractions modulo 10")


def test_each_of_several_reward_functions_has_its_mean(capsys):
    callback, state = ConsoleCallback(), TrainerState(global_step=5, is_world_process_zero=True)
    row = {"reward": 1.0, "reward_std": 0.5, "rewards/accuracy/mean": 0.75, "rewards/accuracy/std": 0.4, "loss": -4e-5}
    for more in ({}, {"rewards/format/mean": 0.25, "loss": -0.01}, {"rewards/a/b/mean": None}):
        callback.on_log(None, state, TrainerControl(), row | more)
    assert capsys.readouterr().out.splitlines() == [
        "step     5  reward 1.000 ± 0.500",
        "step     5  reward 1.000 ± 0.500  accuracy 0.750  format 0.250  loss -0.0100",
        "step     5  reward 1.000 ± 0.500  accuracy 0.750  a/b –",
    ]


def test_evaluations_and_steps_between_two_generation_batches_have_a_line(capsys):
    callback, state = ConsoleCallback(), TrainerState(global_step=5, is_world_process_zero=True)
    callback.on_log(None, state, TrainerControl(), {"eval_loss": 0.1, "eval_reward": 0.25, "eval_reward_std": 0.5})
    callback.on_log(None, state, TrainerControl(), {"loss": 0.25, "step_time": 2.0})
    callback.on_log(None, state, TrainerControl(), {"train_runtime": 2.0, "train_loss": 0.1})
    shown = ("evaluation  reward 0.250 ± 0.500", "loss +0.2500  2.00 s/step")
    assert capsys.readouterr().out.splitlines() == [f"step     5  {line}" for line in shown]
