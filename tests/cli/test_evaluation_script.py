"""`examples/evaluate.py` as a user runs it, and invalid input."""

import importlib.util
import json
from datetime import date

import pytest
from datasets import Dataset
from evaluation_helpers import SCRIPT


spec = importlib.util.spec_from_file_location("evaluate_script", SCRIPT)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

CUSTOM = ["--protocol", "custom", "--samples", "1", "--temperature", "1", "--max_new_tokens", "9"]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *argv: script.main([*map(str, argv), "--quiet"])


def test_the_script_with_defaults(call, tmp_path, capsys):
    call("--max_problems", 8)
    shown = capsys.readouterr().out
    assert "| embedded model | " in shown and "demo pass@16 (demo)" in shown
    assert {p.name for p in (tmp_path / "evaluation").iterdir()} == {
        "evaluation.json",
        "evaluation.md",
        "evaluation.png",
        "samples",
    }
    assert str(tmp_path) not in (tmp_path / "evaluation" / "evaluation.json").read_text()
    call("--rescore", "--metrics", "pass@1")
    assert "pass@16" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--protocol", "s-trace"], "unknown --protocol 's-trace': did you mean 's_trace'?"),
        (["--protocol", "s_trace", "--sets", "gsm8k"], "has the sets math500, aime24"),
        (["--protocol", "custom"], "--protocol custom needs --samples, --temperature, --max_new_tokens"),
        (["--models", "x"], "--models needs a --protocol"),
        (["--models", "./no_such", "--protocol", "demo"], "no_such"),
        (["--temperature", "-1"], "--temperature must be a number from 0 to 10, got -1.0"),
        (["--temperature", "nan"], "--temperature must be"),
        (["--temperature", "0"], "--temperature 0 gives the same response 16 times"),
        (["--top_p", "0"], "--top_p must be in (0, 1], got 0.0"),
        (["--top_k", "-1"], "--top_k must be 0 (off) or more"),
        (["--samples", "0"], "--samples must be at least 1"),
        (["--samples", "4"], "--metrics pass@16 needs 16 samples"),
        (["--metrics", "pass"], "--metrics 'pass' must be pass@k"),
        (["--max_new_tokens", "0"], "--max_new_tokens must be at least 1"),
        (["--max_context", "9"], "within 9: raise --max_context"),
        (["--max_problems", "0"], "--max_problems must be at least 1"),
        (["--batch_size", "0"], "--batch_size must be at least 1"),
        (["--backend", "sglang"], "unknown --backend 'sglang'"),
        *(
            []
            if importlib.util.find_spec("vllm")
            else [(["--backend", "vllm"], "--backend vllm needs vllm: pip install")]
        ),
        (["--tensor_parallel_size", "2"], "--tensor_parallel_size needs --backend vllm"),
        (["--revision", "main"], "--revision is for models on the Hub"),
        (["--rescore"], "there are no finished samples"),
        (["--sets", "none.jsonl", *CUSTOM], "there is no file 'none.jsonl': check --sets"),
        (["--sets", "nan.jsonl", *CUSTOM], "'nan.jsonl', line 2: NaN is not a JSON number"),
        (
            ["--sets", "columns.jsonl", *CUSTOM],
            "has no column 'prompt' or 'problem' or 'question': rename one of q, a",
        ),
        (
            ["--sets", "dates.parquet", *CUSTOM],
            "row 0 of 'dates.parquet', column 'level': Object of type date is not JSON",
        ),
        (["--sets", "e.jsonl.txt", *CUSTOM], "is not a .jsonl, .json, .parquet, .arrow, .csv file: give --sets one"),
        (["--prompt_style", "x", "--sets", "e.jsonl", *CUSTOM], "--prompt_style 'x'"),
        (["--sets", "e.jsonl", *CUSTOM], "row 1 of 'e.jsonl' has no answer"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_line_and_exit_code_2(call, tmp_path, capsys, argv, message):
    rows = [{"problem": "1+1", "answer": "2"}, {"problem": "1+2", "answer": ""}]
    (tmp_path / "e.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "nan.jsonl").write_text('{"problem": "1+1", "answer": 2.5}\n{"problem": "1+2", "answer": NaN}\n')
    (tmp_path / "columns.jsonl").write_text('{"q": "1+1", "a": 2}\n')
    dated = Dataset.from_list([{"problem": "1+1", "answer": "2", "level": date(2020, 1, 2)}])
    dated.to_parquet(str(tmp_path / "dates.parquet"))
    (tmp_path / "e.jsonl.txt").write_text("1+1=2")
    if "demo" not in argv and "--protocol" not in argv and "--models" not in argv:
        argv = [*argv, "--protocol", "demo"]
    with pytest.raises(SystemExit) as stop:
        call(*argv)
    error = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2 and error[-1].startswith("error: ") and message in error[-1]


def test_more_than_one_process_is_refused(call, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        call()
    assert "an evaluation is one process" in capsys.readouterr().err
