"""A run with nothing to learn from warns: once after several batches, and once more at its end."""

import math

import pytest
import torch
from segment_helpers import CHAIN, TREE

from trl_credit import Credit
from trl_credit.observe.no_signal import NoSignalWarning


NO_END = {"suppress_tokens": [0, 1]}  # padding and the end of a sequence


def warnings_in(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.endswith("no_signal")]


CONSTANT = {"reward_funcs": lambda completions, **kwargs: [0.5] * len(completions)}
SILENT = {
    "constant": CONSTANT,
    "nothing": {"reward_funcs": lambda completions, **kwargs: [None] * len(completions)},
    "with KL": {**CONSTANT, "beta": 0.1},
    "cut off": {"mask_truncated_completions": True, "generation_kwargs": NO_END},
    "masked": {"token_mask": "probability", "probability_threshold": 1e-9},
    "chain": {**CONSTANT, **CHAIN},
    "tree": {**CONSTANT, **TREE, "beta": 0.1},  # the update is skipped with its KL term
}


@pytest.mark.parametrize("name", [*SILENT, "no end"])
def test_a_run_warns_once_and_at_its_end(make_trainer, caplog, capsys, name):
    make_trainer(**SILENT.get(name, {"generation_kwargs": NO_END}), max_steps=6).train()
    now, at_the_end = warnings_in(caplog)
    what = "no response ended" if name == "no end" else "nothing to learn from"
    assert f"{what} in the last 5 generation batches" in now and "max_completion_length=8" in now
    assert f"{what} in 6 of the 6 generation batches" in at_the_end
    assert ("still trains on beta=0.1" in now) == (name == "with KL")
    assert capsys.readouterr().out.count(f"warning: {now.removeprefix('[RANK 0] ')}\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, TREE, {"steps_per_generation": 2, "num_iterations": 2}], ids=str)
def test_a_run_with_a_signal_does_not_warn(make_trainer, caplog, settings):
    make_trainer(**settings, max_steps=6).train()
    assert warnings_in(caplog) == []


def out_of_range(config, tokens):
    """A weight so far out that every token is clipped."""
    advantage = tokens.advantages.unsqueeze(1)
    return Credit(tokens.logp_t - tokens.old_logp_t + 10.0 * advantage.sign(), tokens.advantages)


def test_gradients_of_0_are_said_with_the_cause(make_trainer, caplog):
    make_trainer(credit=out_of_range, loss_type="grpo", max_steps=7).train()
    now, at_the_end = warnings_in(caplog)
    why = "although tokens had advantages, so nothing was learned: every token was clipped: lower learning_rate=0.001"
    assert f"the gradient was exactly 0 in the last 5 updates, {why}" in now
    assert f"exactly 0 in 7 of the 7 updates, {why}" in at_the_end


def test_a_teacher_without_a_context_is_the_cause(make_trainer, caplog):
    make_trainer("sdpo", reward_range=[0.0, 2.0], max_steps=2).train()
    (warning,) = warnings_in(caplog)
    why = "no row had a context for the teacher (teacher_prompt='success'): no response had a reward of 2, the largest"
    assert f"exactly 0 in 2 of the 2 updates, although tokens had advantages, so nothing was learned: {why}" in warning


def test_a_short_run_that_learned_nothing_says_so(make_trainer, caplog):
    trainer = make_trainer(credit=lambda config, t: Credit(0.0 * t.logp_t, t.advantages), max_steps=3)
    before = {name: x.clone() for name, x in trainer.model.named_parameters()}
    trainer.train()
    assert all(torch.equal(before[name], x) for name, x in trainer.model.named_parameters())
    (warning,) = warnings_in(caplog)
    assert "exactly 0 in 3 of the 3 updates" in warning and "check_credit on credit='<lambda>@" in warning
    assert [row["credit/zero_gradients"] for row in trainer.state.log_history[:-1]] == [1.0] * 3


# A selector that leaves out hardly any gradient noise


SHARES = [
    ([0.15] * 9, 0),  # too few
    ([0.15] * 40, 1),
    ([0.15, None, math.nan] * 9 + [0.15], 1),
    ([0.25] * 10 + [0.0] * 30, 0),  # the first ten decide
    ([0.0] * 5 + [0.41] * 5, 0),  # their mean, not one of them
    ([0.0] * 5 + [0.39] * 5, 1),
]


WATCHED = [("s_trace", {}, True), ("base", {"top_entropy_quantile": 0.2}, True), ("base", {}, False)]


@pytest.mark.parametrize(("shares", "count"), SHARES)
@pytest.mark.parametrize(("algo", "knobs", "watches"), WATCHED)
def test_the_mean_of_the_first_ten_updates_decides(make_trainer, caplog, shares, count, algo, knobs, watches):
    """`None` is a step that logs no share; metrics are cleared every third step."""
    args, metrics = make_trainer(algo, **knobs).args, {}
    callback = NoSignalWarning(metrics)
    callback.on_train_begin(args, None, None)
    for i, share in enumerate(shares):
        callback.on_step_begin(args, None, None)
        if share is not None:
            metrics.setdefault("credit/noise_share", []).append(share)
        callback.on_step_end(args, None, None)
        if i % 3 == 2:
            metrics.clear()
    assert len([text for text in warnings_in(caplog) if "selector can hardly help" in text]) == count * watches
