"""Samplers: the distribution of the model, limits, generation settings, vLLM; published protocols and problems."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import yaml
from datasets import Dataset
from evaluation_helpers import SCRIPT, run
from peft import LoraConfig, get_peft_model
from processes import run as run_processes
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_credit.demo import DEMO, demo_model_path
from trl_credit.lab.evaluation import PROTOCOLS, Protocol, find_protocol, ha_dw_level
from trl_credit.lab.evaluation.problems import Problem, ProblemOptions, load_problems
from trl_credit.lab.evaluation.sample_store import file_name, read_samples
from trl_credit.lab.evaluation.samplers import TransformersSampler
from trl_credit.lab.evaluation.score_report import read_rows


PROMPT = "1+1-1+2-1-1-1:"  # facts that the model has learned correctly
SOLUTION = "1+1=2;2-1=1;1+2=3;3-1=2;2-1=1;1-1=0"


def problems_of(prompts, seeds) -> list[Problem]:
    return [Problem("", seed, prompt, {}, "") for prompt, seed in zip(prompts, seeds, strict=True)]


def test_samples_follow_the_distribution_of_the_model(sampler):
    """Frequencies of the next token against the model's own softmax."""
    prompt = sampler.tokenizer("3+2-1-3+1+2-3:3+2=")["input_ids"]
    protocol = Protocol(samples=2000, temperature=1.3, top_p=0.8, max_new_tokens=1, metrics=("pass@1",))
    (samples,) = sampler.sample(problems_of([prompt], [7]), protocol)
    with torch.no_grad():
        p = (sampler.model(torch.tensor([prompt])).logits[0, -1] / 1.3).softmax(-1)
    order = p.argsort(descending=True)
    kept = order[: int((p[order].cumsum(0) < 0.8).sum()) + 1]
    expected = {sampler.tokenizer.decode([i]): (p[i] / p[kept].sum()).item() for i in kept.tolist()}
    counts = {text: sum(s["text"] == text for s in samples) for text in expected}
    assert sum(counts.values()) == 2000 and len(expected) > 1
    for text, share in expected.items():  # five standard deviations of a binomial
        assert abs(counts[text] / 2000 - share) < 5 * (share * (1 - share) / 2000) ** 0.5


def test_samples_depend_on_their_seed_alone(sampler):
    """Not on the batch, the global random state, the model's generation settings, or a new adapter."""
    prompts = [p.prompt_ids for p in load_problems("demo", sampler.tokenizer, ProblemOptions(max_problems=6))]
    protocol = find_protocol("demo", "demo", samples=3, metrics=["pass@1"])[1]
    state = torch.get_rng_state()
    problems = problems_of(prompts, range(6))
    together = sampler.sample(problems, protocol)
    assert torch.equal(state, torch.get_rng_state()) and len({s["text"] for s in together[0]}) > 1
    torch.manual_seed(1)
    assert [sampler.sample([problem], protocol)[0] for problem in problems] == together
    assert sampler.sample(problems_of(prompts, range(1, 7)), protocol) != together
    model = AutoModelForCausalLM.from_pretrained(demo_model_path()).eval()
    own = {"do_sample": True, "temperature": 0.1, "top_k": 1, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    own |= {"min_new_tokens": 28, "suppress_tokens": [5], "num_return_sequences": 2}
    own = type(model.generation_config)(**model.generation_config.to_diff_dict() | own)
    model.generation_config = own
    assert TransformersSampler(model, sampler.tokenizer, batch_size=4).sample(problems, protocol) == together
    wrapped = get_peft_model(model, LoraConfig(target_modules="all-linear")).eval()  # changes nothing yet
    assert TransformersSampler(wrapped, sampler.tokenizer).sample(problems, protocol) == together
    assert model.generation_config is own


def test_greedy_limits_and_truncation(sampler):
    prompts = [sampler.tokenizer(text)["input_ids"] for text in (PROMPT, f"{PROMPT}{SOLUTION[:6]}")]
    greedy = find_protocol("demo_greedy", "demo")[1]
    problems = problems_of(prompts, [0, 0])
    (first,), (second,) = sampler.sample(problems, greedy)
    # 35 characters and the end
    assert first == {"text": SOLUTION, "length": 36, "truncated": False} and second["text"] == SOLUTION[6:]
    # a context of 24 leaves ten tokens to one prompt and four to the other, in one batch
    cut = find_protocol("demo_greedy", "demo", max_context=24)[1]
    texts = [first["text"][:10], second["text"][:4]]
    expected = [[{"text": text, "length": len(text), "truncated": True}] for text in texts]
    assert sampler.sample(problems, cut) == expected
    with pytest.raises(ValueError, match="no room for a response within 256: raise --max_context"):
        sampler.sample(problems_of([prompts[0] * 26], [0]), greedy)


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_agrees_with_transformers(tmp_path):
    """Greedy responses are the same, and sampled ones are right about as often."""
    flags = "--backend vllm --gpu_memory_utilization 0.1 --protocol demo demo_greedy --max_problems 64 --output_dir"
    run_processes(SCRIPT, *flags.split(), tmp_path / "vllm", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")
    sampled, greedy = read_rows(tmp_path / "vllm")
    ours = run(tmp_path / "own", protocols=["demo", "demo_greedy"], changes=None, max_problems=64)
    files = [next((tmp_path / name).glob("samples/*/demo-demo_greedy.jsonl")) for name in ("vllm", "own")]
    theirs, own = (read_samples(path).lines for path in files)
    assert [line["seed"] for line in theirs] == [line["seed"] for line in own]
    same = [a["samples"] == b["samples"] for a, b in zip(theirs, own, strict=True)]
    assert sum(same) > 0.95 * len(same)  # the engine computes with fewer digits
    # a twentieth of the responses may differ
    assert abs(greedy["metrics"]["pass@1"]["value"] - ours[1]["metrics"]["pass@1"]["value"]) < 0.05
    # five standard errors; the interval has about two on each side
    width = sampled["metrics"]["pass@1"]["high"] - sampled["metrics"]["pass@1"]["low"]
    assert abs(sampled["metrics"]["pass@1"]["value"] - ours[0]["metrics"]["pass@1"]["value"]) < 2 * width
    assert 0.0 < sampled["truncated_share"] < 0.2


# Published protocols and the problems of every set


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
