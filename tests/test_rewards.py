"""Reward functions: which answer of a response counts, what equals what, and what the others reward."""

import functools
import json
from pathlib import Path

import pytest
from conftest import EXTRACTS
from equality_cases import CASES

from trl_credit.rewards import (
    accuracy_reward,
    check_answers,
    extract_answer,
    format_reward,
    knights_and_knaves_reward,
    resolve_reward,
    soft_overlong_punishment,
)
from trl_credit.rewards.functions import read_gold


def rows_of(path):
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{4}", "4"),
        ("\\boxed{1}. No: \\boxed{2}", "2"),
        ("first \\boxed{1}, which is half of what was asked for, so \\boxed{2}", "2"),
        ("$\\boxed{5}$, $\\boxed{7}$", "5,7"),
        ("\\boxed{1} or \\boxed{2} or \\boxed{3}", "1,2,3"),
        ("\\boxed{7}, \\boxed{7}", "7"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\left\\{1,2\\right\\}}", "\\left\\{1,2\\right\\}"),
        ("\\boxed{\\left\\{x \\right.}", "\\left\\{x \\right."),
        ("\\boxed{$5$}", "5"),
        ("\\fbox{9}", "9"),
        ("\\boxed 5.", "5."),
        ("\\boxed{1} and then \\boxed{2", None),
        ("<think>\\boxed{42}</think> I am not sure.", None),
        ("<think>\\boxed{42}", None),
        ("<think>\\boxed{1}</think> \\boxed{2}", "2"),
        ("so it is 4\n#### 4\n", "4"),
        ("#### 3\n#### 4\nthat is it", "4"),
        ("####", None),
        ("\\boxed{4}\n#### 5", "4"),
        ("<answer> 17 </answer>", "17"),
        ("<answer>17", None),
        ("the answer is 4", "4"),
        ("The final answer is: $x = 5$.", "x = 5"),
        ("**Final Answer:** 12", "12"),
        ("**Final Answer**\n\n$\\frac{1}{2}$", "\\frac{1}{2}"),
        ("Answer: \\(34\\)\n", "34"),
        ("The answer is 2.5. Let me check it.", "2.5"),
        ("the answer to this is found below\nso 4", None),
        ("Hence they walked **17**.", "17"),
        ("**Step 1**: 17 walk", None),
        ("Let 42 be the first number we test; it fails. Then 17 fails too", None),
        ("", None),
    ],
)
def test_which_answer_counts(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("17", "17"),
        (17, "17"),
        ("long\n#### 1,234", "1,234"),
        ("so \\boxed{3}", "3"),
        ("$\\frac{1}{2}$", "\\frac{1}{2}"),
    ],
)
def test_what_a_gold_says(gold, answer):
    assert read_gold(gold) == answer


def test_what_equals_what():
    verdicts = accuracy_reward([f"so $\\boxed{{{answer}}}$" for answer, _, _ in CASES], [gold for _, gold, _ in CASES])
    wrong = [case for case, verdict in zip(CASES, verdicts, strict=True) if verdict != float(case[2])]
    assert not wrong


def test_whole_outputs():
    """Cases that a second reader wrote without seeing the code, and those with which it then tried to break it."""
    cases = rows_of(Path(__file__).parent / "accuracy_cases.jsonl")
    verdicts = accuracy_reward([c["output"] for c in cases], [c["gold"] for c in cases])
    wrong = [case for case, verdict in zip(cases, verdicts, strict=True) if verdict != float(case["expected"])]
    assert len(cases) > 800 and not wrong


def test_the_collected_cases():
    cases = rows_of(EXTRACTS / "verifier_cases.jsonl")
    verdicts = accuracy_reward([c["output"] for c in cases], [c["gold"] for c in cases])
    wrong = [c["id"] for c, verdict in zip(cases, verdicts, strict=True) if verdict != float(c["expected"])]
    assert len(wrong) <= 0.03 * len(cases), wrong


