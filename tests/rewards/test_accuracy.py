"""The accuracy reward: which answer of a response counts, what equals what, and what counts as a value."""

import pytest
from data_helpers import cases, whole_is_slow

from trl_credit.rewards import accuracy_reward, check_answers, extract_answer
from trl_credit.rewards.judging import read_gold


LONG = {"text": "\\boxed{" + "1" * 30_000 + "}", "answer": None}  # too long to be judged, and not cut


@pytest.mark.parametrize("case", [*cases("extraction_cases"), LONG], ids=lambda case: case["text"][:60])
def test_which_answer_counts(case):
    assert extract_answer(case["text"]) == case["answer"]


def test_what_a_gold_says():
    golds = ["17", 17, "long\n#### 1,234", "so \\boxed{3}", "$\\frac{1}{2}$"]
    assert [read_gold(gold) for gold in golds] == ["17", "17", "1,234", "3", "\\frac{1}{2}"]


# The files of cases with their number, and the ids of those that are judged wrong. docs/answers.md says who wrote them.
CORPORA = {
    "equality_cases": (255, ()),
    "accuracy_cases": (859, ()),
    "strict_cases": (599, ()),
    "reading_cases": (487, ()),
    "value_cases": (69, ()),
    "data/verifier_cases": (79, ("vc-138", "vc-125")),  # 3,000 summands; and 3 × 4 for 12, which is no value
    "wording_cases": (720, ()),
    "family_cases": (760, ()),
    "unseen_cases": (1350, ("i065",)),  # Δ E / (Δ M c²) ≈ 0.15
}
# whose cases say what `strict=False` gives
LOOSE = ("equality_cases", "accuracy_cases", "reading_cases", "data/verifier_cases")
SLOW = ("accuracy_cases", "reading_cases", "strict_cases", "wording_cases", "family_cases", "unseen_cases")


def cases_of(name, *, strict):
    """The cases of a file, each with `output`, `gold`, `problem` and the verdict that is `expected`."""
    for case in ({"id": None, "problem": "", **case} for case in cases(name)):
        if "output" not in case:
            case["output"] = f"so $\\boxed{{{case['answer']}}}$"
        case["expected"] = case["expected"] if "expected" in case else case["kind"] == "value"
        yield case if strict else case | {"expected": case.get("equal", case["expected"])}


@pytest.mark.parametrize(
    ("name", "strict"),
    [
        pytest.param(name, strict, marks=[pytest.mark.slow] * (name in SLOW or not strict))
        for name in CORPORA
        for strict in ([True, False] if name in LOOSE else [True])
    ],
)
def test_corpora_of_answers(name, strict):
    judged, (number, known) = list(cases_of(name, strict=strict)), CORPORA[name]
    texts, golds, problems = ([case[key] for case in judged] for key in ("output", "gold", "problem"))
    rewards = accuracy_reward(texts, golds, prompts=problems, strict=strict, slow_answers=None)
    wrong = [case for case, reward in zip(judged, rewards, strict=True) if reward != float(case["expected"])]
    assert len(judged) == number and [case for case in wrong if case["id"] not in known] == []


def test_copies_of_the_problem_and_what_is_left_to_work_out_are_logged():
    problem, texts = "Expand $(x+1)^2$.", ["\\boxed{(1+x)^{2}}", "\\boxed{2x+1+x^2}", "\\boxed{\\log_2 8}"]
    golds, logged = ["x^2+2x+1"] * 2 + ["3"], {}
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": problem}]}]
    for columns in (
        {"prompts": [problem] * 3},
        {"prompts": [message] * 3},
        {"prompts": ["?"] * 3, "problem": [problem] * 3},  # the column has no prompt's words around it
    ):
        assert accuracy_reward(texts, golds, **columns, log_metric=logged.__setitem__) == [0.0, 1.0, 0.0]
        assert logged["accuracy/restated"] == logged["accuracy/unevaluated"] == 1.0
    assert accuracy_reward(texts, golds, **columns, strict=False) == [1.0] * 3


@pytest.mark.slow
def test_every_gold_of_the_data_sets_equals_itself_and_not_its_neighbour(data_folder):
    names = sorted(path.stem for path in data_folder.path.glob("*.jsonl") if path.stem != "verifier_cases")
    assert len(names) == 12
    for name in names:
        by_answer = {row["answer"]: row["problem"] for row in data_folder.rows(name) if row["answer"].strip()}
        golds, problems = list(by_answer), list(by_answer.values())
        boxed = [f"so \\boxed{{{gold}}}" for gold in golds]
        scores = accuracy_reward(boxed, golds, prompts=problems)
        assert [gold for gold, score in zip(golds, scores, strict=True) if score != 1.0] == []
        # some 300 of a set, since each is parsed; seen by eye: no neighbours are equal
        some = range(0, len(golds), max(1, len(golds) // 300))
        before = [(golds[i - 1], problems[i - 1]) for i in some]
        scores = accuracy_reward([boxed[i] for i in some], [g for g, _ in before], prompts=[p for _, p in before])
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
    # of OlympiadBench and Minerva
    check_answers(["t(0,4]", "np.arcsin(10/13)", "\\frac{dM}{dt}=10^{5} L_{\\odot} M^{6}"])
    assert accuracy_reward(["\\boxed{4}", "\\boxed{4}"], ["4", None]) == [1.0, None]


def test_conversations_responses_without_text_and_numbers_as_golds():
    answered, *empty = [{"role": "assistant", "content": "\\boxed{4}"}], [], [{"role": "assistant", "content": None}]
    assert accuracy_reward([answered, *empty, [{"role": "assistant"}]], [4, 4, "4", "4"]) == [1.0, 0.0, 0.0, 0.0]
    in_blocks = [{"role": "assistant", "content": [{"type": "text", "text": "\\boxed{4}"}]}]
    assert accuracy_reward([in_blocks], ["4"]) == [1.0]
