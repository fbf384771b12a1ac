"""Sets by name: how rows are read, cleaned, freed of evaluation problems, and turned into prompts."""

import itertools
import json
import logging
import sys

import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from trl_credit.data import DataArguments, load_from_arguments, load_prompts, prompt_tokens
from trl_credit.data import files as data_files
from trl_credit.data import sets as data_sets
from trl_credit.data.cleaning import (
    clean,
    find_overlap,
    is_damaged,
    normalise,
    repair_latex,
    strip_dapo_wrapper,
    without_spaces,
)
from trl_credit.data.sets import PROMPT_STYLES, SETS, PromptStyle, to_prompt
from trl_credit.demo import demo_model_path
from trl_credit.evaluation.problems import load_problems
from trl_credit.rewards import check_answers
from trl_credit.rewards import reasoning_gym as reasoning_gym_tasks
from trl_credit.rewards.reasoning_gym import reasoning_gym_reward


CHAT = (
    "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ';' }}{% endfor %}"
    "{% if add_generation_prompt %}a={% endif %}"
)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


DAPO_TEXT = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is $1+1$?\n\nRemember to put your "
    'answer on its own line after "Answer:".'
)


@pytest.mark.parametrize(
    ("reader", "row", "expected"),
    [
        ("gsm8k", {"question": "q", "answer": "1+1 = <<1+1=2>>2\n#### 2"}, {"answer": "2"}),
        ("gsm8k", {"problem": "q", "answer": "1,234", "solution": "#### 5"}, {"answer": "1,234"}),
        (
            "math",
            {"problem": "q", "solution": "so $\\boxed{\\frac{1}{2}}$", "level": "Level 5", "type": "Algebra"},
            {"answer": "\\frac{1}{2}", "level": 5},
        ),
        ("math", {"problem": "q", "solution": "no box", "level": "Level ?"}, {"answer": "", "level": None}),
        ("math", {"problem": "q", "answer": "", "solution": "\\boxed{0}"}, {"answer": "", "level": None}),
        ("math", {"problem": "q", "answer": "p - q", "level": 2}, {"answer": "p - q", "level": 2}),
        ("problem", {"question": "q", "answer": 27.0, "url": "u"}, {"answer": "27.0"}),
        ("olympiadbench", {"question": "q", "final_answer": ["2", "$x$"]}, {"answer": "2, $x$"}),
        ("olympiadbench", {"problem": "q", "answer": "2"}, {"answer": "2"}),
        (
            "dapo",
            {
                "prompt": [{"content": DAPO_TEXT.replace("What is $1+1$?", "q"), "role": "user"}],
                "reward_model": {"ground_truth": "34", "style": "rule"},
            },
            {"answer": "34"},
        ),
        ("dapo", {"prompt": "q", "solution": "34"}, {"answer": "34"}),
        (
            "orz",
            {"0": {"from": "human", "value": " q\n"}, "1": {"from": "assistant", "ground_truth": {"value": "7"}}},
            {"answer": "7"},
        ),
        ("orz", {"conversations": [{"value": "q"}, {"ground_truth": {"value": "7"}}]}, {"answer": "7"}),
        (
            "knights_and_knaves",
            {
                "quiz": "q",
                "names": ["Zoey", "Ada"],
                "solution": [True, False],
                "solution_text": "Zoey is a knight, and Ada is a knave.",
                "solution_text_format": "(1) Zoey is a knight\n(2) Ada is a knave",
            },
            {
                "answer": "(1) Zoey is a knight\n(2) Ada is a knave",
                "names": ["Zoey", "Ada"],
                "truth": [True, False],
            },
        ),
        (
            "knights_and_knaves",
            {"problem": "q", "answer": "a", "names": ["Z"], "truth": [False], "solution": "Let's think"},
            {"answer": "a", "names": ["Z"], "truth": [False]},
        ),
    ],
)
def test_rows_of_the_repositories_and_of_files(reader, row, expected):
    assert vars(data_sets)[f"read_{reader}"](row) == {"problem": "q", **expected}


