"""Published protocols and the problems of every set."""

import json
from pathlib import Path

import pytest
import yaml
from datasets import Dataset
from transformers import AutoTokenizer

from trl_credit.demo import DEMO, demo_model_path
from trl_credit.lab.evaluation import PROTOCOLS, find_protocol, ha_dw_level
from trl_credit.lab.evaluation.problems import ProblemOptions, load_problems
from trl_credit.lab.evaluation.sample_store import file_name


def test_the_protocols_are_those_of_docs_papers():
    papers = Path(__file__).resolve().parents[2] / "docs" / "papers"
    entries = [e for path in papers.glob("*.yaml") for e in yaml.safe_load(path.read_text())["evaluation"]]
    for entry in entries:
        for name in entry["protocols"]:
            assert "sets" not in entry or set(PROTOCOLS[name]) == set(entry["sets"]), name
            for set_name in entry.get("only", PROTOCOLS[name]):
                protocol = PROTOCOLS[name][set_name]
                values = {key: getattr(protocol, key) for key in entry.get("are", {})}
                assert values == entry.get("are", {}) and set(entry.get("metrics", ())) <= set(protocol.metrics), name
    assert {name for entry in entries for name in entry["protocols"]} == PROTOCOLS.keys() - {"demo", "demo_greedy"}
    assert all(protocol.source for sets in PROTOCOLS.values() for protocol in sets.values())
    assert PROTOCOLS["demo"]["demo"].max_new_tokens == DEMO.max_completion_length
    # values that no paper says
    aime = find_protocol("ha_dw", "aime25")[1]
    assert aime.max_new_tokens == 4096 and find_protocol("ha_dw", "math500")[1].metrics == ("pass@1",)
    label, changed = find_protocol("ha_dw", "aime25", temperature=0.6)
    assert label == "ha_dw, changed" and changed.temperature == 0.6 and "changed: temperature" in changed.source


def test_every_set_can_be_evaluated(data_folder, sampler):
    # name: (rows of the whole set, rows of the extract)
    sizes = {"math500": (500, 60), "aime24": (30, 30), "minerva": (272, 272), "gsm8k": (1319, 40)}
    for name, (whole, extract) in sizes.items():
        problems = load_problems(name, sampler.tokenizer, ProblemOptions(data_dir=str(data_folder.path)))
        assert len(problems) == (whole if data_folder.whole else extract)
        if name == "math500":
            levels = [ha_dw_level(p.reference["level"]) for p in problems]
            counts = [levels.count(level) for level in ("easy", "mid", "hard")]
            assert counts == ([43, 195, 262] if data_folder.whole else [13, 28, 19])


def test_ids_must_differ_and_names_become_file_names(sampler):
    data = Dataset.from_dict({"prompt": ["1", "2"], "answer": ["1", "2"], "id": ["a", "a"]})
    with pytest.raises(ValueError, match="two problems of 's' have the id 'a'"):
        load_problems("s", sampler.tokenizer, ProblemOptions(rows={"s": lambda tokenizer: data}))
    assert file_name("Qwen/Qwen3-1.7B") == "Qwen_Qwen3-1.7B" and file_name("../..") == "_"
    assert len(file_name("a" * 300)) < 100 and file_name("a" * 300) != file_name("a" * 301)


def test_the_digest_of_a_prompt_does_not_depend_on_the_tokenizer(tmp_path):
    file = str(tmp_path / "s.jsonl")
    Path(file).write_text(json.dumps({"problem": "1+2", "answer": "3"}))
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    digests = []
    for template in (None, "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}"):
        tokenizer.chat_template = template
        problems = [load_problems(file, tokenizer, ProblemOptions(style))[0] for style in ("boxed", "plain")]
        digests.append([problem.digest for problem in problems])
    assert digests[0] == digests[1] and digests[0][0] != digests[0][1]
