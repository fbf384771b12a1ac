"""The accuracy reward: which answer of a response counts, and what equals what."""

import json
import time

import pytest
from conftest import SHARED

from trl_credit.rewards import accuracy_reward, extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{4}", "4"),
        ("\\boxed{1}. No: \\boxed{2}", "2"),
        ("first \\boxed{1}, which is half of what was asked for, so \\boxed{2}", "2"),
        ("$\\boxed{5}$, $\\boxed{7}$", "5,7"),
        ("\\boxed{1} or \\boxed{2} or \\boxed{3}", "1,2,3"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\fbox{9}", "9"),
        ("\\boxed 5.", "5."),
        ("\\boxed{1} and then \\boxed{2", None),
        ("<think>\\boxed{42}</think> I am not sure.", None),
        ("<think>\\boxed{42}", None),
        ("<think>\\boxed{1}</think> \\boxed{2}", "2"),
        ("so it is 4\n#### 4\n", "4"),
        ("the answer is 4", None),
        ("", None),
    ],
)
def test_which_answer_counts(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("output", "gold", "right"),
    [
        ("\\frac{1}{2^{98}}", "\\frac{1}{2^{99}}", False),  # at six places both are 0
        ("\\frac{1}{2^{99}}", "2^{-99}", True),
        ("0.0000002", "0.0000001", False),
        ("0.3333333", "1/3", True),
        ("1.6e-3", "1.6\\times 10^{-3}", True),
        ("1.6e-3", "1.6\\times 10^{-2}", False),
        ("2E6", "2000000", True),
        ("½", "\\frac{1}{2}", True),
        ("1½", "\\frac{3}{2}", True),
        ("５", "5", True),
        ("x²", "x2", False),
        ("5000\\%", "50", False),
        ("50\\%", "50", True),
        ("50\\%", "50\\%", True),
        ("50\\%", "0.5", True),
        ("0.5", "50\\%", True),
        ("0.5", "5\\%", False),
        ("m \\geq \\sqrt{2}", "[\\sqrt{2},\\infty)", True),
        ("m > \\sqrt{2}", "[\\sqrt{2},\\infty)", False),
        ("1,000", "1000", True),
        ("1,2,3", "3", False),
        ("7,5", "5,7", True),  # solutions in any order
        ("(7,5)", "(5,7)", False),
    ],
)
def test_what_equals_what(output, gold, right):
    assert accuracy_reward([f"so $\\boxed{{{output}}}$"], [gold]) == [float(right)]


def test_hostile_boxes_do_not_hang():
    start = time.perf_counter()
    texts = ["\\boxed{" * 20_000, "\\boxed{1}" * 20_000, "\\boxed{" + "(" * 3000 + "}", "\\boxed " * 20_000]
    texts += ["<think>" * 50_000, "</think>" * 50_000, "\\boxed{" + "9" * 1_000_000 + "}", "\\boxed{9^{9^{9^9}}}"]
    assert accuracy_reward(texts, ["5"] * len(texts)) == [0.0] * len(texts)
    assert time.perf_counter() - start < 60  # seconds: not a measurement, but a hang


@pytest.mark.skipif(not (SHARED / "data" / "verifier_cases.jsonl").is_file(), reason="the shared cases are not here")
def test_the_collected_cases():
    cases = [json.loads(line) for line in (SHARED / "data" / "verifier_cases.jsonl").read_text().splitlines()]
    wrong = [c["id"] for c in cases if accuracy_reward([c["output"]], [c["gold"]]) != [float(c["expected"])]]
    assert len(wrong) <= 0.03 * len(cases), wrong