def test_the_pins_are_whole_commits_and_all_names_of_the_issue_are_there():
    names = (
        "gsm8k math math500 aime24 aime25 amc23 amc83 minerva olympiadbench beyond_aime dapo_math_14k orz57k math12k"
    )
    assert set(SETS) == {*names.split(), "math12k", "knights_and_knaves_3ppl"}
    pins = [known.revision for known in SETS.values() if known.revision is not None]
    assert len(pins) == 7 and all(len(pin) == 40 and set(pin) <= set("0123456789abcdef") for pin in pins)


@pytest.mark.parametrize(
    ("damaged", "whole"),
    [
        ("\frac{m}{n}", "\\frac{m}{n}"),
        ("$m^2=\f\\frac{p}{q}$", "$m^2=\\frac{p}{q}$"),
        ("rac{m}{n} and frac{1}{2}", "\\frac{m}{n} and \\frac{1}{2}"),
        ("$2 \\ sqrt {3}$", "$2 \\sqrt {3}$"),
        ("circle of $\triangle DEF$", "circle of $\\triangle DEF$"),
        ("$2 \times 3$ \textbf{(C)} $\theta$", "$2 \\times 3$ \\textbf{(C)} $\\theta$"),
        ("\begin{array} \binom{n}{k} $=\beta$", "\\begin{array} \\binom{n}{k} $=\\beta$"),
        ("\\left( x \right)", "\\left( x \\right)"),
        ("$\nabla f \neq 0$", "$\\nabla f \\neq 0$"),
        ("\vec{v} \alpha", "\\vec{v} \\alpha"),
        ("$2 imes 3 heta$", "$2 \\times 3 \\theta$"),
        (
            "the other fi\fve, the \ffigure, de\fne, \fnd, satis\fes",
            "the other five, the figure, define, find, satisfies",
        ),
        ("a di\vfference", "a difference"),
    ],
)
def test_what_escapes_ate_comes_back(damaged, whole):
    assert repair_latex(damaged) == whole and is_damaged(damaged) and not is_damaged(whole)


@pytest.mark.parametrize(
    "text",
    [
        "\\frac{1}{2} \\times \\dfrac34 \\sqrt{2} \\theta \\\\frac{1}{2}",
        "for (i = 0; i < 4; ++i) {\n\tdraw((i,0)--(i,1));\n\treturn 2*sqrt(3);\r\n}\n",
        "\tan apple\ntan eel\neq = 3\nmid[i] = 1; real frac; int angle;",
        'enter "sqrt{14}" or "sqrt(14)"',
        "若 $x$ <script>alert('é')</script> | **b** | 😀",
    ],
)
def test_text_that_is_whole_stays(text):
    assert repair_latex(text) == text and not is_damaged(text)


@pytest.mark.parametrize("text", ["a\x00b", "$y \x14\\le 2x$", "$| \fx^2 |$", "\f \f", "\x88", "\x7f"])
def test_what_cannot_be_repaired_is_damaged(text):
    assert is_damaged(repair_latex(text))


def test_clean_drops_and_counts_and_keeps_the_order():
    rows = [
        {"id": str(i), "problem": problem, "answer": answer}
        for i, (problem, answer) in enumerate(
            [
                ("one", "1"),
                ("两", "2"),
                ("t wo\n", "2"),
                ("two", "2"),
                ("three", "3"),
                ("th ree", "4"),
                ("a\x00", "5"),
                ("six", " "),
                ("seven", None),
                ("\frac{8}{1}", "8"),
                ("\\frac{8}{1}", "8"),
            ]
        )
    ]
    kept, report = clean(rows, name="x", drop=True, english=True, distinct=True)
    assert (
        [row["id"] for row in kept] == ["0", "2", "9"] and kept[0] is rows[0] and kept[2]["problem"] == "\\frac{8}{1}"
    )
    assert (report.rows, report.kept, report.chinese, report.duplicates, report.repaired) == (11, 3, 1, 2, 1)
    assert (report.damaged, report.without_gold, report.conflicting) == (["6"], ["7", "8"], ["4", "5"])
    assert str(report).startswith("x: 3 of 11 rows; dropped 1 Chinese, 1 with damaged LaTeX (6), 2 without a gold")
    whole, report = clean(rows, name="x", drop=False)
    assert len(whole) == 11 and report.still_damaged == ["6"] and report.repaired == 1


