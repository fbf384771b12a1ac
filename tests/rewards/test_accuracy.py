"""The accuracy reward: which answer of a response counts, what equals what, and what counts as a value."""

import json
from pathlib import Path

import pytest
from conftest import EXTRACTS
from data_helpers import whole_is_slow

from trl_credit.rewards import accuracy_reward, check_answers, extract_answer
from trl_credit.rewards.judging import read_gold


TESTS = Path(__file__).parents[1]


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


def misjudged(cases, **settings):
    """The cases with another verdict than the expected one."""
    verdicts = accuracy_reward([c["output"] for c in cases], [c["gold"] for c in cases], **settings)
    return [case for case, verdict in zip(cases, verdicts, strict=True) if verdict != float(case["expected"])]


# those in whole outputs are of a second reader, who had not seen the code and then tried to break it
@pytest.mark.parametrize("strict", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "number"), [("equality_cases", 255), pytest.param("accuracy_cases", 859, marks=pytest.mark.slow)]
)
def test_what_equals_what(name, number, strict):
    cases = rows_of(TESTS / f"{name}.jsonl")
    wrong = misjudged([{"output": f"so $\\boxed{{{case.get('answer')}}}$", **case} for case in cases], strict=strict)
    if strict:
        wrong = [c for c in wrong if not c["expected"] or (extract_answer(c["output"]), c["gold"]) not in REFUSED]
    assert len(cases) == number and not wrong


def test_gaming_and_honest_forms():
    """599 cases of two readers who had not seen the code: half attempts to be rewarded without an answer."""
    cases = rows_of(TESTS / "strict_cases.jsonl")
    assert len(cases) == 599 and not misjudged(cases, prompts=[c["problem"] for c in cases])


