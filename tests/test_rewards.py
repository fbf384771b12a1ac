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


# of the cases that were written before there was a strict reading, what it refuses: work undone, letters out of order
REFUSED = {
    ("\\log_2 8", "3"),
    ("\\log_{2}{8}", "3"),
    ("\\sin^2 x + \\cos^2 x", "1"),
    ("\\arcsin 1", "\\frac{\\pi}{2}"),
    ("\\lim_{x\\to0}\\frac{\\sin x}{x}", "1"),
    ("2\\cdot\\frac{1}{2}", "1"),
    ("0.1+0.2", "0.3"),
    ("3 · 4", "12"),
    ("7\\pm1", "6,8"),
    ("\\sqrt[3]{8}", "2"),
    ("\\sqrt{4}", "2"),
    ("\\sqrt{-1}", "i"),
    ("e^{i\\pi}", "-1"),
    ("i^2", "-1"),
    ("AB", "BA"),
}


@pytest.mark.parametrize("strict", [True, False])
def test_what_equals_what(strict):
    verdicts = accuracy_reward(
        [f"so $\\boxed{{{answer}}}$" for answer, _, _ in CASES], [gold for _, gold, _ in CASES], strict=strict
    )
    wrong = [case for case, verdict in zip(CASES, verdicts, strict=True) if verdict != float(case[2])]
    assert [case for case in wrong if not (strict and case[2] and case[:2] in REFUSED)] == []


@pytest.mark.parametrize("strict", [True, False])
def test_whole_outputs(strict):
    """Cases that a second reader wrote without seeing the code, and those with which it then tried to break it."""
    cases = rows_of(Path(__file__).parent / "accuracy_cases.jsonl")
    verdicts = accuracy_reward([c["output"] for c in cases], [c["gold"] for c in cases], strict=strict)
    wrong = [case for case, verdict in zip(cases, verdicts, strict=True) if verdict != float(case["expected"])]
    if strict:
        wrong = [c for c in wrong if not c["expected"] or (extract_answer(c["output"]), c["gold"]) not in REFUSED]
    assert len(cases) > 800 and not wrong


def test_gaming_and_honest_forms():
    """599 cases of two readers who had not seen the code: half attempts to be rewarded without an answer."""
    cases = rows_of(Path(__file__).parent / "strict_cases.jsonl")
    verdicts = accuracy_reward(
        [c["output"] for c in cases], [c["gold"] for c in cases], prompts=[c["problem"] for c in cases]
    )
    wrong = [case for case, verdict in zip(cases, verdicts, strict=True) if verdict != float(case["expected"])]
    assert len(cases) == 599 and not wrong