def test_wrapper_of_dapo():
    assert strip_dapo_wrapper(DAPO_TEXT) == "What is $1+1$?" == strip_dapo_wrapper("What is $1+1$?")
    assert to_prompt("What is $1+1$?", PROMPT_STYLES["dapo"], conversational=False) == DAPO_TEXT


DAPO_COUNTS = {
    "whole": {
        "rows": 17917,
        "distinct": 16921,
        "eaten fractions": 606,
        "conflicting": 30,  # 15 problems, two rows each
        "Chinese": 3432,
        "kept": 13774,
        "repaired": 633,
        "duplicates": 675,
        "damaged": 8,
        "English conflicting": 28,
        "repaired fractions": 604,
    },
    "extract": {
        "rows": 94,
        "distinct": 81,
        "eaten fractions": 15,
        "conflicting": 8,  # 4 problems
        "Chinese": 8,
        "kept": 67,
        "repaired": 21,
        "duplicates": 9,
        "damaged": 4,
        "English conflicting": 6,
        "repaired fractions": 15,
    },
}


def test_dapo_has_the_published_counts_and_comes_out_whole(data_folder):
    counts = DAPO_COUNTS["whole" if data_folder.whole else "extract"]
    rows = data_folder.rows("dapo_math_17k")
    assert len(rows) == counts["rows"]
    assert len({without_spaces(row["problem"]) for row in rows}) == counts["distinct"]
    assert sum("\frac{" in row["problem"] for row in rows) == counts["eaten fractions"]
    _, everything = clean(rows, name="dapo", drop=False, distinct=True)
    assert len(everything.conflicting) == counts["conflicting"]
    kept, report = clean(rows, name="dapo", drop=True, english=True, distinct=True)
    found = (report.chinese, report.kept, report.repaired, report.duplicates)
    assert found == (counts["Chinese"], counts["kept"], counts["repaired"], counts["duplicates"])
    assert len(report.damaged) == counts["damaged"] and len(report.conflicting) == counts["English conflicting"]
    raw = {row["id"]: row["problem"] for row in rows}
    signs = [chr(c) for c in range(160) if (c < 32 or c > 126) and chr(c) not in "\n\t"]
    for row in kept:
        assert not any(sign in row["problem"] for sign in signs) and not is_damaged(row["problem"])
        assert row["problem"] == raw[row["id"]] or is_damaged(raw[row["id"]])
    changed = [row for row in kept if row["problem"] != raw[row["id"]]]
    fractions = [row for row in changed if row["problem"] == raw[row["id"]].replace("\frac{", "\\frac{")]
    assert len(changed) == counts["repaired"] and len(fractions) == counts["repaired fractions"]
    golds: dict[str, set] = {}
    for row in kept:
        golds.setdefault(without_spaces(row["problem"]), set()).add(row["answer"])
    assert len(golds) == len(kept) and all(len(gold) == 1 for gold in golds.values())


def test_other_sets_hardly_need_repair(data_folder):
    changed = {}
    for name in ("gsm8k_train", "gsm8k_test", "math_train", "math500", "aime24", "aime25", "minerva", "olympiadbench"):
        rows = data_folder.rows(name)
        kept, report = clean(rows, name=name, drop=name == "math_train")
        before = {row["id"]: row["problem"] for row in rows}
        changed[name] = [row["id"] for row in kept if row["problem"] != before[row["id"]]]
        assert report.without_gold == (["math-train-5341", "math-train-5343"] if name == "math_train" else [])
        assert len(kept) == len(rows) - len(report.without_gold)
    assert {name: ids for name, ids in changed.items() if ids} == {
        "math_train": ["math-train-5332"],
        "aime25": ["aime25-18", "aime25-19", "aime25-27"],
    }


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Find $\\dfrac{1}{2}$.", "find \\frac12", True),
        ("$\\left( 3, \\tfrac{\\pi}{2} \\right)$", "(3,\\frac{\\pi}{2})", True),
        ("Is $a\\leq b$, or  \\(a \\neq b\\)?", "is $a \\le b$ or $a\\ne b$", True),
        ("\\text{if } x \\quad y", "if x y", True),
        ("ﬁnd ５", "find 5", True),
        ("$1.5$ or $1,500$", "$15$ or $1500$", False),
        ("$a+b$", "$a-b$", False),
        ("$\\lefty$", "$y$", False),
    ],
)
def test_normalised_text(one, other, same):
    assert (normalise(one) == normalise(other)) is same