def test_every_gold_of_the_data_sets_equals_itself_and_not_its_neighbour(data_folder):
    names = sorted(path.stem for path in data_folder.path.glob("*.jsonl") if path.stem != "verifier_cases")
    assert len(names) == 12
    for name in names:
        golds = [gold for gold in dict.fromkeys(row["answer"] for row in data_folder.rows(name)) if gold.strip()]
        boxed = [f"so \\boxed{{{gold}}}" for gold in golds]
        assert [gold for gold, score in zip(golds, accuracy_reward(boxed, golds), strict=True) if score != 1.0] == []
        # some 300 of a set, since each is parsed; seen by eye: no neighbours are equal
        some = range(0, len(golds), max(1, len(golds) // 300))
        scores = accuracy_reward([boxed[i] for i in some], [golds[i - 1] for i in some])
        assert [(golds[i], golds[i - 1]) for i, score in zip(some, scores, strict=True) if score != 0.0] == []


def test_golds_are_checked_whole_and_the_empty_ones_are_named(data_folder):
    for name in ("gsm8k_train", "math500", "aime25", "amc23", "minerva", "olympiadbench"):
        check_answers(row["answer"] for row in data_folder.rows(name))
    size, first, second = (7500, 5341, 5343) if data_folder.whole else (60, 42, 43)
    with pytest.raises(ValueError, match=f"2 of {size} answers.*row {first}: '', row {second}: ''"):
        check_answers(row["answer"] for row in data_folder.rows("math_train"))


def test_a_gold_that_means_nothing_is_an_error_and_a_missing_one_is_no_reward():
    with pytest.raises(ValueError, match=r"1 of 2 answers.*row 1: '\?\?'"):
        check_answers(["4", "??"])
    assert accuracy_reward(["\\boxed{4}", "\\boxed{4}"], ["4", None]) == [1.0, None]


def test_conversations_and_numbers_as_golds():
    assert accuracy_reward([[{"role": "assistant", "content": "\\boxed{4}"}], []], [4, 4]) == [1.0, 0.0]


@pytest.mark.parametrize("completion", [[], [{"role": "assistant", "content": None}], [{"role": "assistant"}]])
def test_a_response_without_text_scores_zero(completion):
    assert accuracy_reward([completion], ["4"]) == [0.0]


def test_one_wordy_gold_among_formulas_is_no_reason_to_refuse():
    check_answers(["2", "$ax+b$, where $b$ is an arbitrary integer", "x^2"])


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
        ("<think>a</think>", True, 0.0),
        ("<think>a</think> so 4", False, 1.0),
        ("<think>a</think> ", False, 0.0),
        ("so 4", False, 0.0),
        ("", True, 0.0),
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
        ("If Bob is a knight ... Amelia is a knight and Bob is a knave", 1.0),
        ("amelia is a KNIGHT; bob is a knave", 1.0),
        ("(1) Amelia is a knave\n(2) Bob is a knight", 0.0),
        ("<answer>Amelia is a knight</answer>", 0.0),
        ("<answer>Amelia is a knight, Bob is a knave, Bob is a knight</answer>", 0.0),
        ("Amelia is a knight, Amelia is a knight", 0.0),
        ("<think>Amelia is a knight, Bob is a knave</think>", 0.0),
        ("<think>Amelia is a knight, Bob is a knave", 0.0),
        ("Amelia is a knight, Bob is not a knight", 0.0),
        ("Amelia is a knight or a knave, Bob is a knave", 0.0),
        ("Amelia is a knight, Bob is a knave or a knight", 0.0),
        ("<answer>Amelia is a knight/knave, Bob is a knave</answer>", 0.0),
        ("It is not true that Amelia is a knight. Bob is a knave.", 0.0),
        ("\\boxed{\\text{it is false that Amelia is a knight, and Bob is a knave}}", 0.0),
        ("Either Amelia is a knight, Bob is a knave or the reverse", 0.0),
        ("If Amelia is a knight, Bob is a knave.", 0.0),
        ("Bob says that Amelia is a knight. Bob is a knave.", 0.0),
        ("Is Amelia a knight? Amelia is a knight (not a knave). Bob is a knave.", 1.0),
        ("Bob claims Amelia is a knave, a lie.\nSo Amelia is a knight and Bob is a knave.", 1.0),
        ("\\boxed{4}", 0.0),
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


def test_a_stock_trl_trainer_takes_them(tmp_path):
    import trl

    from trl_credit.demo import demo_dataset, demo_model_path

    puzzle = {"names": [["Amelia"]] * 16, "truth": [[True]] * 16}
    data = demo_dataset(16)
    for name, column in puzzle.items():
        data = data.add_column(name, column)
    trainer = trl.GRPOTrainer(
        model=demo_model_path(),
        reward_funcs=[
            accuracy_reward,
            format_reward,
            functools.wraps(soft_overlong_punishment)(
                functools.partial(soft_overlong_punishment, max_length=8, cache=4)
            ),
            knights_and_knaves_reward,
        ],
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            max_steps=1,
            logging_steps=1,
            report_to="none",
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=data,
    )
    trainer.train()
    logs = trainer.state.log_history[0]
    assert logs["rewards/soft_overlong_punishment/mean"] < 0.0 and logs["accuracy/timed_out"] == 0.0