UNEVALUATED = [
    ("x^2-5x+6<0", "(2,3)"),
    ("|2x-1|<5", "(-2,3)"),
    ("\\int_0^{\\pi}\\sin x\\,dx", "2"),
    ("7^{2023}\\bmod 100", "43"),
    ("\\log_2 1024", "10"),
    ("123456*789", "97406784"),
    ("12345+67890", "80235"),
    ("\\sum_{k=1}^{8}k", "36"),
    ("\\prod_{k=1}^{4}k", "24"),
    ("\\gcd(84,126)", "42"),
    ("\\det\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "-2"),
    (
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}\\begin{pmatrix}1\\\\0\\end{pmatrix}",
        "\\begin{pmatrix}1\\\\3\\end{pmatrix}",
    ),
    ("(1,3)\\cap(2,5)", "(2,3)"),
    ("42+x-x", "42"),
    ("42^1", "42"),
    ("-(-42)", "42"),
    ("6^2+6", "42"),
    ("\\frac{1}{2}+\\frac{1}{3}", "\\frac{5}{6}"),
    ("\\sqrt{1764}", "42"),
    ("x=17\\cdot 23", "391"),
]
WRONG = [
    ("4\\approx5", "4"),
    ("x=17 x=23", "23"),
    ("HHT", "THH"),
    ("\\text{HHT}", "\\text{THH}"),
    ("cat", "act"),
    ("no", "on"),
    ("(2,1)", "(1,2)"),
    ("17=42", "42"),
    ("60\\text{ radians}", "60^\\circ"),
]
VALUES = [
    ("\\textcolor{red}{42}", "42"),
    ("\\color{red}{42}", "42"),
    ("{\\color{red} 42}", "42"),
    ("\\bf 42", "42"),
    ("\\Large 42", "42"),
    ("\\underline{42}", "42"),
    ("\\text{Answer: }42", "42"),
    ("\\text{Total cost}=42", "42"),
    ("f(2)=42", "42"),
    ("|AB|=42", "42"),
    ("\\angle ABC=42^\\circ", "42"),
    ("\\sin\\theta=\\frac12", "\\frac{1}{2}"),
    ("\\text{Option B}", "B"),
    ("1>x>0", "0<x<1"),
    ("0.333...", "\\frac{1}{3}"),
    ("1\\text{ million}", "1000000"),
    ("2^{10}", "1024"),
    ("2^{10}-1", "1023"),
    ("6!", "720"),
    ("\\binom{10}{3}", "120"),
    ("(x+1)^2", "x^2+2x+1"),
    ("x^2+2x+1", "(x+1)^2"),
    ("1.5\\times10^3", "1500"),
    ("1\\frac12", "\\frac32"),
    ("\\frac{2}{4}", "\\frac12"),
    ("3\\ln 2", "\\ln 8"),
    ("\\sqrt{12}", "2\\sqrt{3}"),
    ("\\frac{22}{7}\\approx3.14", "\\frac{22}{7}"),
    ("17\\cdot 23=391", "391"),
    ("17*23", "17\\cdot 23"),
    ("\\int_0^1 f", "\\int_{0}^{1} f"),
    ("x\\in(-\\infty,1)\\cup(3,\\infty)", "(-\\infty,1)\\cup(3,\\infty)"),
    ("x<1\\text{ or }x>3", "(-\\infty,1)\\cup(3,\\infty)"),
    ("x\\ge2\\text{ and }x\\le5", "[2,5]"),
    ("\\{x\\mid x>2\\}", "(2,\\infty)"),
    ("x:=42", "42"),
    ("\\therefore x=42", "42"),
    ("m+n=13+29=42", "42"),
    ("3,1,2", "1,2,3"),
    ("\\text{B and A}", "A,B"),
]


def test_an_answer_is_a_value():
    pairs, logged = [*UNEVALUATED, *WRONG, *VALUES], {}
    outputs, golds = [f"\\boxed{{{answer}}}" for answer, _ in pairs], [gold for _, gold in pairs]
    rewards = accuracy_reward(outputs, golds, log_metric=logged.__setitem__)
    right = [False] * (len(UNEVALUATED) + len(WRONG)) + [True] * len(VALUES)
    assert [pair for pair, r, wanted in zip(pairs, rewards, right, strict=True) if r != wanted] == []
    assert logged["accuracy/unevaluated"] >= len(UNEVALUATED)
    permissive = dict(
        zip(pairs, accuracy_reward(outputs, golds, strict=False, log_metric=logged.__setitem__), strict=True)
    )
    assert permissive["\\log_2 1024", "10"] == permissive["4\\approx5", "4"] == permissive["cat", "act"] == 1.0
    assert logged["accuracy/unevaluated"] == logged["accuracy/restated"] == 0.0


RESTATED = [
    ("Expand $(x+1)^2$.", "(x+1)^2", "x^2+2x+1"),
    ("Expand $(x+1)^2$.", "(1+x)^{2}", "x^2+2x+1"),
    ("Expand $(x+1)^2$.", "(x+1)(x+1)", "x^2+2x+1"),
    ("Factor $x^2-1$.", "x^2-1", "(x-1)(x+1)"),
    ("Compute $2^{10}$.", "2^{10}", "1024"),
    ("Simplify $\\sqrt{50}$.", "y=\\sqrt{50}", "5\\sqrt{2}"),
    ("Write 0.5 as a fraction.", "0.5", "\\frac{1}{2}"),
    ("Write $255$ in base 16.", "255", "FF_{16}"),
    ("How many are $6!$ orders?", "6!", "720"),
]
NOT_RESTATED = [
    ("How many settings do 10 switches have?", "2^{10}", "1024"),
    ("Find the monic polynomial with the double root $-1$.", "(x+1)^2", "x^2+2x+1"),
    ("Which is larger, $\\frac12$ or $\\frac13$?", "\\frac12", "\\frac{1}{2}"),
    ("A coin has probability 0.5 of heads. How likely is one tail?", "0.5", "\\frac{1}{2}"),
    ("Is 5 or 7 the number of days?", "7.0", "7"),
    ("Expand $(x+1)^2$.", "2x+1+x^2", "x^2+2x+1"),
]


