"""A run without anything to learn from says so: once when it has lasted, and once more at its end."""

import re

import pytest
from segment_helpers import CHAIN, TREE
from transformers import PrinterCallback, ProgressCallback
from transformers.trainer_callback import TrainerControl, TrainerState

from trl_credit.report import ConsoleCallback


NO_END = {"suppress_tokens": [0, 1]}  # padding and the end of a sequence


def constant(completions, **kwargs):
    return [0.5] * len(completions)


def nothing(completions, **kwargs):
    return [None] * len(completions)


def said(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.endswith("nothing_to_learn")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward_funcs": constant}, r"{}: the rewards of a prompt's responses do not differ \(mean 0.5\)\. Usual"),
        ({"reward_funcs": nothing}, "{}: no reward function scored a response, all returned None"),
        ({"reward_funcs": constant, "beta": 0.1}, r"{} \(what still moves the model: beta=0.1\): the rewards"),
        (
            {"reward_funcs": constant, "entropy_coef": 0.1},
            r"{} \(what still moves the model: entropy_coef=0.1\): ",
        ),
        (
            {"mask_truncated_completions": True, "generation_kwargs": NO_END},
            r"{}: every response was cut off, and mask_truncated_completions=True.*\(100 % are: raise max_comp.*=8\)",
        ),
        ({"token_mask": "probability", "probability_threshold": 1e-9}, "{}: rewards differ, but token_mask"),
        ({"reward_funcs": constant, **CHAIN}, "{}: the rewards"),
        ({"reward_funcs": nothing, **CHAIN}, "{}: no reward function"),
        ({"reward_funcs": constant, **TREE, "beta": 0.1}, "{}: the rewards"),  # which leaves the update out, KL and all
        ({"reward_funcs": nothing, **TREE}, "{}: no reward function"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_it_is_said_once_and_at_the_end(make_trainer, caplog, settings, message):
    trainer = make_trainer(**settings, max_steps=7)
    trainer.train()
    now, at_the_end = said(caplog)
    assert re.search(message.format("nothing to learn from in the last 5 generation batches"), now)
    assert re.search(message.format("nothing to learn from in 7 of the 7 generation batches"), at_the_end)
    for cause in ("reward function and the format", "num_generations", "temperature", "max_completion_length=8"):
        assert cause in now


def test_responses_without_an_end(make_trainer, caplog):
    make_trainer(generation_kwargs=NO_END, max_steps=6).train()
    now, at_the_end = said(caplog)
    assert "no response ended by itself in the last 5 generation batches: all were cut off at max_comp" in now
    assert "no response ended by itself in 6 of the 6 generation batches" in at_the_end


@pytest.mark.parametrize("settings", [{}, CHAIN, TREE, {"steps_per_generation": 2, "num_iterations": 2}], ids=str)
def test_with_a_signal_nothing_is_said(make_trainer, caplog, settings):
    make_trainer(**settings, max_steps=7).train()
    assert said(caplog) == []


def test_it_has_to_last(make_trainer, caplog):
    calls = []

    def mostly(completions, **kwargs):  # every fifth batch has a signal
        calls.append(None)
        return [float(i % 2) if len(calls) % 5 == 0 else 0.0 for i in range(len(completions))]

    make_trainer(reward_funcs=mostly, max_steps=11).train()
    assert said(caplog) == []

    calls.clear()
    # two updates for each batch, of two prompts each: the unit is the batch
    trainer = make_trainer(reward_funcs=constant, steps_per_generation=2, max_steps=8)
    trainer.train()
    assert said(caplog) == []
    trainer = make_trainer(reward_funcs=constant, steps_per_generation=2, max_steps=9)
    trainer.train()
    assert "last 5 generation batches" in said(caplog)[0] and "5 of the 5" in said(caplog)[1]


def test_the_console_has_it_once(make_trainer, capfd):
    trainer = make_trainer(reward_funcs=constant, max_steps=7, logging_steps=3, disable_tqdm=False)
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(ConsoleCallback)
    trainer.train()
    shown = "".join(capfd.readouterr())
    assert shown.count("nothing to learn from in the last 5") == shown.count("nothing to learn from in 7 of the 7") == 1
    assert "warning: nothing to learn" in shown


def test_the_line_says_what_is_not_0(capsys):
    callback, state = ConsoleCallback(), TrainerState(global_step=25, is_world_process_zero=True)
    logs = {
        "reward": 0.8418,
        "reward_std": 0.3659,
        "loss": 0.00123,
        "credit/clip_fraction": 0.0,
        "completions/mean_length": 23.91,
        "completions/clipped_ratio": 0.125,
        "credit/groups_without_signal": 0.25,
        "kl": 0.00123,
        "entropy": 0.312,
        "step_time": 0.214,
    }
    callback.on_log(None, state, TrainerControl(), logs)
    quiet = dict.fromkeys(logs, 0.0) | {"reward": 0.0}
    callback.on_log(None, state, TrainerControl(), quiet)
    callback.on_log(None, state, TrainerControl(), dict.fromkeys(logs) | {"entropy": 0.5})
    callback.on_log(None, state, TrainerControl(), {"train_runtime": 1.0})
    full, empty, unscored = capsys.readouterr().out.splitlines()
    assert full == (
        "step    25  reward 0.842 ± 0.366  loss +0.0012  length 23.9  cut off 12.5 %  no signal 25.0 %  KL 0.0012  "
        "entropy 0.31  0.21 s/step"
    )
    assert empty == "step    25  reward 0.000 ± 0.000  loss +0.0000"
    assert unscored == "step    25  no reward  entropy 0.50"
