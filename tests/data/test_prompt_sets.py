"""Sets by name, and files in every format: which rows are loaded, how they are read, and how they become prompts."""

import json
from functools import partial

import pytest
from data_helpers import CASES, DAPO_TEXT, ROWS, whole_is_slow, write
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st
from passes_helpers import with_slow
from transformers import AutoTokenizer

from trl_credit.data import PROMPT_STYLES, SETS, DataArguments, PromptStyle, load_from_arguments, load_prompts, sets
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