def test_overlap_is_equality_or_a_long_opening():
    long = "Find the number of positive integers below one thousand that are odd."
    problems = ["What is $1+1$", long + " Please provide the value of m + n.", "What is $1+1$? And why?", "Find the"]
    assert find_overlap(problems, {"a": ["what is 1 + 1?", long], "b": [long]}) == {"a": [0, 1]}
    assert find_overlap(problems, {"a": []}) == {}


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


@pytest.mark.parametrize("name", ["gsm8k", "math", "dapo_math_14k", "knights_and_knaves_3ppl", "math500", "aime24"])
def test_sets_load_by_name(data_folder, name):
    _loads(data_folder, name)


@pytest.mark.parametrize("name", ["aime25", "amc23", "minerva", "olympiadbench"])
def test_evaluation_sets_load_by_name(data_folder, name):
    assert len(_loads(data_folder, name)) == len(data_folder.rows(name))


def _loads(data_folder, name):
    data = load_prompts(name, data_dir=str(data_folder.path))
    assert {"prompt", "problem", "answer", "id"} <= set(data.column_names) and len(set(data["id"])) == len(data)
    assert all(prompt.startswith(problem) for prompt, problem in zip(data["prompt"], data["problem"], strict=True))
    if SETS[name].mathematical:
        check_answers(data["answer"][:500])
    else:
        assert all(len(who) == len(truth) == 3 for who, truth in zip(data["names"], data["truth"], strict=True))
    if name in ("math", "math500"):
        assert set(data["level"]) <= {1, 2, 3, 4, 5, None} and data["level"].count(None) == 2 * (name == "math")
    return data


def test_two_loads_agree_and_splits_are_told_apart(data_folder):
    folder = str(data_folder.path)
    first, second = (load_prompts("gsm8k", data_dir=folder, split="test") for _ in range(2))
    assert len(first) == (1319 if data_folder.whole else 40) and first.to_list() == second.to_list()
    assert len(load_prompts("gsm8k", data_dir=folder)) == (7473 if data_folder.whole else 40)


ROWS = [{"problem": f"What is ${i}+1$?", "answer": str(i + 1)} for i in range(6)]


def test_every_kind_of_file(tmp_path):
    data = Dataset.from_list(ROWS)
    data.to_json(tmp_path / "a" / "gsm8k.jsonl")
    data.to_parquet(tmp_path / "b" / "gsm8k_train.parquet")
    data.to_csv(tmp_path / "c" / "gsm8k.csv")
    data.save_to_disk(str(tmp_path / "d" / "gsm8k"))
    DatasetDict({"train": data, "test": data.select([5])}).save_to_disk(str(tmp_path / "e" / "gsm8k"))
    (tmp_path / "f").mkdir()
    next((tmp_path / "d" / "gsm8k").glob("*.arrow")).rename(tmp_path / "f" / "gsm8k.arrow")
    (tmp_path / "d" / "gsm8k" / "state.json").unlink()
    for folder in "abcef":
        loaded = load_prompts("gsm8k", data_dir=str(tmp_path / folder), style="plain")
        assert loaded["prompt"] == [row["problem"] for row in ROWS], folder
        assert loaded["id"] == [f"gsm8k-{i}" for i in range(6)] and loaded["answer"] == [r["answer"] for r in ROWS]
    assert load_prompts("gsm8k", data_dir=str(tmp_path / "e"), split="test")["answer"] == ["6"]
    assert len(load_prompts(str(tmp_path / "f" / "gsm8k.arrow"))) == 6
    with pytest.raises(ValueError, match="not a folder of save_to_disk"):
        load_prompts("gsm8k", data_dir=str(tmp_path / "d"))


def test_own_files_keep_their_columns(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "<b>\x00\u2028</b>"}], "problem": "p", "target": 3, "level": "x"}]
    data = load_prompts(str(write(tmp_path / "own.jsonl", rows)), conversational=True, style="open_r1")
    assert data.to_list() == [{**rows[0], "answer": "3", "id": "own-0"}]


