"""Cleaning of problem sets: damaged LaTeX, copies, conflicting golds, and overlap with evaluation sets."""

import itertools
import logging

import pytest
from data_helpers import CASES, whole_is_slow

from trl_credit.data import load_prompts
from trl_credit.data.cleaning import clean, find_overlap, is_damaged, normalise, repair_latex, without_spaces


@pytest.mark.parametrize(("damaged", "whole"), CASES["damaged_latex"])
def test_damaged_latex_is_repaired(damaged, whole):
    assert repair_latex(damaged) == whole and is_damaged(damaged) and not is_damaged(whole)


@pytest.mark.parametrize("text", CASES["undamaged_text"])
def test_undamaged_text_does_not_change(text):
    assert repair_latex(text) == text and not is_damaged(text)


@pytest.mark.parametrize("text", ["a\x00b", "$y \x14\\le 2x$", "$| \fx^2 |$", "\f \f", "\x88", "\x7f"])
def test_what_cannot_be_repaired_is_damaged(text):
    assert is_damaged(repair_latex(text))


def test_clean_drops_and_counts_and_keeps_the_order():
    problems = ["one", "两", "t wo\n", "two", "three", "th ree", "a\x00", "six", "seven", "\frac{8}{1}", "\\frac{8}{1}"]
    answers = ["1", "2", "2", "2", "3", "4", "5", " ", None, "8", "8"]
    pairs = enumerate(zip(problems, answers, strict=True))
    rows = [{"id": str(i), "problem": problem, "answer": answer} for i, (problem, answer) in pairs]
    kept, report = clean(rows, name="x", drop=True, english=True, distinct=True)
    assert [row["id"] for row in kept] == ["0", "2", "9"] and kept[0] is rows[0]
    assert kept[2]["problem"] == "\\frac{8}{1}"
    assert (report.rows, report.kept, report.repaired) == (11, 3, 1)
    assert list(report.dropped.values()) == [["1"], ["6"], ["7", "8"], ["3", "10"], ["4", "5"]]
    assert str(report).startswith("x: 3 of 11 rows; dropped 1 Chinese (1), 1 with damaged LaTeX (6), 2 without a gold")
    whole, report = clean(rows, name="x", drop=False)
    assert len(whole) == 11 and report.repaired == 1


# rows, distinct problems, eaten fractions, rows with conflicting golds, then of the English rows: Chinese rows dropped,
# kept, repaired, duplicates, damaged, conflicting, repaired fractions
DAPO_COUNTS = {
    "whole": (17917, 16921, 606, 30, 3432, 13774, 633, 675, 8, 28, 604),
    "extract": (94, 81, 15, 8, 8, 67, 21, 9, 4, 6, 15),
}


@whole_is_slow
def test_dapo_has_the_published_counts_and_no_damage(data_folder):
    rows = data_folder.rows("dapo_math_17k")
    _, everything = clean(rows, name="dapo", drop=False, distinct=True)
    kept, report = clean(rows, name="dapo", drop=True, english=True, distinct=True)
    raw = {row["id"]: row["problem"] for row in rows}
    changed = [row for row in kept if row["problem"] != raw[row["id"]]]
    fractions = [row for row in changed if row["problem"] == raw[row["id"]].replace("\frac{", "\\frac{")]
    assert report.repaired == len(changed)
    assert DAPO_COUNTS["whole" if data_folder.whole else "extract"] == (
        len(rows),
        len({without_spaces(row["problem"]) for row in rows}),
        sum("\frac{" in row["problem"] for row in rows),
        len(everything.dropped["with conflicting golds"]),
        len(report.dropped["Chinese"]),
        report.kept,
        report.repaired,
        *(len(report.dropped[why]) for why in ("duplicates", "with damaged LaTeX", "with conflicting golds")),
        len(fractions),
    )
    signs = [chr(c) for c in range(160) if (c < 32 or c > 126) and chr(c) not in "\n\t"]
    for row in kept:
        assert not any(sign in row["problem"] for sign in signs) and not is_damaged(row["problem"])
        assert row["problem"] == raw[row["id"]] or is_damaged(raw[row["id"]])
    golds: dict[str, set] = {}
    for row in kept:
        golds.setdefault(without_spaces(row["problem"]), set()).add(row["answer"])
    assert len(golds) == len(kept) and all(len(gold) == 1 for gold in golds.values())


@pytest.mark.parametrize(("one", "other", "same"), CASES["normalised_text"])
def test_normalised_text(one, other, same):
    assert (normalise(one) == normalise(other)) is same


def test_overlap_is_equality_or_a_long_opening():
    long = "Find the number of positive integers below one thousand that are odd."
    problems = ["What is $1+1$", long + " Please provide the value of m + n.", "What is $1+1$? And why?", "Find the"]
    assert find_overlap(problems, {"a": ["what is 1 + 1?", long], "b": [long]}) == {"a": [0, 1]}
    assert find_overlap(problems, {"a": []}) == {}


@whole_is_slow
def test_overlap_of_dapo_by_brute_force(data_folder, caplog):
    rows = clean(data_folder.rows("dapo_math_17k"), name="d", drop=True, english=True, distinct=True)[0]
    raw = data_folder.rows("dapo_math_17k")
    spaced = {" ".join(row["problem"].split()) for row in data_folder.rows("math500")}
    assert sum(" ".join(row["problem"].split()) in spaced for row in raw) == 4
    keys = [normalise(row["problem"]) for row in rows]
    expected, seen = {}, set()
    for name in ("math500", "olympiadbench"):
        evaluation = [normalise(repair_latex(r["problem"])) for r in data_folder.rows(name)]
        hits = [i for i, k in enumerate(keys) if any(k == e or (len(e) >= 40 and k.startswith(e)) for e in evaluation)]
        expected[name] = [rows[i]["id"] for i in hits if i not in seen]
        seen |= set(hits)
    olympiad = 34 if data_folder.whole else 8
    assert {name: len(ids) for name, ids in expected.items()} == {"math500": 9, "olympiadbench": olympiad}
    with caplog.at_level(logging.WARNING):
        data = load_prompts("dapo_math_14k", data_dir=str(data_folder.path), decontaminate=("math500", "olympiadbench"))
    assert set(data["id"]) == {row["id"] for row in rows} - set(itertools.chain(*expected.values()))
    assert f"9 that are in math500 ({', '.join(expected['math500'][:5])}, …)" in caplog.text
    assert f"{olympiad} that are in olympiadbench" in caplog.text
