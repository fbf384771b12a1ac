"""Published protocols, the problems of every set, and custom rewards."""

from pathlib import Path

import pytest
import yaml
from datasets import Dataset

from trl_credit.lab.evaluation import PROTOCOLS, find_protocol, ha_dw_level
from trl_credit.lab.evaluation.judging import judge
from trl_credit.lab.evaluation.problems import load_problems
from trl_credit.lab.evaluation.sample_store import file_name


def test_the_settings_that_no_paper_says():
    aime = find_protocol("ha_dw", "aime25")[1]
    assert aime.max_new_tokens == 4096 and find_protocol("ha_dw", "math500")[1].metrics == ("pass@1",)
    for sets in (PROTOCOLS["s_trace"], PROTOCOLS["s_trace_8b"]):
        assert all(p.samples == 16 and {"pass@16", "best@16"} <= set(p.metrics) for p in sets.values())
    for greedy in PROTOCOLS["grpo_lambda"].values():
        assert "not in the text" in greedy.source  # defaults of the script that the paper names
    for context in ("2k", "4k", "32k"):
        table = find_protocol(f"spo_table1_{context}", "aime24")[1]
        assert (table.temperature, table.top_p, table.samples) == (0.6, 0.95, 1)
    assert "ours" in find_protocol("spo_short", "knights_and_knaves_3ppl")[1].source
    assert all(p.source for sets in PROTOCOLS.values() for p in sets.values())
    label, changed = find_protocol("ha_dw", "aime25", temperature=0.6)
    assert label == "ha_dw, changed" and changed.temperature == 0.6 and "changed: temperature" in changed.source


def test_the_protocols_are_those_of_docs_papers():
    papers = Path(__file__).resolve().parents[2] / "docs" / "papers"
    entries = [e for path in papers.glob("*.yaml") for e in yaml.safe_load(path.read_text())["evaluation"]]
    for entry in entries:
        for name in entry["protocols"]:
            assert "sets" not in entry or set(PROTOCOLS[name]) == set(entry["sets"]), name
            for set_name in entry.get("only", PROTOCOLS[name]):
                protocol = PROTOCOLS[name][set_name]
                given = {key: getattr(protocol, key) for key in entry.get("are", {})}
                assert given == entry.get("are", {}) and set(entry.get("metrics", ())) <= set(protocol.metrics), name
    assert {name for entry in entries for name in entry["protocols"]} == PROTOCOLS.keys() - {"demo", "demo_greedy"}


def test_the_split_of_ha_dw():
    assert [ha_dw_level(i) for i in (1, 2, 3, "Level 4", "5")] == ["easy", "mid", "mid", "hard", "hard"]
    with pytest.raises(ValueError, match="1 to 5, got 'Level \\?'"):
        ha_dw_level("Level ?")


def test_every_set_can_be_evaluated(data_folder, sampler):
    # name: (rows of the whole set, rows of the extract)
    sizes = {
        "math500": (500, 60),
        "aime24": (30, 30),
        "aime25": (30, 30),
        "amc23": (40, 40),
        "minerva": (272, 272),
        "olympiadbench": (675, 40),
        "gsm8k": (1319, 40),
    }
    for name, (whole, extract) in sizes.items():
        problems = load_problems(name, sampler.tokenizer, data_dir=str(data_folder.path))
        assert len(problems) == (whole if data_folder.whole else extract)
        if name == "math500":
            levels = [ha_dw_level(p.reference["level"]) for p in problems]
            counts = [levels.count(level) for level in ("easy", "mid", "hard")]
            assert counts == ([43, 195, 262] if data_folder.whole else [13, 28, 19])


def test_knights_and_knaves_vote_by_the_roles_they_name():
    reference = {"answer": "", "names": ["Zoey", "Ethan"], "truth": [True, False]}
    texts = [
        "<answer>(1) Zoey is a knight (2) Ethan is a knave</answer>",
        "<answer>(1) Zoey is a knave (2) Ethan is a knave</answer>",
        "<answer>Ethan is a knave, Zoey is a knave</answer>",
        "no idea",
    ]
    verdicts = judge("knights_and_knaves", texts, [reference] * 4)
    assert [verdict["correct"] for verdict in verdicts] == [True, False, False, False]
    answers = [verdict["answer"] for verdict in verdicts]
    assert answers[1] == answers[2] is not None and answers[3] is None


def test_ids_must_differ_and_names_become_file_names(sampler):
    data = Dataset.from_dict({"prompt": ["1", "2"], "answer": ["1", "2"], "id": ["a", "a"]})
    with pytest.raises(ValueError, match="two problems of 's' have the id 'a'"):
        load_problems("s", sampler.tokenizer, data=data)
    assert file_name("Qwen/Qwen3-1.7B") == "Qwen_Qwen3-1.7B" and file_name("../..") == "_"
    assert len(file_name("a" * 300)) < 100 and file_name("a" * 300) != file_name("a" * 301)