def test_what_the_hub_is_asked_for(monkeypatch, caplog):
    asked = []

    def load_dataset(repo, config, *, split, revision):
        asked.append((repo, config, split, revision))
        return Dataset.from_list([{"problem": f"{row['problem']} ({repo})", "answer": "1"} for row in ROWS])

    monkeypatch.setattr(data_files, "load_dataset", load_dataset)
    load_prompts("gsm8k", split="test")
    load_prompts("aime24", revision="a" * 40)
    assert "not pinned" not in caplog.text
    assert len(load_prompts("math12k", decontaminate=("amc23", "aime24"), revision="b" * 40)) == len(ROWS)
    assert "amc23 (math-ai/amc23) is not pinned: set --dataset_revision" in caplog.text
    assert caplog.text.count("not pinned") == 1
    load_prompts("own/set", config="c", split="dev", revision="v1")
    gsm8k, aime24 = SETS["gsm8k"].revision, SETS["aime24"].revision
    assert asked == [
        ("openai/gsm8k", "main", "test", gsm8k),
        ("HuggingFaceH4/aime_2024", None, "train", "a" * 40),
        ("hiyouga/math12k", None, "train", "b" * 40),
        ("math-ai/amc23", None, "test", None),
        ("HuggingFaceH4/aime_2024", None, "train", aime24),
        ("own/set", "c", "dev", "v1"),
    ]


def test_the_hub_holds_dapo_many_times(monkeypatch):
    once = [
        {
            "prompt": [{"content": DAPO_TEXT.replace("1+1", f"{i}+1"), "role": "user"}],
            "reward_model": {"ground_truth": str(i)},
            "extra_info": {"index": f"u{i}"},
        }
        for i in range(4)
    ]
    monkeypatch.setattr(data_files, "load_dataset", lambda *args, **kwargs: Dataset.from_list(once * 3))
    data = load_prompts("dapo_math_14k", style="plain")
    assert data["prompt"] == [f"What is ${i}+1$?" for i in range(4)] and data["answer"] == list("0123")


def test_without_network_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConnectionError, match="--data_dir to a folder with one of dapo_math_14k.jsonl, .*dapo_math_17k"
    ):
        load_prompts("dapo_math_14k")


@pytest.mark.parametrize("style", PROMPT_STYLES)
def test_prompts_of_every_style(style):
    problem = "Is {x} = \\frac{1}{2}? {problem} <b>"
    known = PROMPT_STYLES[style]
    user = known.template.split("{problem}")[0] + problem + known.template.split("{problem}")[1]
    messages = to_prompt(problem, known, conversational=True)
    assert messages[-1] == {"role": "user", "content": user}
    assert [m["role"] for m in messages] == (["user"] if known.system is None else ["system", "user"])
    text = to_prompt(problem, known, conversational=False)
    assert text == (user if known.system is None else f"{known.system}\n\n{user}")


def test_prompts_follow_the_tokenizer_and_the_style(tmp_path):
    write(tmp_path / "gsm8k.jsonl", ROWS)
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    tokenizer.chat_template = CHAT

    def first(**flags):
        arguments = DataArguments(dataset_name="gsm8k", data_dir=str(tmp_path), **flags)
        return load_from_arguments(arguments, tokenizer=tokenizer, seed=0)[0]["prompt"]

    boxed = "What is $0+1$?\nReason step by step, and put your final answer within \\boxed{}."
    assert first() == [{"role": "user", "content": boxed}]
    assert first(prompt_style="math_task") == "[MATH_TASK] Problem:\nWhat is $0+1$?\n\nSolution:"
    assert first(prompt_style="Q: {problem}")[0]["content"] == "Q: What is $0+1$?"
    assert first(prompt_style="text") == "What is $0+1$?"
    assert first(prompt_style="text:boxed") == boxed
    assert first(prompt_style="text:Q: {problem} text:") == "Q: What is $0+1$? text:"
    with pytest.raises(ValueError, match="unknown --prompt_style 'boxd'"):
        first(prompt_style="text:boxd")
    tokenizer.chat_template = None
    assert first() == boxed