def test_a_copy_of_the_problem_is_no_answer():
    cases, logged = [*RESTATED, *NOT_RESTATED], {}
    outputs, golds = [f"\\boxed{{{answer}}}" for _, answer, _ in cases], [gold for *_, gold in cases]
    for prompts in ([p for p, *_ in cases], [[{"role": "user", "content": p}] for p, *_ in cases]):
        rewards = accuracy_reward(outputs, golds, prompts=prompts, log_metric=logged.__setitem__)
        assert [c for c, r in zip(cases, rewards, strict=True) if r != (c in NOT_RESTATED)] == []
        assert logged["accuracy/restated"] == len(RESTATED)
    bare = accuracy_reward(outputs, golds, prompts=["?"] * len(cases), problem=[p for p, *_ in cases])
    assert bare == rewards  # the column has no prompt's words around it
    assert accuracy_reward(outputs, golds, prompts=[p for p, *_ in cases], strict=False) == [1.0] * len(cases)
    assert accuracy_reward(["\\boxed{4}"], ["4"], prompts=[[{"role": "user", "content": [{"type": "image"}]}]]) == [1.0]


def test_what_was_asked_for_is_a_label():
    prompts = ["Find $m+n$.", "Solve $m+n=42$.", "Find $m-n$."]
    assert accuracy_reward(["\\boxed{m+n=42}"] * 3, ["42"] * 3, prompts=prompts) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("problem", "ordered"),
    [
        ("Order the roots from least to greatest.", True),
        ("List the numbers in increasing order, separated by commas.", True),
        ("How many coins have Sam and Tia, respectively?", True),
        ("Sam and Tia have 2 and 3 coins, respectively.\n\nFind all divisors.", False),
        ("In order to solve it, find all $x$.", False),
        ("Give the roots in any order.", False),
        ("Find all roots.", False),
    ],
)
def test_lists_have_an_order_where_the_problem_asks_for_one(problem, ordered):
    texts = ["\\boxed{3, 1, 2}", "\\boxed{1, 2, 3}", "\\boxed{x=1, x=2, x=3}"]
    assert accuracy_reward(texts, ["1, 2, 3"] * 3, prompts=[problem] * 3) == [float(not ordered), 1.0, 1.0]


def test_small_letters_of_formulas_are_a_product():
    problem = "A rectangle has the sides $a$ and $b$. What is its area?"
    assert accuracy_reward(["\\boxed{ba}", "\\boxed{ba}"], ["ab", "ab"], prompts=[problem, "Unscramble it."]) == [
        1.0,
        0.0,
    ]


@pytest.mark.parametrize("strict", [True, False])
def test_the_collected_cases(strict):
    cases = rows_of(EXTRACTS / "verifier_cases.jsonl")
    verdicts = accuracy_reward([c["output"] for c in cases], [c["gold"] for c in cases], strict=strict)
    wrong = {c["id"] for c, verdict in zip(cases, verdicts, strict=True) if verdict != float(c["expected"])}
    # 3,000 summands; and 3 × 4 for 12, which is no value
    assert len(cases) == 79 and wrong <= ({"vc-138", "vc-125"} if strict else {"vc-138"})


def test_every_gold_of_the_data_sets_equals_itself_and_not_its_neighbour(data_folder):
    names = sorted(path.stem for path in data_folder.path.glob("*.jsonl") if path.stem != "verifier_cases")
    assert len(names) == 12
    for name in names:
        asked = {row["answer"]: row["problem"] for row in data_folder.rows(name) if row["answer"].strip()}
        golds, problems = list(asked), list(asked.values())
        boxed = [f"so \\boxed{{{gold}}}" for gold in golds]
        scores = accuracy_reward(boxed, golds, prompts=problems)
        assert [gold for gold, score in zip(golds, scores, strict=True) if score != 1.0] == []
        # some 300 of a set, since each is parsed; seen by eye: no neighbours are equal
        some = range(0, len(golds), max(1, len(golds) // 300))
        before = [i - 1 for i in some]
        scores = accuracy_reward(
            [boxed[i] for i in some], [golds[i] for i in before], prompts=[problems[i] for i in before]
        )
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
