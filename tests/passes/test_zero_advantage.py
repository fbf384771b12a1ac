"""Micro-batches without an advantage: no pass is made for them, and every update is TRL's, to the last bit."""

import pytest
import torch
import trl
from passes_helpers import Plain, Watch, distinct
from weight_helpers import untimed

import trl_credit
from trl_credit.observe.schema import read_shard, steps
from trl_credit.passes.padding import cheapest_order
from trl_credit.passes.prefix_layout import PromptRow


# windows of two micro-batches of two rows; two windows and two groups in a generation batch
SIZES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
SIZES |= {"max_steps": 12, "weight_decay": 0.1, "learning_rate": 1e-2}


class Reward:
    """With a signal in all groups, in none, and in one of two, by turns of generation batches."""

    __name__ = "reward"

    def __init__(self) -> None:
        self.calls = -1

    def __call__(self, completions, **kwargs):
        self.calls += 1
        rewards = distinct(completions)
        counted = (len(rewards), 0, 4)[self.calls % 3]
        return [x if i < counted else 0.5 for i, x in enumerate(rewards)]


@pytest.fixture
def run(make_trainer, tmp_path):
    def train(skip, algo="base", *, momentum=False, reward=None, **settings):
        own = algo if isinstance(algo, str) else algo[0]
        folder = str(tmp_path / f"{own}-{skip}")
        if skip is not None:
            settings = {"length_sort": "off", "skip_zero_advantage": skip, **settings}
        trainer = make_trainer(algo, reward_funcs=reward or Reward(), output_dir=folder, **{**SIZES, **settings})
        if momentum:
            sgd = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}
            trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), **sgd)
        watch = Watch(trainer)
        trainer.train()
        return trainer, watch

    return train


@pytest.mark.parametrize("momentum", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["adamw", "sgd"])
def test_every_update_is_that_of_trl_with_fewer_passes(run, momentum):
    _, theirs = run(None, (trl.GRPOConfig, trl.GRPOTrainer), momentum=momentum)
    (_, off), (trainer, auto) = (run(skip, momentum=momentum) for skip in ("off", "auto"))
    torch.testing.assert_close(theirs.parameters, off.parameters, rtol=0, atol=0)
    torch.testing.assert_close(theirs.parameters, auto.parameters, rtol=0, atol=0)
    moved = [any(not torch.equal(a[n], b[n]) for n in a) for a, b in zip(auto.parameters, auto.parameters[1:])]  # noqa: B905
    assert all(moved)  # by momentum and weight decay where there is no gradient
    assert off.passes[:12] == [2] * 12
    assert auto.passes[:4] == [2, 2, 0, 0] and auto.passes[6:10] == [2, 2, 0, 0]
    assert sum(auto.passes[4:6] + auto.passes[10:12]) < 8
    for step in (2, 3, 8, 9):
        assert auto.gradients[step].keys() == auto.parameters[step].keys()
        assert not any(x.any() for x in auto.gradients[step].values())
    rows = [row for row in trainer.state.log_history if "credit/skipped_updates" in row]
    skipped = [1 - passes / 2 for passes in auto.passes[:12]]
    assert [row["credit/skipped_micro_batches"] for row in rows] == skipped
    assert [row.get("entropy") is None for row in rows] == [share == 1 for share in skipped]
    assert all((row["credit/trained_tokens_per_row"] == 0) == (share == 1) for row, share in zip(rows, skipped))  # noqa: B905
    assert all(row["step_time"] > 0 and row["credit/skipped_updates"] == 0 for row in rows)
    assert all(row["loss"] == row["grad_norm"] == 0 for row, share in zip(rows, skipped, strict=True) if share == 1)


def test_the_first_window_says_which_parameters_passes_reach(run):
    """Of a run that begins without a signal: parameters that no pass reaches keep no gradient, and so their value."""

    class Unused(trl_credit.CreditTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.model.spare = torch.nn.Parameter(torch.ones(3))

    pair, reward = (trl_credit.CreditConfig, Unused), lambda completions, **kwargs: [0.5] * len(completions)
    (trainer, off), (other, auto) = (run(skip, pair, reward=reward, max_steps=4) for skip in ("off", "auto"))
    assert all(torch.equal(x.model.spare, torch.ones(3)) for x in (trainer, other))
    torch.testing.assert_close(off.parameters, auto.parameters, rtol=0, atol=0)
    assert off.passes[:4] == [2] * 4 and auto.passes[:4] == [1, 0, 0, 0]


def test_a_resumed_run_leaves_out_what_it_would_have_left_out(make_trainer):
    """Its first two steps have no signal: the optimizer that was loaded says which parameters have a gradient of 0."""
    rows, watched = [], []
    for resume in (False, True):
        reward = Reward()
        reward.calls += resume
        settings = {**SIZES, "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        changed = {"allow_changed": ["reward_funcs"]} if resume else {}  # which counts on
        trainer = make_trainer(reward_funcs=reward, **settings, **changed)
        watched.append(Watch(trainer))
        trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-2" if resume else None)
        rows.append(untimed(row for row in trainer.state.log_history if row["step"] > 2 and "reward" in row))
    assert watched[0].passes[:4] == [2, 2, 0, 0] and watched[1].passes[:2] == [0, 0]
    assert rows[0] == rows[1] and len(rows[0]) == 1  # one generation batch
    assert all(torch.equal(x, watched[1].parameters[-1][name]) for name, x in watched[0].parameters[-1].items())


def test_rows_without_an_advantage_come_together(run):
    (_, off), (_, auto) = (run("auto", length_sort=sort, max_steps=6) for sort in ("off", "auto"))
    settings = {"length_sort": "auto", "max_steps": 6}
    _, all_passes = run("off", **settings)
    assert sum(auto.passes[4:6]) <= sum(off.passes[4:6])
    torch.testing.assert_close(auto.gradients, all_passes.gradients, rtol=0, atol=1e-5)
    rows, needed = [PromptRow(0, 3, n) for n in (9, 2, 8, 1)], [True, False, True, False]
    assert cheapest_order(rows, 2, needed=needed) == [1, 3, 0, 2]
    assert cheapest_order(rows, 2, needed=[True] * 4) == cheapest_order(rows, 2) == [0, 2, 1, 3]


def test_rows_that_are_logged_are_computed(run):
    trainer, watch = run("auto", log_credit=3)
    logged = steps(trainer.args.output_dir)
    assert [step for step, _ in logged] == [3, 6, 9, 12]
    assert all(len(read_shard(path).responses) == 8 for _, path in logged)
    # a pass over a generation batch takes two steps: those of the batches of steps 3, 6, 9 and 12 are logged
    assert watch.passes[2:6] == [2] * 4 and watch.passes[8:12] == [2] * 4


class CustomLoss(trl_credit.CreditTrainer):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("base", {"skip_zero_advantage": "off"}),
        ("base", {"beta": 0.1}),
        ("base", {"entropy_coef": 0.01}),
        ("base", {"advantage_floor": 0.1}),
        ("base", {"td_upper_bound": True}),
        ("base", {"rollouts": "chain", "policy_loss": "policy_iteration", "beta": 0.1}),
        ("base", {"neftune_noise_alpha": 1.0}),
        ("base", {"credit": Plain}),
        ((trl_credit.CreditConfig, CustomLoss), {}),
    ],
)
def test_it_is_left_alone_where_a_token_without_an_advantage_may_have_a_gradient(make_trainer, algo, settings):
    assert not make_trainer(algo, **settings)._passes.skipping.applies
