"""`explain` on the rollout log of a run gives the credit that the run gave."""

from functools import partial

import pytest
import torch
from conftest import count_a
from custom_functions import custom
from torch.nn.utils.rnn import pad_sequence
from turn_helpers import TURN_FORMS, conversations

from trl_credit import ALGORITHMS
from trl_credit.lab.explain import explain
from trl_credit.lab.explain.table import COLUMNS, rows_of
from trl_credit.observe import rollout_log


GRAD = {"importance": "token", "loss_weight": "trace_past", "loss_weight_confidence": "sigmoid_grad"}
RATIO = {"clip_form": "ratio", "use_bias_correction_kl": False}  # which clips whatever the sign of A
WIDE = {"epsilon": 0.2, "epsilon_high": 0.2}  # or all responses are clipped
OWN = {
    "gspo": WIDE,
    "gspo_token": WIDE,
    "clip_cov": {"cov_share": 0.2, "cov_range": [0.0, 9.0]},
    "kl_cov": {"cov_share": 0.2},
    "spo_chain": {"rollouts_per_state": 2},
    "vine_ppo": {"rollouts_per_state": 2},
}
TALK = {"trainer_kwargs": {"rollout_func": conversations}, "max_completion_length": 16, "loss_type": "grpo"}
QUICK = [("base", TALK | TURN_FORMS["p_trace"])]
QUICK += [(name, OWN.get(name, {})) for name in ("grpo", "s_trace", "fipo", "kl_cov", "ha_dw", "spo_chain")]


def letters(completions, **kwargs):
    return [sum(map(ord, text)) % 5 / 4 for text in completions]


@pytest.fixture
def logged(make_trainer, monkeypatch):
    """Trains two updates on each of two batches; returns the trainer and its shards with all digits."""

    def run(algo, **settings):
        shards = []
        monkeypatch.setattr(rollout_log, "write_shard", lambda path, shard: shards.append(shard))
        settings = {"reward_funcs": letters, "num_iterations": 2, "max_steps": 4, "temperature": 1.3} | settings
        trainer = make_trainer(algo, log_credit=1, log_credit_groups=8, **settings)
        trainer.train()
        assert [shard.header["step"] for shard in shards] == [1, 2, 3, 4]
        return trainer, shards

    return run


def check_explained(trainer, shards):
    """Checks that explain gives what the run logged, and that the run had something to give."""
    for shard in shards:
        segments = None
        if trainer.args.rollouts == "chain":
            pad = partial(pad_sequence, batch_first=True)
            advantages = pad([torch.tensor(r["advantages"]).double() for r in shard.responses])
            segments = advantages, pad([torch.tensor(r["segment_ids"]) for r in shard.responses], padding_value=-1)
        explained = explain(shard, trainer.args, name="again", segments=segments)
        columns = dict.fromkeys(("advantages", "log_weight", "credit"), ((), ()))
        for left, right in zip(shard.responses, explained.shard.responses, strict=True):
            assert all(left[name] == right[name] for name in ("policy_mask", "is_clipped", "selected"))
            for name, (known, again) in columns.items():
                inside = ([x for x, m in zip(row[name], left["loss_mask"], strict=True) if m] for row in (left, right))
                columns[name] = (*known, *next(inside)), (*again, *next(inside))
        for name, (known, again) in columns.items():
            assert known == pytest.approx(again, rel=1e-5, abs=1e-5 * max(1.0, *map(abs, known))), name
    rows = [row for shard in shards for row in shard.responses]
    assert any(any(row["credit"]) for row in rows)
    assert trainer.contract.algorithm.carries_loss or any(any(row["log_weight"]) for row in rows)
    return explained


RUNS = [
    pytest.param(algo, settings, marks=() if (algo, settings) in QUICK else pytest.mark.slow)
    for algo, settings in (
        # rows of trees are parts of responses, which explain refuses
        *((name, OWN.get(name, {})) for name in ALGORITHMS if name != "spo_tree"),
        *(("grpo_lambda", own) for own in (RATIO, {"trace_style": "both"}, GRAD)),
        *(("base", {"loss_type": kind}) for kind in ("sapo", "vespo")),
        ("base", {"top_entropy_quantile": 0.4}),
        *(("base", TALK | form) for form in TURN_FORMS.values()),
        ("ha_dw", {"reward_funcs": [letters, count_a], "difficulty_reward": ["count_a"]}),
        ("base", {"loss_type": "cispo", "epsilon_high": 1.1}),
        ("base", {"delta": 1.1}),
        ("base", {"rollouts": "chain", "rollouts_per_state": 2, "policy_loss": "policy_iteration", "beta": 0.1}),
    )
]


@pytest.mark.parametrize(
    ("algo", "settings"),
    RUNS,
    ids=lambda value: value if isinstance(value, str) else "-".join(name for name in value if name not in TALK),
)
def test_it_is_the_credit_that_the_run_logged(logged, algo, settings):
    trainer, shards = logged(algo, **settings)
    explained = check_explained(trainer, shards)
    (cells,) = rows_of([explained], grpo=None)
    shown, row = dict(zip(COLUMNS, cells, strict=True)), trainer.state.log_history[-2]
    if trainer.args.has_trace:
        assert explained.horizon == pytest.approx(row["credit/effective_horizon"], rel=1e-4) and explained.horizon > 0.3
    if trainer.args.importance == "turn":
        assert explained.horizon is None
    for column, name in (("noise share", "noise_share"), ("last tokens' share", "last_tokens_share")):
        assert float(shown[column]) == pytest.approx(row[f"credit/{name}"], abs=0.0051)
    if algo == "ha_dw" and not settings:  # the run's belief, not the accuracy of these responses
        rewards = [row["reward"] for row in shards[-1].responses]
        assert abs(shards[-1].header["difficulty_belief"] - sum(rewards) / len(rewards)) > 0.05


def test_a_loss_is_not_shown_as_an_advantage(logged):
    """ρ·A − (ln ρ)²/10 as minus a loss: A stays that of the group, and the credit is ρ·A − ln ρ / 5."""
    trainer, shards = logged("base", credit=custom("weighted_kl"))
    check_explained(trainer, shards)
    for row in shards[1].responses:
        rewards = torch.tensor([other["reward"] for other in shards[1].responses if other["group"] == row["group"]])
        advantage = ((row["reward"] - rewards.mean()) / (rewards.std() + 1e-4)).item()
        assert row["advantages"] == pytest.approx([advantage] * len(row["tokens"]), abs=1e-5)
        log_ratio = torch.tensor(row["trainer_logprobs"]) - torch.tensor(row["old_logprobs"])
        assert row["credit"] == pytest.approx((log_ratio.exp() * advantage - log_ratio / 5).tolist(), abs=1e-5)
        assert not any(row["log_weight"]) and row["is_clipped"] is None
