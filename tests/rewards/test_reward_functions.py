"""The rewards of format, length and puzzles, and all of them in a stock trainer of TRL."""

import pytest
import trl

from trl_credit.rewards import accuracy_reward, format_reward, resolve_reward, soft_overlong_punishment
from trl_credit.rewards.puzzles import knights_and_knaves_reward


@pytest.mark.parametrize(
    ("text", "tags", "right"),
    [
        ("<think>a</think><answer>4</answer>", True, 1.0),
        ("<think>\na\n</think>\n\n<answer>\n4\n</answer>\n", True, 1.0),
        ("a</think><answer>4</answer>", True, 1.0),
        ("<think></think><answer>4</answer>", True, 0.0),
        ("<think>a</think><answer> </answer>", True, 0.0),
        ("<think>a</think>so <answer>4</answer>", True, 0.0),
        ("<think>a</think><answer>4</answer> yes", True, 0.0),
        ("<think>a</think><answer>4</answer><answer>5</answer>", True, 0.0),
        ("<think>a<think>b</think><answer>4</answer>", True, 0.0),
        ("x <think>a</think><answer>4</answer>", True, 0.0),
        ("<answer>4</answer><think>a</think>", True, 0.0),
        ("<think>a</think> so 4", False, 1.0),
        ("<think>a</think> ", False, 0.0),
        ("so 4", False, 0.0),
        ("", True, 0.0),
        ("\n" * 10**6, True, 0.0),
    ],
)
def test_format(text, tags, right):
    assert format_reward([text], tags=tags) == [right]


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


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("(1) Amelia is a knight\n(2) Bob is a knave", 1.0),
        ("<answer>(1) Amelia is a knight\n(2) Bob is a knave</answer>", 1.0),
        ("\\boxed{\\text{Amelia is a knight, Bob is a knave}}", 1.0),
        ("If Amelia is a knave, then no. So **Amelia**: knight, **Bob**: knave.", 1.0),
        ("(1) Amelia is a knave\n(2) Bob is a knight", 0.0),
        ("<answer>Amelia is a knight</answer>", 0.0),
        ("<answer>Amelia is a knight, Bob is a knave, Bob is a knight</answer>", 0.0),
        ("<think>Amelia is a knight, Bob is a knave</think>", 0.0),
        ("Amelia is a knight, Bob is not a knight", 0.0),
        ("Amelia is a knight or a knave, Bob is a knave", 0.0),
        ("Amelia is a knight, Bob is a knave or a knight", 0.0),
        ("<answer>Amelia is a knight/knave, Bob is a knave</answer>", 0.0),
        ("It is not true that Amelia is a knight. Bob is a knave.", 0.0),
        ("\\boxed{\\text{it is false that Amelia is a knight, and Bob is a knave}}", 0.0),
        ("Either Amelia is a knight, Bob is a knave or the reverse", 0.0),
        ("Bob says that Amelia is a knight. Bob is a knave.", 0.0),
        ("Is Amelia a knight? Amelia is a knight (not a knave). Bob is a knave.", 1.0),
        ("Bob claims Amelia is a knave, a lie.\nSo Amelia is a knight and Bob is a knave.", 1.0),
        ("", 0.0),
    ],
)
def test_knights_and_knaves(text, right):
    assert knights_and_knaves_reward([text], [["Amelia", "Bob"]], [[True, False]]) == [right]


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