def test_evaluation_keeps_the_text_plain_as_well(tmp_path):
    path = str(write(tmp_path / "sums.jsonl", [{"problem": "1+2", "answer": "3"}]))
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    tokenizer.chat_template = CHAT
    found = {style: load_problems(path, tokenizer, style=style)[0] for style in ("text", "text:{problem}=", "plain")}
    assert found["text"].prompt_ids == tokenizer("1+2")["input_ids"]
    assert found["text:{problem}="].prompt_ids == tokenizer("1+2=")["input_ids"]
    assert found["plain"].prompt_ids == tokenizer("user:1+2;a=", add_special_tokens=False)["input_ids"]


def test_messages_are_refused_by_a_style_of_plain_text(tmp_path):
    path = str(write(tmp_path / "chat.jsonl", [{"prompt": [{"role": "user", "content": "1+2"}], "answer": "3"}]))
    assert load_prompts(path, conversational=True)["prompt"] == [[{"role": "user", "content": "1+2"}]]
    for style in ("text", "text:boxed", "math_task"):
        with pytest.raises(ValueError, match="holds messages in its column 'prompt'.* --prompt_style is plain text"):
            load_prompts(path, style=style)


@pytest.mark.parametrize("conversational", [True, False])
def test_length_filter_by_brute_force(tmp_path, conversational):
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    tokenizer.chat_template = CHAT
    rows = [{"problem": "+".join("1" * n), "answer": str(n)} for n in range(1, 30)]
    path = str(write(tmp_path / "sums.jsonl", rows))

    def tokens(problem):
        text = f"system:2+2;user:{problem};a=" if conversational else f"2+2\n\n{problem}"
        return len(tokenizer(text, add_special_tokens=not conversational)["input_ids"])

    limit = sorted(tokens(row["problem"]) for row in rows)[10]
    kept = [row["answer"] for row in rows if tokens(row["problem"]) <= limit]
    style = PromptStyle(system="2+2")
    data = load_prompts(path, conversational=conversational, style=style, tokenizer=tokenizer, max_prompt_tokens=limit)
    assert data["answer"] == kept and 0 < len(kept) < len(rows)
    assert max(prompt_tokens(prompt, tokenizer) for prompt in data["prompt"]) == limit
    with pytest.raises(ValueError, match="no row .* is left .*29 with too long a prompt.*--max_prompt_tokens"):
        load_prompts(path, tokenizer=tokenizer, max_prompt_tokens=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "gsm8k", "style": "boxd"}, "unknown --prompt_style 'boxd': choose one of boxed, plain"),
        ({"name": "gsm8k", "split": "dev"}, "no split 'dev': set --dataset_split to train or test"),
        ({"name": "math500"}, "no 'math500' in .*needs one of math500, math500_test as .jsonl"),
        ({"name": "gsm8k", "data_dir": "nowhere"}, "no folder 'nowhere': check --data_dir"),
        ({"name": "gsm8k", "revision": "x"}, "leave it or --data_dir out"),
        ({"name": "gsm8k", "config": "main"}, "leave out --dataset_config"),
        ({"name": "gsm8k", "prompt_column": "q"}, "leave out --prompt_column"),
        ({"name": "gsm8k", "max_prompt_tokens": 3}, "needs a tokenizer"),
        ({"name": "gsm8k", "decontaminate": ("math50",)}, "'math50' is no evaluation set: .*all, .*math500"),
        ({"name": "gsm8k", "decontaminate": ("orz57k",)}, "'orz57k' is no evaluation set"),
        ({"name": "aime24", "decontaminate": ("all",)}, "'aime24' cannot be free of itself"),
        ({"name": "gsm8k", "decontaminate": ("amc23",)}, "no 'amc23' in"),
        ({"name": "minerva"}, "more than once, keep one of minerva.jsonl, minerva.csv"),
        ({"name": "math"}, "math.jsonl' is not the set 'math': line 1: there is no column .*, but q"),
        ({"name": "olympiadbench"}, "olympiadbench.jsonl' has no rows"),
        ({"name": "gsm8k.jsonl"}, "no file 'gsm8k.jsonl'"),
        ({"name": "own.jsonl", "revision": "x"}, "is a file: leave out --dataset_revision"),
        ({"name": "own.jsonl", "split": "test"}, "is a file: leave out"),
        ({"name": "own.jsonl", "prompt_column": "p"}, "set --prompt_column to one of problem, answer"),
    ],
    ids=str,
)
def test_wrong_input(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    for name in ("sets/gsm8k.jsonl", "sets/aime24.jsonl", "sets/minerva.jsonl", "sets/minerva.csv", "own.jsonl"):
        write(tmp_path / name, ROWS)
    write(tmp_path / "sets" / "math.jsonl", [{"q": 1}])
    write(tmp_path / "sets" / "olympiadbench.jsonl", [])
    with pytest.raises(ValueError, match=message):
        load_prompts(**{"data_dir": "sets", **arguments})


@pytest.fixture
def gym():
    return pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")


def test_procedural_tasks_are_seeded_and_score_their_own_answers(gym):
    data = load_prompts("reasoning_gym:chain_sum", config="{size: 20, min_terms: 3}", seed=5)
    again = load_prompts("reasoning_gym:chain_sum", config={"min_terms": 3, "size": 20, "seed": 5})
    other = load_prompts("reasoning_gym:chain_sum", config={"min_terms": 3, "size": 20}, seed=6)
    assert data["prompt"] == again["prompt"] != other["prompt"] and len(data) == 20
    assert {"prompt", "answer", "id", "entry"} <= set(data.column_names)
    for prompt, answer in zip(data["problem"], data["answer"], strict=True):
        assert eval(prompt.split(":")[1].strip(" =")) == int(answer)
    boxed = [f"<think>\\boxed{{0}}</think> so \\boxed{{{answer}}}" for answer in data["answer"]]
    tagged = [[{"role": "assistant", "content": f"<answer>{answer}</answer>"}] for answer in data["answer"]]
    wrong = [f"\\boxed{{{int(answer) + 1}}}" for answer in data["answer"]]
    for completions, score in ((boxed, 1.0), (tagged, 1.0), (wrong, 0.0)):
        assert reasoning_gym_reward(completions=completions, entry=data["entry"], prompts=None) == [score] * 20


def test_any_response_to_a_procedural_task_has_a_score(gym):
    responses = ["", "7", "\\boxed{}", "<answer>", "<answer></answer>", "<answer>\x00<b></answer>", "<answer>" * 10**5]
    responses += [f"<answer>{'9' * 10**6}</answer>", "<answer>[[[</answer>", "<think><answer>1</answer>", "\\boxed{(}"]
    for task in ("chain_sum", "countdown", "sudoku", "polynomial_equations", "rubiks_cube", "knights_knaves"):
        entry = load_prompts(f"reasoning_gym:{task}", config={"size": 1})[0]["entry"]
        scores = reasoning_gym_reward([*responses, [], [{"role": "assistant"}]], [entry] * (len(responses) + 2))
        assert all(0 <= score < 1 for score in scores), task


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("reasoning_gym:chain_sums", None, "no task 'chain_sums': choose one of"),
        ("reasoning_gym:chain_sum", "{terms: 3}", "--dataset_config does not fit the task 'chain_sum'"),
        ("reasoning_gym:chain_sum", "{min_terms: -1}", "--dataset_config does not fit the task 'chain_sum'"),
        ("reasoning_gym:chain_sum", "main", "must be like '{size: 1000}'"),
        ("reasoning_gym:chain_sum", "{size", "cannot be read as YAML"),
    ],
)
def test_wrong_tasks(gym, name, config, message):
    with pytest.raises(ValueError, match=message):
        load_prompts(name, config=config)


