"""A run whose selector leaves out hardly any gradient noise says so, once."""

import re

import pytest

from trl_credit import STraceConfig, STraceTrainer
from trl_credit.demo import demo_dataset, demo_reward
from trl_credit.demo.task import TASKS
from trl_credit.observe.selector_warning import SelectorWarning


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name.endswith("selector_warning")]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "rate", "warns"), [("demo", 0.4, True), ("demo_hum", 0.2, False)])
def test_the_embedded_tasks_differ(tmp_path, caplog, task, rate, warns):
    """The policy hardly moves. For "demo" ρ = 0.4 leaves 0.10 ± 0.04 per update."""
    task = TASKS[task]
    small = {"per_device_train_batch_size": 32, "max_steps": 12, "learning_rate": 1e-9, "log_credit": 0}
    small["selective_rate"] = rate
    args = STraceConfig(str(tmp_path), report_to="none", save_strategy="no", **task.settings | small)
    given = {"reward_funcs": demo_reward, "train_dataset": demo_dataset(256, task=task)}
    trainer = STraceTrainer(task.model_path, args=args, **given)
    trainer.results.writes_at_end = False
    trainer.train()
    shares = [row["credit/noise_share"] for row in trainer.state.log_history if "credit/noise_share" in row]
    messages = said(caplog)
    assert len(messages) == warns
    if warns:
        assert all(share < 0.2 for share in shares)
        (share,) = re.findall(r"the selector can hardly help here: (0\.\d\d) of the gradient noise", messages[0])
        assert float(share) == pytest.approx(sum(shares[:2]) / 2, abs=0.006)  # two lines of five updates
        assert all(
            what in messages[0] for what in ("selector='entropy'", "learning_rate=1e-09", "trl-credit help which")
        )
    else:
        assert all(share > 0.5 for share in shares)


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
