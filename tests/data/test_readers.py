"""Data files are read as they were written, in every format."""

import json

import pytest
from data_helpers import ROWS, write
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_credit.data import load_prompts


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


def test_a_column_of_numbers_is_one_and_others_are_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"prompt": "x", "target": 0.10, "n": 9007199254740993, "share": 1}\n{"prompt": "y", "share": 0.5}\n'
    )
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
