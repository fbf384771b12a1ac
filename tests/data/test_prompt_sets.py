"""Sets by name, files in every format, cleaning: which rows are loaded, how they are read, and which become prompts."""

import itertools
import json
import logging
from functools import partial

import pytest
from data_helpers import CASES, DAPO_TEXT, ROWS, whole_is_slow, write
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st
from passes_helpers import with_slow
from transformers import AutoTokenizer

from trl_credit.data import PROMPT_STYLES, SETS, DataArguments, PromptStyle, load_from_arguments, load_prompts, sets
from trl_credit.data.cleaning import clean, find_overlap, is_damaged, normalise, repair_latex, without_spaces
from trl_credit.data.prompts import prompt_ids
from trl_credit.demo import demo_model_path
from trl_credit.rewards import check_answers


CHAT = (
    "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ';' }}{% endfor %}"
    "{% if add_generation_prompt %}a={% endif %}"
)


@pytest.mark.parametrize(("reader", "row", "expected"), CASES["rows_of_sets"])
def test_rows_of_the_repositories_and_of_files(reader, row, expected):
    assert vars(sets)[f"read_{reader}"](row) == {"problem": "q", **expected}


TRAINING = ["gsm8k", "math", "dapo_math_14k", "knights_and_knaves_3ppl"]
EVALUATION = ["math500", "aime24", "aime25", "amc23", "minerva", "olympiadbench"]


@whole_is_slow
@pytest.mark.parametrize("name", with_slow([*TRAINING, *EVALUATION], "minerva", "olympiadbench"))
def test_sets_load_by_name(data_folder, name):
    data = load_prompts(name, data_dir=str(data_folder.path))
    assert {"prompt", "problem", "answer", "id"} <= set(data.column_names) and len(set(data["id"])) == len(data)
    assert all(prompt.startswith(problem) for prompt, problem in zip(data["prompt"], data["problem"], strict=True))
    assert name not in EVALUATION or len(data) == len(data_folder.rows(name))
    if name != "knights_and_knaves_3ppl":
        check_answers(data["answer"][:500])
    else:
        assert all(len(who) == len(truth) == 3 for who, truth in zip(data["names"], data["truth"], strict=True))
    if name in ("math", "math500"):
        assert set(data["level"]) <= {1, 2, 3, 4, 5, None} and data["level"].count(None) == 2 * (name == "math")


def test_what_the_hub_is_asked_for(monkeypatch, caplog):
    calls = []

    def load_dataset(repo, config, *, split, revision):
        calls.append((repo, config, split, revision))
        return Dataset.from_list([{"problem": f"{row['problem']} ({repo})", "answer": "1"} for row in ROWS])

    monkeypatch.setattr("trl_credit.data.sources.load_dataset", load_dataset)
    load_prompts("gsm8k", split="test")
    load_prompts("aime24", revision="a" * 40)
    assert "not pinned" not in caplog.text
    assert len(load_prompts("math12k", decontaminate=("amc23", "aime24"), revision="b" * 40)) == len(ROWS)
    assert "amc23 (math-ai/amc23) is not pinned: set --dataset_revision" in caplog.text
    assert caplog.text.count("not pinned") == 1
    load_prompts("own/set", config="c", split="dev", revision="v1")
    gsm8k, aime24 = SETS["gsm8k"].revision, SETS["aime24"].revision
    assert calls == [
        ("openai/gsm8k", "main", "test", gsm8k),
        ("HuggingFaceH4/aime_2024", None, "train", "a" * 40),
        ("hiyouga/math12k", None, "train", "b" * 40),
        ("math-ai/amc23", None, "test", None),
        ("HuggingFaceH4/aime_2024", None, "train", aime24),
        ("own/set", "c", "dev", "v1"),
    ]


def test_the_hub_holds_dapo_many_times(monkeypatch):
    once = []
    for i in range(4):
        prompt = [{"content": DAPO_TEXT.replace("1+1", f"{i}+1"), "role": "user"}]
        row = {"reward_model": {"ground_truth": str(i)}, "extra_info": {"index": f"u{i}"}}
        once.append({"prompt": prompt, **row})
    monkeypatch.setattr("trl_credit.data.sources.load_dataset", lambda *args, **kwargs: Dataset.from_list(once * 3))
    data = load_prompts("dapo_math_14k", style="plain")
    assert data["prompt"] == [f"What is ${i}+1$?" for i in range(4)] and data["answer"] == list("0123")


def test_without_network_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    message = "--data_dir to a folder with dapo_math_14k or .*dapo_math_17k"
    with pytest.raises(ConnectionError, match=message):
        load_prompts("dapo_math_14k")


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
    assert all(style.template.count("{problem}") == 1 for style in PROMPT_STYLES.values())


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
    assert max(len(prompt_ids(tokenizer, prompt)) for prompt in data["prompt"]) == limit
    with pytest.raises(ValueError, match="no row .* is left .*29 with too long a prompt.*--max_prompt_tokens"):
        load_prompts(path, tokenizer=tokenizer, max_prompt_tokens=1)