def test_without_reasoning_gym_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    reasoning_gym_tasks._task.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'trl-credit\[reasoning-gym\]'"):
        load_prompts("reasoning_gym:chain_sum")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
DECIMALS = st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@settings(max_examples=120, deadline=None)
@given(
    rows=st.lists(st.tuples(TEXTS, st.one_of(TEXTS, st.integers(), DECIMALS.map(lambda text: (text,)))), min_size=1),
    form=st.sampled_from([".jsonl", ".json", "indented.json"]),
    ascii_only=st.booleans(),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_any_rows_come_back_as_they_were_written(tmp_path_factory, rows, form, ascii_only, end):
    """Prompts are any text; answers any text, integer or decimal."""
    literals = [
        (
            json.dumps(prompt, ensure_ascii=ascii_only),
            answer[0] if isinstance(answer, tuple) else json.dumps(answer, ensure_ascii=ascii_only),
        )
        for prompt, answer in rows
    ]
    lines = [f'{{"prompt": {prompt}, "answer": {answer}}}' for prompt, answer in literals]
    text = end.join(lines) if form == ".jsonl" else "[" + f",{end}".join(lines) + "]"
    if form == "indented.json":
        text = text.replace("{", "{" + end, 1)
    path = tmp_path_factory.mktemp("any") / f"rows{form}"
    path.write_bytes(text.encode())
    data = load_prompts(str(path), style="plain")
    assert data["prompt"][:] == [prompt for prompt, _ in rows]
    assert data["answer"][:] == [answer[0] if isinstance(answer, tuple) else str(answer) for _, answer in rows]


def test_text_of_a_csv_file_stays_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("problem,answer,level\np1,12345678901234567,1\np2,None,\np3,007,2\n")
    assert load_prompts(str(path))["answer"] == ["12345678901234567", "None", "007"]


def test_answers_that_are_lists_become_one_answer(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"problem": "p", "answer": ["1", "2"]}\n')
    assert load_prompts(str(path))["answer"] == ["1, 2"]


def test_a_column_of_numbers_is_one_and_others_are_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"prompt": "x", "target": 0.10, "n": 9007199254740993, "share": 1}\n{"prompt": "y", "share": 0.5}\n'
    )
    data = load_prompts(str(path), style="plain")
    assert data["answer"][:] == ["0.10", None] and data["target"][:] == [0.1, None]
    assert data["n"][:] == [9007199254740993, None] and data["share"][:] == [1.0, 0.5]
    path.write_text('{"prompt": "x", "target": 12345678901234567890.5, "unique_id": 12345678901234567890}\n')
    data = load_prompts(str(path), style="plain")  # what the package reads as text need not fit
    assert data.to_list() == [
        {"prompt": "x", "answer": "12345678901234567890.5", "id": "a-12345678901234567890"}
        | {"target": "12345678901234567890.5", "unique_id": "12345678901234567890"}
    ]