@pytest.mark.parametrize("strict", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_units_sets_families_bases_lists_and_what_cancels(strict):
    """`equal`: whether the answer is right where it need not be a value, if that differs."""
    cases = rows_of(TESTS / "reading_cases.jsonl")
    for case in cases:
        case["output"] = f"so $\\boxed{{{case['answer']}}}$"
        case["expected"] = case["expected"] if strict else case.get("equal", case["expected"])
    assert len(cases) == 354 and not misjudged(cases, prompts=[c.get("problem", "") for c in cases], strict=strict)


@pytest.mark.slow
def test_what_readers_wrote_who_had_not_seen_the_judge():
    """Nine sets of 100 cases, each by a reader who had not seen the judge (docs/answers.md)."""
    cases = rows_of(TESTS / "unseen_cases.jsonl")
    wrong = misjudged(cases, prompts=[c["problem"] for c in cases], slow_answers=None)
    assert len(cases) == 900 and {case["id"] for case in wrong} <= {"i065"}  # Δ E / (Δ M c²) ≈ 0.15


@pytest.mark.slow
def test_words_and_notations_of_an_answer():
    """Numbers in words, ordinals, choices, names, vectors, times and ratios, with wrong neighbours of each."""
    cases = rows_of(TESTS / "wording_cases.jsonl")
    wrong = misjudged(cases, prompts=[c["problem"] for c in cases], slow_answers=None)
    assert len(cases) == 720 and not wrong


@pytest.mark.parametrize(
    ("problem", "answer", "gold", "right"),
    [
        ("Convert 5 m to centimeters.", "5\\text{ m}", "500\\text{ cm}", 0.0),
        ("A rope has 500 cm. How long is it?", "5\\text{ m}", "500\\text{ cm}", 1.0),
        ("Find the coordinates of $P$.", "3,4", "(3,4)", 0.0),
        ("Find $(x,y)$. Enter the numbers separated by commas.", "3,4", "(3,4)", 1.0),
        ("Find $(x,y)$. Enter the numbers separated by commas.", "4,3", "(3,4)", 0.0),
        ("Find all roots.", "(3,4)", "3,4", 0.0),
        ("Find the ordered pair $(a,b)$.", "(3,4)", "3,4", 1.0),
        ("Write 5 in base 2.", "101_2", "101", 1.0),
        ("Write 5 in base 2.", "101_3", "101", 0.0),
        ("Write $12_3$ in binary.", "101_2", "101", 1.0),
        ("How many are there?", "101_2", "101", 0.0),
        ("What is the speed in inches per second?", "4\\text{ feet per second}", "4", 0.0),
        ("What is the speed in inches per second?", "4\\text{ inches per second}", "4", 1.0),
        ("How many orders are there?", "5!\\cdot3!", "720", 0.0),
        ("Convert $135^\\circ$ to radians.", "135^\\circ", "\\frac{3\\pi}{4}", 0.0),
        ("Find the angle.", "135^\\circ", "\\frac{3\\pi}{4}", 1.0),
        ("Simplify.", "|2\\pi-7|", "7-2\\pi", 0.0),
        ("Solve for $x$.", "8x=9x-12", "x=12", 0.0),
        ("Solve for $x$.", "12=x", "x=12", 1.0),
        ("Find the line.", "2x-y+3=0", "y=2x+3", 1.0),
        ("Find the equation.", "\\frac{dx}{dt}+kx=c", "x'+kx-c=0", 1.0),
        ("Find the equation.", "\\frac{d^2x}{dt^2}+kx=c", "x'+kx-c=0", 0.0),
        ("How fast is it?", "2r_0\\sqrt{G\\rho}", "\\sqrt{4G\\rho r_0^2}", 1.0),
        ("How fast is it?", "-2r_0\\sqrt{G\\rho}", "\\sqrt{4G\\rho r_0^2}", 0.0),
        ("Find the plane.", "2x+0y+z-5=0", "2x+z-5=0", 1.0),
        ("How likely is it?", "56\\%", "0.56 = 56\\%", 1.0),
        ("How likely is it?", "0.56\\%", "0.56 = 56\\%", 0.0),
        ("Convert $2014_{10}$ to base 9.", "2014_{10}=2677_9", "2677_9", 1.0),
        ("Convert $2014_{10}$ to base 9.", "2014_{10}=2676_9", "2677_9", 0.0),
    ],
)
def test_what_a_problem_asks_for(problem, answer, gold, right):
    assert accuracy_reward([f"\\boxed{{{answer}}}"], [gold], prompts=[problem]) == [right]


def test_an_answer_is_a_value():
    cases, logged = rows_of(TESTS / "value_cases.jsonl"), {}
    outputs, golds = [f"\\boxed{{{case['answer']}}}" for case in cases], [case["gold"] for case in cases]
    rewards = accuracy_reward(outputs, golds, log_metric=logged.__setitem__)
    assert [case for case, r in zip(cases, rewards, strict=True) if r != (case["kind"] == "value")] == []
    assert logged["accuracy/unevaluated"] >= [case["kind"] for case in cases].count("unevaluated") == 20
    loose = accuracy_reward(outputs, golds, strict=False, log_metric=logged.__setitem__)
    permissive = {(case["answer"], case["gold"]): r for case, r in zip(cases, loose, strict=True)}
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
    wrong = {case["id"] for case in misjudged(cases, strict=strict)}
    # 3,000 summands; and 3 × 4 for 12, which is no value
    assert len(cases) == 79 and wrong <= ({"vc-138", "vc-125"} if strict else {"vc-138"})


@pytest.mark.slow
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


@whole_is_slow
@pytest.mark.slow
def test_golds_are_checked_whole_and_the_empty_ones_are_named(data_folder):
    for name in ("gsm8k_train", "math500", "aime25", "amc23", "minerva", "olympiadbench"):
        check_answers(row["answer"] for row in data_folder.rows(name))
    size, first, second = (7500, 5341, 5343) if data_folder.whole else (60, 42, 43)
    with pytest.raises(ValueError, match=f"2 of {size} answers.*row {first}: '', row {second}: ''"):
        check_answers(row["answer"] for row in data_folder.rows("math_train"))


def test_a_gold_that_means_nothing_is_an_error_and_a_missing_one_is_no_reward():
    with pytest.raises(ValueError, match=r"1 of 2 answers.*row 1: '\?\?'"):
        check_answers(["4", "??"])
    check_answers(["2", "$ax+b$, where $b$ is an arbitrary integer", "x^2"])  # one wordy gold among formulas
    assert accuracy_reward(["\\boxed{4}", "\\boxed{4}"], ["4", None]) == [1.0, None]


def test_conversations_responses_without_text_and_numbers_as_golds():
    answered, *empty = [{"role": "assistant", "content": "\\boxed{4}"}], [], [{"role": "assistant", "content": None}]
    assert accuracy_reward([answered, *empty, [{"role": "assistant"}]], [4, 4, "4", "4"]) == [1.0, 0.0, 0.0, 0.0]
    in_blocks = [{"role": "assistant", "content": [{"type": "text", "text": "\\boxed{4}"}]}]
    assert accuracy_reward([in_blocks], ["4"]) == [1.0]


@pytest.mark.parametrize("strict", [True, False])
def test_chains_that_end_in_the_answer_and_nouns_at_a_value(strict):
    right = [
        ("(x^2-2x+2)(x^2+2x+2) = x^4+4", "x^4+4"),
        ("(3-2i)^2 = 9-12i-4 = 5-12i", "5-12i"),
        ("f(2008)=f(4)=-1", "-1"),
        ("13.6\\left(1-\\frac{1}{25}\\right)=13.056\\approx13.1\\text{ V}", "13.1"),
        ("17\\cdot 23=391", "391"),
        ("(x+1)^2=x^2+2x+1", "x^2+2x+1"),
        ("\\frac{x^2-1}{x-1}=x+1", "x+1"),
        ("\\sqrt{50}=\\sqrt{25\\cdot2}=5\\sqrt{2}", "5\\sqrt2"),
        ("2^5=32=32", "32"),
        ("\\frac{6}{8}=\\frac{3}{4}=0.75", "0.75"),
        ("(a+b)(a-b)=a^2-b^2", "a^2-b^2"),
        ("\\binom{5}{2}=10", "10"),
        ("f(7)=f(1)=5", "5"),
        ("x^2-5x+6=(x-2)(x-3)", "(x-2)(x-3)"),
        ("x=17", "17"),
        ("3n\\text{ planes}", "3n"),
        ("11 \\text{ more CDs}", "11"),
        ("\\text{the year }2444", "2444"),
        ("\\text{year } 2444", "2444"),
        ("n^2+1\\text{ points}", "n^2+1"),
        ("2k \\text{ students}", "2k"),
        ("\\frac{n(n-1)}{2}\\text{ handshakes}", "n(n-1)/2"),
        ("5\\text{ more apples}", "5"),
        ("\\text{the number }42", "42"),
        ("1331_5", "1331_5"),
        ("\\text{the polynomial }x^2+1", "x^2+1"),
        ("(2+i)(1-i)=2-2i+i+1=3-i", "3-i"),
    ]
    wrong = [
        ("17=42", "42"),
        ("17=42", "17"),
        ("4\\approx5", "5"),
        ("(3-2i)^2=9-12i+4=5-12i", "5-12i"),
        ("(x^2-2x+2)(x^2+2x+2)=x^4+5", "x^4+4"),
        ("(x^2-2x+2)(x^2+2x+2)=x^4+5", "x^4+5"),
        ("f(2008)=f(4)=1", "-1"),
        ("13.6\\left(1-\\frac{1}{25}\\right)=13.5\\approx13.1\\text{ V}", "13.1"),
        ("13.6\\left(1-\\frac{1}{25}\\right)=13.1", "13.2"),
        ("x+y=5", "5"),
        ("5=x=17=5", "17"),
        ("3n\\text{ or }4n", "3n"),
        ("3n\\text{ not planes}", "3n"),
        ("11\\text{ less than}", "11"),
        ("\\text{about the year }2444", "2444"),
        ("\\text{the opposite } 5", "5"),
        ("\\text{the year before }2444", "2444"),
        ("11\\text{ times as many CDs}", "11"),
        ("11\\text{ pairs}", "22"),
        ("3n\\text{ thousands}", "3n"),
        ("3n\\text{ hundredths}", "3n"),
        ("\\text{not }2444", "2444"),
        ("\\text{less than }2444", "2444"),
        ("\\text{the negative }5", "5"),
        ("3n\\text{ planes}", "4n"),
        ("11\\text{ more CDs}", "12"),
        ("3n+\\text{ planes}", "3n"),
        ("\\sqrt{2}=1.41", "1.41"),
        ("x^4+4=x^4+4+x", "x^4+4"),
        ("\\text{the year }2443", "2444"),
        ("3n\\text{ meters}", "3n\\text{ seconds}"),
        ("11\\text{ more or less}", "11"),
        ("f(2)=3, f(4)=5=5", "5"),
        ("n\\text{ factorials}", "n"),
        ("\\text{the year 2443 or 2444}", "2444"),
    ]
    for rows, verdict in ((right, 1.0), (wrong, 0.0)):
        texts = [f"\\boxed{{{answer}}}" for answer, _ in rows]
        golds = [gold for _, gold in rows]
        found = accuracy_reward(texts, golds, prompts=["What is it?"] * len(rows), strict=strict)
        assert [row for row, value in zip(rows, found, strict=True) if value != verdict] == []


def test_what_chains_and_bases_need_to_be_values():
    answers = ["x=17 x=23", "2x=24=24", "f(2008)=4=-1", "x^2=4=2", "121_5\\cdot 11_5", "121_5+11_5"]
    golds = ["23", "24", "-1", "2", "1331_5", "132_5"]
    assert accuracy_reward([f"\\boxed{{{a}}}" for a in answers], golds, prompts=["What is it?"] * 6) == [0.0] * 6
    problem = "Expand the product $(x+1)(x+1)$."
    texts = ["\\boxed{(x+1)(x+1)=x^2+2x+1}", "\\boxed{x^2+2x+1=(x+1)(x+1)}"]
    assert accuracy_reward(texts, ["x^2+2x+1"] * 2, prompts=[problem] * 2) == [1.0, 0.0]
