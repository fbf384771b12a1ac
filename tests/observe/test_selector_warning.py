"""A run whose selector leaves out hardly any gradient noise says so, once."""

import pytest

from trl_credit.observe.selector_warning import SelectorWarning


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name.endswith("selector_warning")]


def steps(shares, args=None):
    """The callback after steps with these shares, `None` for a step that logs none; metrics are cleared every third."""
    metrics = {}
    callback = SelectorWarning(metrics)
    callback.on_train_begin(args, None, None)
    for i, share in enumerate(shares):
        callback.on_step_begin(args, None, None)
        if share is not None:
            metrics.setdefault("credit/noise_share", []).append(share)
        callback.on_step_end(args, None, None)
        if i % 3 == 2:
            metrics.clear()
    return callback


@pytest.mark.parametrize(
    ("shares", "count"),
    [
        ([0.15] * 9, 0),  # too few
        ([0.15] * 40, 1),
        ([0.15, None, float("nan")] * 9 + [0.15], 1),
        ([0.25] * 10 + [0.0] * 30, 0),  # the first ten decide
        ([0.0] * 5 + [0.41] * 5, 0),  # their mean, not one of them
        ([0.0] * 5 + [0.39] * 5, 1),
    ],
)
def test_the_mean_of_the_first_ten_updates_decides(make_trainer, caplog, shares, count):
    steps(shares, make_trainer("s_trace").args)
    assert len(said(caplog)) == count


@pytest.mark.parametrize(
    ("algo", "knobs", "watches"),
    [("s_trace", {}, True), ("grpo", {"top_entropy_quantile": 0.2}, True), ("grpo", {}, False), ("p_trace", {}, False)],
)
def test_only_a_run_with_a_selector_watches(make_trainer, algo, knobs, watches):
    callbacks = make_trainer(algo, **knobs).callback_handler.callbacks
    assert any(isinstance(callback, SelectorWarning) for callback in callbacks) == watches