def test_known_sets_keep_the_digits_of_their_numbers(tmp_path):
    literals = ["27.0", "9007199254740993", "0.10"]
    rows = (f'{{"problem": "x", "answer": {literal}}}' for literal in literals)
    (tmp_path / "amc23.jsonl").write_text("\n".join(rows))
    assert load_prompts("amc23", data_dir=str(tmp_path))["answer"][:] == literals


def test_pairs_of_turns_in_one_json_list(tmp_path):
    pairs = [
        [{"from": "human", "value": f" q{i}"}, {"from": "assistant", "ground_truth": {"value": i}}] for i in (1, 2)
    ]
    (tmp_path / "orz_math_57k_collection.json").write_text(json.dumps(pairs, indent=1))
    data = load_prompts("orz57k", data_dir=str(tmp_path), style="plain")
    assert data["prompt"][:] == ["q1", "q2"] and data["answer"][:] == ["1", "2"]


def test_ids_do_not_depend_on_what_is_dropped(tmp_path):
    problems = ["What is $1+1$?", "Find the sum of all odd numbers.", "What is $2+2$?"]
    write(tmp_path / "own.jsonl", [{"problem": problem, "answer": "1"} for problem in problems])
    write(tmp_path / "amc23.jsonl", [{"problem": problems[1], "answer": "1"}])
    data = load_prompts(str(tmp_path / "own.jsonl"), data_dir=str(tmp_path), decontaminate=("amc23",))
    assert data["id"][:] == ["own-0", "own-2"]


def test_data_without_answers_has_no_answer_column(tmp_path):
    data = load_prompts(str(write(tmp_path / "own.jsonl", [{"problem": "x", "level": 1}])), style="plain")
    assert data.to_list() == [{"problem": "x", "level": 1, "prompt": "x", "id": "own-0"}]