@pytest.mark.parametrize(("arguments", "named"), CASES["wrong_arguments"], ids=str)
def test_wrong_input(here, arguments, named):
    for name in ("sets/gsm8k.jsonl", "sets/aime24.jsonl", "sets/minerva.jsonl", "sets/minerva.csv", "own.jsonl"):
        write(here / name, ROWS)
    write(here / "sets" / "olympiadbench.jsonl", [])
    with pytest.raises(ValueError, match=f"^.*{named}.*$"):
        load_prompts(**{"data_dir": "sets", **arguments})


# Files are read as they were written


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


DECIMALS = st.from_regex(r"-?[1-9][0-9]{0,40}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(TEXTS, st.one_of(TEXTS, st.integers(), DECIMALS.map(lambda text: (text,)))), min_size=1),
    form=st.sampled_from([".jsonl", ".json", "indented.json"]),
    ascii_only=st.booleans(),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_any_rows_come_back_as_they_were_written(tmp_path_factory, rows, form, ascii_only, end):
    """Prompts are any text; answers any text, integer or decimal."""
    dump = partial(json.dumps, ensure_ascii=ascii_only)
    answers = [answer[0] if isinstance(answer, tuple) else dump(answer) for _, answer in rows]
    pairs = zip(rows, answers, strict=True)
    lines = [f'{{"prompt": {dump(prompt)}, "answer": {answer}}}' for (prompt, _), answer in pairs]
    text = end.join(lines) if form == ".jsonl" else "[" + f",{end}".join(lines) + "]"
    if form == "indented.json":
        text = text.replace("{", "{" + end, 1)
    path = tmp_path_factory.mktemp("any") / f"rows{form}"
    path.write_bytes(text.encode())
    data = load_prompts(str(path), style="plain")
    assert data["prompt"][:] == [prompt for prompt, _ in rows]
    assert data["answer"][:] == [answer[0] if isinstance(answer, tuple) else str(answer) for _, answer in rows]


def test_a_column_of_numbers_is_one_and_others_are_text(tmp_path):
    path = tmp_path / "a.jsonl"
    text = '{"prompt": "x", "target": 0.10, "n": 9007199254740993, "share": 1}\n{"prompt": "y", "share": 0.5}\n'
    path.write_text(text)
    data = load_prompts(str(path), style="plain")
    assert data["answer"][:] == ["0.1", None] and data["target"][:] == [0.1, None]
    assert data["n"][:] == [9007199254740993, None] and data["share"][:] == [1.0, 0.5]
    path.write_text('{"prompt": "x", "answer": 12345678901234567890.5, "unique_id": 12345678901234567890}\n')
    data = load_prompts(str(path), style="plain")  # what the package reads as text need not fit
    assert data["answer"][:] == ["12345678901234567890.5"] and data["id"][:] == ["a-12345678901234567890"]


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


def test_every_kind_of_file(tmp_path):
    data = Dataset.from_list(ROWS)
    data.to_json(tmp_path / "a" / "gsm8k.jsonl")
    data.to_parquet(tmp_path / "b" / "gsm8k_train.parquet")
    data.to_csv(tmp_path / "c" / "gsm8k.csv")
    data.save_to_disk(str(tmp_path / "d" / "gsm8k"))
    DatasetDict({"train": data, "test": data.select([5])}).save_to_disk(str(tmp_path / "e" / "gsm8k"))
    (tmp_path / "d" / "gsm8k" / "state.json").unlink()
    for folder in "abce":
        loaded = load_prompts("gsm8k", data_dir=str(tmp_path / folder), style="plain")
        assert loaded["prompt"] == [row["problem"] for row in ROWS], folder
        assert loaded["id"] == [f"gsm8k-{i}" for i in range(6)] and loaded["answer"] == [r["answer"] for r in ROWS]
    assert load_prompts("gsm8k", data_dir=str(tmp_path / "e"), split="test")["answer"] == ["6"]
    with pytest.raises(ValueError, match="cannot be read as a folder of save_to_disk"):
        load_prompts("gsm8k", data_dir=str(tmp_path / "d"))


def test_own_files_keep_their_columns(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "<b>\x00\u2028</b>"}], "problem": "p", "target": 3, "level": "x"}]
    data = load_prompts(str(write(tmp_path / "own.jsonl", rows)), conversational=True, style="open_r1")
    assert data.to_list() == [{**rows[0], "answer": "3", "id": "own-0"}]


# Cleaning: damaged LaTeX, copies, conflicting golds, and overlap with evaluation sets


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
