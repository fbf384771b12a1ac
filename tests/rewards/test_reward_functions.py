"""The rewards of format, length and puzzles, and all of them in a stock trainer of TRL."""

import pytest
import trl
from data_helpers import cases

from trl_credit.rewards import accuracy_reward, format_reward, resolve_reward, soft_overlong_punishment
from trl_credit.rewards.puzzles import knights_and_knaves_reward


LONG = {"text": "\n" * 10**6, "tags": True, "right": 0.0}


@pytest.mark.parametrize("case", [*cases("format_cases"), LONG], ids=lambda case: case["text"][:60])
def test_format(case):
    assert format_reward([case["text"]], tags=case["tags"]) == [case["right"]]


def test_soft_overlong_punishment_is_dapo_equation_13():
    lengths = [1, 80, 81, 90, 99, 100, 150]
    by_hand = [0.0, 0.0, -0.05, -0.5, -0.95, -1.0, -1.0]
    ids = [[7] * n for n in lengths]
    assert soft_overlong_punishment(ids, ids, max_length=100, cache=20) == pytest.approx(by_hand, abs=1e-12)
    named = resolve_reward("soft_overlong", max_completion_length=100)  # a fifth of it, as in the paper
    assert named(completions=ids, completion_ids=ids) == pytest.approx(by_hand, abs=1e-12)
    assert named.__name__ == "soft_overlong_punishment"
    with pytest.raises(ValueError, match="cache must be in"):
        soft_overlong_punishment(ids, ids, max_length=10, cache=11)


@pytest.mark.parametrize("case", cases("knights_cases"), ids=lambda case: case["text"])
def test_knights_and_knaves(case):
    assert knights_and_knaves_reward([case["text"]], [["Amelia", "Bob"]], [[True, False]]) == [case["right"]]


def test_solutions_of_the_puzzles_are_right_and_only_for_their_own(data_folder):
    rows = data_folder.rows("kk_3ppl_test")
    names, truth = [row["names"] for row in rows], [row["truth"] for row in rows]
    assert knights_and_knaves_reward([row["answer"] for row in rows], names, truth) == [1.0] * len(rows)
    turned = [[not knight for knight in knights] for knights in truth]
    assert knights_and_knaves_reward([row["answer"] for row in rows], names, turned) == [0.0] * len(rows)


def test_a_stock_trl_trainer_takes_them(make_trainer):
    rewards = [accuracy_reward, format_reward, knights_and_knaves_reward]
    rewards.append(resolve_reward("soft_overlong", max_completion_length=8))
    trainer = make_trainer((trl.GRPOConfig, trl.GRPOTrainer), reward_funcs=rewards, max_steps=1, n_prompts=16)
    data = trainer.train_dataset.add_column("names", [["Amelia"]] * 16)
    trainer.train_dataset = data.add_column("truth", [[True]] * 16)
    trainer.train()
    logs = trainer.state.log_history[0]
    assert logs["rewards/soft_overlong_punishment/mean"] < 0.0 and logs["accuracy/timed_out"] == 0.0
