"""Evaluation on the embedded model: files against recomputation, interruptions, tables, the script, the callback."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import run_evaluation
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from test_layouts import needs_deepspeed, on_cpus
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.evaluation import (
    PROTOCOLS,
    EvaluationCallback,
    Protocol,
    evaluate,
    find_protocol,
    forget_after,
    ha_dw_level,
    rescore,
)
from trl_credit.evaluation.estimators import bootstrap_interval, majority_at_k, pass_at_k
from trl_credit.evaluation.loading import identity, weights_fingerprint
from trl_credit.evaluation.plots import plot_rows
from trl_credit.evaluation.problems import as_problems, judge, load_problems
from trl_credit.evaluation.samplers import Sample, TransformersSampler
from trl_credit.evaluation.scores import score_row
from trl_credit.evaluation.store import file_name, read_samples, write_samples
from trl_credit.evaluation.tables import markdown, read_rows, write_rows


SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "evaluate.py"
spec = importlib.util.spec_from_file_location("evaluate_script", SCRIPT)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

CUSTOM = ["--protocol", "custom", "--samples", "1", "--temperature", "1", "--max_new_tokens", "9"]
SMALL = {"samples": 4, "metrics": ["pass@1", "pass@2", "maj@4", "avg@4"]}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def sampler():
    model = AutoModelForCausalLM.from_pretrained(demo_model_path()).eval()
    return TransformersSampler(model, AutoTokenizer.from_pretrained(demo_model_path()))


def run(folder, models=("demo",), sets=("demo",), **options):
    options = {"protocols": ["demo"], "max_problems": 24, "changes": SMALL, "progress": False, **options}
    return evaluate(list(models), None if sets is None else list(sets), output_dir=folder, **options)


def sample_file(folder):
    (path,) = Path(folder).glob("samples/*/*.jsonl")
    return path


# samplers


def test_samples_follow_the_distribution_of_the_model(sampler):
    """After the prompt and 23 known tokens, the end token's chance and the digit's against the model's own softmax."""
    prompt = sampler.tokenizer("3+2-1-3+1:3+2=")["input_ids"]
    protocol = Protocol(samples=2000, temperature=1.3, top_p=0.8, max_new_tokens=1, metrics=("pass@1",))
    (samples,) = sampler.sample([prompt], [7], protocol)
    with torch.no_grad():
        p = (sampler.model(torch.tensor([prompt])).logits[0, -1] / 1.3).softmax(-1)
    order = p.argsort(descending=True)
    kept = order[: int((p[order].cumsum(0) < 0.8).sum()) + 1]
    expected = {sampler.tokenizer.decode([i]): (p[i] / p[kept].sum()).item() for i in kept.tolist()}
    counts = {text: sum(s.text == text for s in samples) for text in expected}
    assert sum(counts.values()) == 2000 and len(expected) > 1
    for text, share in expected.items():  # five standard deviations of a binomial
        assert abs(counts[text] / 2000 - share) < 5 * (share * (1 - share) / 2000) ** 0.5


def test_samples_depend_neither_on_the_batch_nor_on_the_random_state(sampler):
    problems = load_problems("demo", sampler.tokenizer, max_problems=6)
    prompts = [p.prompt_ids for p in problems]
    protocol = find_protocol("demo", "demo", samples=3, metrics=["pass@1"])[1]
    torch.manual_seed(0)
    state = torch.get_rng_state()
    together = sampler.sample(prompts, range(6), protocol)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(1)
    small = TransformersSampler(sampler.model, sampler.tokenizer, batch_size=4)
    assert small.sample(prompts, range(6), protocol) == together
    assert [sampler.sample([p], [i], protocol)[0] for i, p in enumerate(prompts)] == together
    assert sampler.sample(prompts, range(1, 7), protocol) != together
    assert len({s.text for s in together[0]}) > 1


def test_greedy_limits_and_truncation(sampler):
    prompts = [sampler.tokenizer(text)["input_ids"] for text in ("3+2-1-3+1:", "1+1+1+1+1:1+1=2;")]
    greedy = find_protocol("demo_greedy", "demo")[1]
    (first,), (second,) = sampler.sample(prompts, [0, 0], greedy)
    # 23 characters and the end
    assert first == Sample("3+2=5;5-1=4;4-3=1;1+1=2", 24, False) and second.text.endswith("=5")
    own = sampler.model.generate(torch.tensor(prompts[:1]), do_sample=False, max_new_tokens=28)
    assert sampler.tokenizer.decode(own[0, len(prompts[0]) :], skip_special_tokens=True) == first.text
    # a context of 20 leaves ten tokens to one prompt and four to the other, in one batch
    cut = find_protocol("demo_greedy", "demo", max_context=20)[1]
    assert sampler.sample(prompts, [0, 0], cut) == [
        [Sample(first.text[:10], 10, True)],
        [Sample(second.text[:4], 4, True)],
    ]
    with pytest.raises(ValueError, match="10 tokens leaves no room for a response within 10: raise --max_context"):
        sampler.sample(prompts, [0, 0], find_protocol("demo_greedy", "demo", max_context=10)[1])
    with pytest.raises(ValueError, match="no room for a response within 256"):
        sampler.sample([prompts[0] * 26], [0], greedy)


def test_the_generation_settings_of_a_model_have_no_say(sampler):
    prompts = [p.prompt_ids for p in load_problems("demo", sampler.tokenizer, max_problems=4)]
    protocol = find_protocol("demo", "demo")[1]
    before = sampler.sample(prompts, range(4), protocol)
    own = sampler.model.generation_config
    sampler.model.generation_config = type(own)(
        **{**own.to_diff_dict(), "do_sample": True, "temperature": 0.1, "top_k": 1, "repetition_penalty": 1.5},
        no_repeat_ngram_size=2,
        min_new_tokens=28,
        suppress_tokens=[5],
        num_return_sequences=2,
    )
    try:
        assert sampler.sample(prompts, range(4), protocol) == before
    finally:
        sampler.model.generation_config = own


def test_the_generation_settings_under_an_adapter_have_no_say_either(sampler):
    prompts = [p.prompt_ids for p in load_problems("demo", sampler.tokenizer, max_problems=4)]
    protocol = find_protocol("demo", "demo")[1]
    model = AutoModelForCausalLM.from_pretrained(demo_model_path()).eval()
    own = type(model.generation_config)(**model.generation_config.to_diff_dict(), min_new_tokens=28)
    model.generation_config = own
    wrapped = get_peft_model(model, LoraConfig(target_modules="all-linear")).eval()  # as it begins, it changes nothing
    found = TransformersSampler(wrapped, sampler.tokenizer).sample(prompts, range(4), protocol)
    assert found == sampler.sample(prompts, range(4), protocol) and model.generation_config is own


# the run and its files


def test_two_sets_of_one_name_and_a_misspelt_second_model_are_refused_before_anything_runs(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.jsonl").write_text('{"problem": "1+1:", "answer": "2"}\n')
    sets = [str(tmp_path / name / "test.jsonl") for name in ("a", "b")]
    changes = {"samples": 1, "temperature": 0.0, "max_new_tokens": 4, "metrics": ("pass@1",)}
    with pytest.raises(ValueError, match="have one name for their samples"):
        evaluate(["demo"], sets, protocols=["custom"], output_dir=tmp_path / "out", changes=changes)
    with pytest.raises((ValueError, OSError)):
        evaluate(["demo", "no_such_dir"], None, protocols=["demo"], output_dir=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_scores_are_those_of_the_samples_in_the_file(tmp_path):
    (row,) = run(tmp_path)
    header, lines = read_samples(sample_file(tmp_path))
    data = demo_dataset(24, seed=1_000_003)
    assert [line["reference"]["answer"] for line in lines] == data["answer"] and header["problems"] == 24
    for line, answer in zip(lines, data["answer"], strict=True):
        texts = [s["text"] for s in line["samples"]]
        assert [s["correct"] for s in line["samples"]] == [text[-2:] == f"={answer}" for text in texts]
        lengths = [len(s["text"]) + (not s["truncated"]) for s in line["samples"]]
        assert [s["length"] for s in line["samples"]] == lengths
    right = [sum(s["correct"] for s in line["samples"]) for line in lines]
    by_hand = {
        "pass@1": [c / 4 for c in right],
        "avg@4": [c / 4 for c in right],
        "pass@2": [pass_at_k(4, c, 2) for c in right],
        "maj@4": [
            majority_at_k([s["answer"] for s in line["samples"]], [s["correct"] for s in line["samples"]], 4)
            for line in lines
        ],
    }
    assert row["metrics"].keys() == by_hand.keys() and 0.15 < row["metrics"]["pass@1"]["value"] < 0.5
    for metric, scores in by_hand.items():
        assert row["metrics"][metric]["value"] == pytest.approx(np.mean(scores), abs=1e-12)
        low, high = bootstrap_interval(scores, seed=1)
        assert row["metrics"][metric]["low"] == pytest.approx(low, abs=0.03)
        assert row["metrics"][metric]["high"] == pytest.approx(high, abs=0.03)
    samples = [s for line in lines for s in line["samples"]]
    assert row["mean_length_tokens"] == np.mean([s["length"] for s in samples])
    assert row["truncated_share"] == np.mean([s["truncated"] for s in samples])
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert content["version"] == 1 and content["rows"] == [row]
    assert (tmp_path / "evaluation.png").read_bytes().startswith(b"\x89PNG")


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    flags = "--protocol demo --samples 4 --metrics pass@1 --max_problems 128 --quiet --output_dir".split()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(SCRIPT), *flags, str(tmp_path / "killed")], env=env)
    for _ in range(3000):
        time.sleep(0.02)
        found = list((tmp_path / "killed").glob("samples/*/*.jsonl"))
        if found or process.poll() is not None:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    path = sample_file(tmp_path / "killed")
    assert 0 < len(read_samples(path)[1]) < 128 and not (tmp_path / "killed" / "evaluation.json").exists()
    options = {"changes": {"samples": 4, "metrics": ["pass@1"]}, "max_problems": 128}
    resumed, whole = run(tmp_path / "killed", **options), run(tmp_path / "whole", **options)
    assert resumed == whole
    assert path.read_bytes() == sample_file(tmp_path / "whole").read_bytes()


def test_torn_lines_and_chunks_are_done_again(tmp_path):
    run(tmp_path)
    path = sample_file(tmp_path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    before = path.stat().st_mtime_ns
    run(tmp_path)
    assert path.stat().st_mtime_ns == before  # nothing was left to do
    for torn in (
        b"".join(lines[:19]) + lines[19][:50],  # within a line of the second chunk
        b"".join(lines[:19]),  # between two
        lines[0][:40],  # within the header
        lines[0],
        b"",
    ):
        path.write_bytes(torn)
        run(tmp_path)
        assert path.read_bytes() == whole
    path.write_bytes(b"".join(lines[:3]) + b"{broken\n" + b"".join(lines[4:]))
    with pytest.raises(ValueError, match="line 4 of .* is damaged .*--overwrite"):
        run(tmp_path)
    run(tmp_path, overwrite=True)
    assert path.read_bytes() == whole
    path.write_text('{"some": "file"}\n')
    with pytest.raises(ValueError, match="not a file of samples"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"changes": {**SMALL, "temperature": 0.5}}, "holds samples with temperature 1.0, and this run has 0.5"),
        ({"seed": 1}, "samples with seed 0"),
        ({"max_problems": 25}, "samples with problems 24"),
    ],
)
def test_samples_of_another_protocol_are_refused(tmp_path, option, message):
    run(tmp_path)
    with pytest.raises(ValueError, match=f"{message}.*another --output_dir, or --overwrite"):
        run(tmp_path, **option)
    run(tmp_path, **option, overwrite=True)


def test_an_overwritten_checkpoint_is_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(demo_model_path())
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    model.save_pretrained("checkpoint-1")
    tokenizer.save_pretrained("checkpoint-1")
    run("out", models=["checkpoint-1"])
    model.lm_head.weight.data += 0.01
    model.save_pretrained("checkpoint-1")
    with pytest.raises(ValueError, match="holds samples with weights"):
        run("out", models=["checkpoint-1"])


def test_a_fingerprint_sees_the_middle_of_a_file_and_the_configuration(tmp_path):
    for size in (3 << 20, 40 << 20):  # all of the small one; the large one is looked into in 64 places
        file = tmp_path / "model.safetensors"
        file.write_bytes(bytes(size))
        (tmp_path / "config.json").write_text("{}")
        seen = {weights_fingerprint(tmp_path)}
        for i in (1, 31, 62):
            with open(file, "r+b") as stream:
                stream.seek(i * (size - (1 << 16)) // 63 + 100)
                stream.write(b"x")
            seen.add(weights_fingerprint(tmp_path))
        (tmp_path / "config.json").write_text('{"a": 1}')
        seen.add(weights_fingerprint(tmp_path))
        assert len(seen) == 5


def test_every_model_is_looked_for_before_the_first_is_evaluated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing").mkdir()
    for model, message in (("./no_such", "--models './no_such' is neither a folder"), ("nothing", "without a model")):
        with pytest.raises(OSError, match=message):
            run("out", models=["demo", model])
        assert not Path("out").exists()
    assert identity("demo", None)["model"] == "embedded model"


def test_a_file_with_the_name_of_a_set_is_refused_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("math500.jsonl").write_text(json.dumps({"problem": "1+1", "answer": "2"}))
    custom = {"samples": 1, "temperature": 0.0, "max_new_tokens": 2}
    with pytest.raises(ValueError, match="--sets math500 and math500.jsonl .*rename a file"):
        run("out", sets=["math500", "math500.jsonl"], protocols=["custom"], changes=custom)


def test_a_level_that_cannot_be_read_is_found_on_loading(tmp_path, sampler):
    rows = [{"problem": "1+1", "answer": "2", "level": level} for level in ("Level 1", "Level ?")]
    for name in ("math.jsonl", "other.jsonl"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=r"row 1 of '.*math.jsonl', column 'level': .*got 'Level \?'"):
        load_problems(str(tmp_path / "math.jsonl"), sampler.tokenizer, style="plain")
    # the levels of other sets are any text
    assert len(load_problems(str(tmp_path / "other.jsonl"), sampler.tokenizer, style="plain")) == 2


def test_rescoring_writes_all_or_nothing_and_keeps_the_metrics_of_the_samples(tmp_path):
    run(tmp_path)
    run(tmp_path, protocols=["demo_greedy"], changes=None)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"--metrics want 4 samples per problem, and .*demo-demo_greedy.jsonl has 1"):
        rescore(tmp_path, metrics=["pass@4"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert [list(row["metrics"]) for row in rescore(tmp_path, metrics=["avg@1"])] == [["avg@1"]] * 2
    assert {list(row["metrics"])[-1] for row in rescore(tmp_path)} == {"avg@4", "pass@1"}


def test_other_metrics_need_no_new_samples(tmp_path):
    run(tmp_path)
    path = sample_file(tmp_path)
    before = path.read_bytes()
    (row,) = run(tmp_path, changes={"samples": 4, "metrics": ["pass@3"]})
    assert list(row["metrics"]) == ["pass@3"] and path.read_bytes() == before


def test_rescoring_needs_no_model_and_judges_anew(tmp_path):
    (row,) = run(tmp_path)
    path = sample_file(tmp_path)
    header, lines = read_samples(path)
    header["model"] = "no/such-model"
    for line in lines:
        for s in line["samples"]:
            s["correct"], s["answer"] = False, None
    write_samples(path, header, lines)
    (found,) = rescore(tmp_path)
    assert found == {**row, "model": "no/such-model"}
    (more,) = rescore(tmp_path, metrics=["pass@4"])
    assert list(more["metrics"]) == ["pass@4"]
    with pytest.raises(ValueError, match="want 5 samples per problem, and .* has 4"):
        rescore(tmp_path, metrics=["pass@5"])
    with pytest.raises(ValueError, match="no finished samples"):
        rescore(tmp_path / "empty")


def test_a_file_with_levels_and_hostile_output(tmp_path, sampler):
    rows = [{"problem": f"{i}+1=", "answer": str(i + 1), "level": f"Level {1 + i % 5}"} for i in range(8)]
    (tmp_path / "math500.jsonl").write_text("\n".join(map(json.dumps, rows)))
    problems = load_problems(str(tmp_path / "math500.jsonl"), sampler.tokenizer, style="plain")
    outputs = [f"\\boxed{{{i + 1}}}" if i % 2 else "\ud800|<b>`\n\x00\u2028" * 9 for i in range(8)]
    verdicts = judge("accuracy", outputs, [p.reference for p in problems])
    assert [right for _, right in verdicts] == [i % 2 == 1 for i in range(8)]
    header = {
        "version": 1,
        "model": "a|b\n<i>_x_</i>$y$",
        "revision": None,
        "set": "math500",
        "protocol": "p",
        "samples": 1,
        "temperature": 1.0,
        "metrics": ["pass@1"],
        "problems": 8,
        "reward": "accuracy",
    }
    lines = [
        {
            "id": p.id,
            "reference": p.reference,
            "samples": [{"text": t, "answer": a, "correct": c, "length": 1, "truncated": False}],
        }
        for p, t, (a, c) in zip(problems, outputs, verdicts, strict=True)
    ]
    path = tmp_path / "samples" / "m" / "s.jsonl"
    write_samples(path, header, lines)
    assert path.read_bytes().count(b"\n") == 9
    (row,) = rescore(tmp_path)
    # levels 1 2 3 4 5 1 2 3, every second one right
    parts = {level: (part["problems"], part["metrics"]["pass@1"]["value"]) for level, part in row["by_level"].items()}
    assert parts == {"easy (level 1)": (2, 0.5), "mid (levels 2, 3)": (4, 0.5), "hard (levels 4, 5)": (2, 0.5)}
    text = (tmp_path / "evaluation.md").read_text()
    assert "a\\|b \\<i\\>\\_x\\_\\</i\\>\\$y\\$" in text and "boxed" not in text and "\x00" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3 + 3 + 5 and "| easy (level 1)" in text


def test_several_checkpoints_are_one_table_and_one_curve(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(demo_model_path())
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    for step, noise in ((20, 0.3), (10, 0.0)):
        torch.manual_seed(0)
        for p in model.parameters():
            p.data += noise * p.data.std() * torch.randn_like(p) if p.numel() > 1 else 0
        model.save_pretrained(f"runs/checkpoint-{step}")
        tokenizer.save_pretrained(f"runs/checkpoint-{step}")
    models = ["runs/checkpoint-20", "runs/checkpoint-10"]
    rows = run("out", models=models, sets=None, protocols=["demo", "demo_greedy"], changes=None, max_problems=8)
    assert [(r["model"], r["protocol"]) for r in rows] == [(m, p) for m in models for p in ("demo", "demo_greedy")]
    text = Path("out/evaluation.md").read_text()
    assert text.splitlines()[2].count("|") == 1 + 1 + 5 and "demo pass@16 (demo)" in text.splitlines()[2]
    assert sum(line.startswith("| runs/checkpoint-10 ") for line in text.splitlines()) == 3
    # later calls add to the table, and take the place of rows of the same model, set and protocol
    run("out", models=models[:1], protocols=["demo_greedy"], changes=None, max_problems=8)
    run("out", models=["demo"], protocols=["demo_greedy"], changes=None, max_problems=8)
    assert len(read_rows(Path("out"))) == 5
    assert read_rows(Path("out"))[:4] == json.loads(json.dumps(rows))


def test_the_axis_is_the_step_for_checkpoints_of_one_run_alone(tmp_path, monkeypatch):
    from trl_credit.evaluation import plots

    drawn = []
    monkeypatch.setattr(plots, "_curves", lambda axes, rows: drawn.append("curves") or axes.plot([0], label="x"))
    monkeypatch.setattr(plots, "_bars", lambda axes, rows: drawn.append("bars") or axes.plot([0], label="x"))
    row = {"set": "s", "protocol": "p", "metrics": {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}}}
    runs = (["r/checkpoint-1", "r/checkpoint-2/"], ["a/checkpoint-1", "b/checkpoint-2"], ["checkpoint-1"], ["a", "b"])
    for models in runs:
        plot_rows([{**row, "model": m} for m in models], tmp_path / "p.png")
    assert drawn == ["curves", "bars", "bars", "bars"]


# protocols


def test_the_published_settings():
    aime = find_protocol("ha_dw", "aime25")[1]
    assert (aime.samples, aime.max_new_tokens) == (16, 4096) and "avg@16" in aime.metrics
    assert find_protocol("ha_dw", "math500")[1].metrics == ("pass@1",)
    assert all("pass@16" in p.metrics for p in PROTOCOLS["s_trace"].values())
    short = find_protocol("spo_short", "gsm8k")[1]
    assert (short.max_context, short.temperature, short.top_p, short.samples) == (2047, 0.35, 0.9, 16)
    for name, context in (("spo_long_2k", 2048), ("spo_long_4k", 4096)):
        long = find_protocol(name, "math500")[1]
        assert (long.temperature, long.samples, long.max_context) == (0.0, 1, context)
    assert all(p.source for sets in PROTOCOLS.values() for p in sets.values())
    label, changed = find_protocol("ha_dw", "aime25", temperature=0.6)
    assert label == "ha_dw, changed" and changed.temperature == 0.6 and "changed: temperature" in changed.source


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


def test_knights_and_knaves_vote_by_what_they_say():
    reference = {"answer": "", "names": ["Zoey", "Ethan"], "truth": [True, False]}
    texts = [
        "<answer>(1) Zoey is a knight (2) Ethan is a knave</answer>",
        "<answer>(1) Zoey is a knave (2) Ethan is a knave</answer>",
        "<answer>Ethan is a knave, Zoey is a knave</answer>",
        "no idea",
    ]
    verdicts = judge("knights_and_knaves", texts, [reference] * 4)
    assert [right for _, right in verdicts] == [True, False, False, False]
    assert verdicts[1][0] == verdicts[2][0] is not None and verdicts[3][0] is None


# the script


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_agrees_with_transformers(tmp_path):
    """Greedy responses are the same, and sampled ones are about as often right; a second call resumes."""
    flags = "--backend vllm --gpu_memory_utilization 0.1 --protocol demo demo_greedy --max_problems 64 --output_dir"
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *flags.split(), str(tmp_path / "vllm")],
        capture_output=True,
        text=True,
        env=env,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    sampled, greedy = read_rows(tmp_path / "vllm")
    ours = run(tmp_path / "own", protocols=["demo", "demo_greedy"], changes=None, max_problems=64)
    for kind in ("demo", "demo_greedy"):
        files = [next((tmp_path / name).glob(f"samples/*/demo-{kind}.jsonl")) for name in ("vllm", "own")]
        theirs, own = (read_samples(path)[1] for path in files)
        assert [line["seed"] for line in theirs] == [line["seed"] for line in own]
        if kind == "demo_greedy":
            same = [a["samples"] == b["samples"] for a, b in zip(theirs, own, strict=True)]
            assert sum(same) > 0.95 * len(same)  # the engine computes in fewer digits
        extra = [s["length"] - len(s["text"]) - (not s["truncated"]) for line in theirs for s in line["samples"]]
        # a sampled special token is none of the text
        assert min(extra) >= 0 and sum(n == 0 for n in extra) > 0.95 * len(extra), extra
    assert greedy["metrics"]["pass@1"]["value"] > 0.95
    # five standard errors, of which the interval is some two to each side
    width = sampled["metrics"]["pass@1"]["high"] - sampled["metrics"]["pass@1"]["low"]
    assert abs(sampled["metrics"]["pass@1"]["value"] - ours[0]["metrics"]["pass@1"]["value"]) < 2 * width
    assert 0.0 < sampled["truncated_share"] < 0.2


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *argv: script.main([*map(str, argv), "--quiet"])


def test_the_script_with_no_more_than_a_size(call, tmp_path, capsys):
    call("--max_problems", 8)
    shown = capsys.readouterr().out
    assert "| embedded model | " in shown and "demo pass@16 (demo)" in shown and "100.0 [100.0, 100.0]" in shown
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
        (["--protocol", "s-trace"], "unknown --protocol 's-trace': choose one of s_trace"),
        (["--protocol", "s_trace", "--sets", "gsm8k"], "has the sets math500, aime24"),
        (["--protocol", "custom"], "--protocol custom wants --samples, --temperature, --max_new_tokens"),
        (["--models", "x"], "--models wants a --protocol"),
        (["--models", "./no_such", "--protocol", "demo"], "no_such"),
        (["--temperature", "-1"], "--temperature must be a number from 0 to 10, got -1.0"),
        (["--temperature", "nan"], "--temperature must be"),
        (["--temperature", "0"], "--temperature 0 gives 16 times the same response"),
        (["--top_p", "0"], "--top_p must be in (0, 1], got 0.0"),
        (["--top_k", "-1"], "--top_k must be 0 (off) or more"),
        (["--samples", "0"], "--samples must be at least 1"),
        (["--samples", "4"], "--metrics pass@16 wants 16 samples"),
        (["--metrics", "pass"], "--metrics 'pass' must be pass@k"),
        (["--max_new_tokens", "0"], "--max_new_tokens must be at least 1"),
        (["--max_context", "9"], "within 9: raise --max_context"),
        (["--max_problems", "0"], "--max_problems must be at least 1"),
        (["--batch_size", "0"], "--batch_size must be at least 1"),
        (["--backend", "sglang"], "unknown --backend 'sglang'"),
        *(
            []
            if importlib.util.find_spec("vllm")
            else [(["--backend", "vllm"], "--backend vllm wants vllm: pip install")]
        ),
        (["--tensor_parallel_size", "2"], "--tensor_parallel_size wants --backend vllm"),
        (["--revision", "main"], "--revision is for models on the Hub"),
        (["--rescore"], "there are no finished samples"),
        (["--sets", "none.jsonl", *CUSTOM], "none.jsonl"),
        (["--prompt_style", "x", "--sets", "e.jsonl", *CUSTOM], "--prompt_style 'x'"),
        (["--sets", "e.jsonl", *CUSTOM], "row 1 of 'e.jsonl' has no answer"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_line_and_exit_code_2(call, tmp_path, capsys, argv, message):
    rows = [{"problem": "1+1", "answer": "2"}, {"problem": "1+2", "answer": ""}]
    (tmp_path / "e.jsonl").write_text("\n".join(map(json.dumps, rows)))
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
    assert "this script is one process" in capsys.readouterr().err


# the callback


def train(
    folder, *, callback: bool, trainer_class=CreditTrainer, config_class=CreditConfig, steps=5, resume=None, **own
):
    settings = {"every_n_steps": 2, "protocol": "demo", "max_problems": 6, **SMALL, **own}
    args = config_class(
        output_dir=str(folder),
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        max_steps=steps,
        logging_steps=1,
        save_steps=2,
        lr_scheduler_type="constant",
        learning_rate=1e-4,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=28,
    )
    trainer = trainer_class(demo_model_path(), demo_reward, args=args, train_dataset=demo_dataset(64))
    if callback:
        trainer.add_callback(EvaluationCallback(trainer, **settings))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer):
    skip = ("step_time", "runtime", "per_second")
    rows = [row for row in trainer.state.log_history if "reward" in row]
    return [{k: v for k, v in row.items() if not any(s in k for s in skip)} for row in rows]


@pytest.mark.parametrize("classes", [(CreditTrainer, CreditConfig), (GRPOTrainer, GRPOConfig)], ids=["credit", "trl"])
def test_training_is_the_same_to_the_last_bit_with_the_callback(tmp_path, classes):
    kinds = {"trainer_class": classes[0], "config_class": classes[1]}
    plain = train(tmp_path / "plain", callback=False, **kinds)
    watched = train(tmp_path / "watched", callback=True, at_start=True, **kinds)
    ours, theirs = watched.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert watched.model.training and losses(watched) == losses(plain) and len(losses(plain)) == 5
    logged = [row for row in watched.state.log_history if "eval_demo/pass@1" in row]
    assert [row["step"] for row in logged] == [0, 2, 4, 5]
    rows = read_rows(tmp_path / "watched" / "evaluation")
    assert [row["model"] for row in rows] == [f"checkpoint-{step}" for step in (0, 2, 4, 5)]
    for row, log in zip(rows, logged, strict=True):
        assert all(log[f"eval_demo/{m}"] == score["value"] for m, score in row["metrics"].items())
        assert log["eval_demo/mean_length"] == row["mean_length_tokens"]
    # the weights of step 4 are those of its checkpoint: the same samples, from a file
    (row,) = run(tmp_path / "later", models=[str(tmp_path / "watched" / "checkpoint-4")], max_problems=6)
    assert row["metrics"] == rows[2]["metrics"]


def test_a_resumed_run_keeps_its_rows_and_a_new_one_does_not(tmp_path):
    train(tmp_path, callback=True, steps=4)
    first = read_rows(tmp_path / "evaluation")
    assert [row["model"] for row in first] == ["checkpoint-2", "checkpoint-4"]
    train(tmp_path, callback=True, steps=4, resume=str(tmp_path / "checkpoint-2"))
    assert read_rows(tmp_path / "evaluation") == first  # resumed to the last bit
    train(tmp_path, callback=True, steps=5, resume=str(tmp_path / "checkpoint-4"))
    assert [row["model"] for row in read_rows(tmp_path / "evaluation")] == [f"checkpoint-{s}" for s in (2, 4, 5)]
    train(tmp_path, callback=True, steps=1)
    assert [row["model"] for row in read_rows(tmp_path / "evaluation")] == ["checkpoint-1"]
    assert [p.name for p in (tmp_path / "evaluation" / "samples").iterdir()] == ["checkpoint-1"]


def stale_folder(tmp_path, models):
    folder = tmp_path / "run" / "evaluation"
    score = {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}}
    common = {"revision": None, "set": "s", "protocol": "p", "problems": 1, "samples_per_problem": 1, "by_level": {}}
    common |= {"temperature": 1.0, "mean_length_tokens": 1.0, "truncated_share": 0.0, "metrics": score}
    write_rows(folder, [{"model": model, **common} for model in models])
    (folder / "evaluation.png").write_bytes(b"old")
    for model in models:
        write_samples(folder / "samples" / file_name(model) / "s-p.jsonl", {"version": 1, "set": "s"}, [])
    return folder


@pytest.mark.parametrize(
    ("step", "kept"), [(4, ["checkpoint-2", "checkpoint-4", "org/base"]), (0, ["org/base"]), (9, None)]
)
def test_what_is_stale_is_forgotten(tmp_path, step, kept):
    models = ["checkpoint-2", "checkpoint-4", "checkpoint-6", "runs/run", "run", "org/base"]
    kept = models[:3] + models[5:] if kept is None else kept
    folder = stale_folder(tmp_path, models)
    forget_after(folder, step)
    assert [row["model"] for row in read_rows(folder)] == kept
    assert {path.name for path in (folder / "samples").iterdir()} == {file_name(model) for model in kept}
    assert "checkpoint-6" in (folder / "evaluation.md").read_text() or step != 9
    assert "runs/run" not in (folder / "evaluation.md").read_text()
    assert (folder / "evaluation.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_with_stale_rows_alone_has_no_table_afterwards(tmp_path):
    forget_after(tmp_path / "none", 0)
    assert not (tmp_path / "none").exists()
    folder = stale_folder(tmp_path, ["checkpoint-2", "runs/run"])
    forget_after(folder, 0)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    for damaged in ("{", '{"version": 1, "rows": [3]}', '{"version": 1, "rows": [{}]}'):
        (folder / "evaluation.json").write_text(damaged)
        with pytest.raises(ValueError, match="evaluation.json is damaged .*: delete it"):
            forget_after(folder, 0)


def results(output: str) -> list:
    return [json.loads(x.partition("RESULT ")[2])["logged"] for x in output.splitlines() if "RESULT " in x]


@pytest.mark.parametrize(
    "layout",
    [
        "ddp",
        pytest.param("fsdp2", marks=pytest.mark.slow),
        pytest.param("cpu_zero3", marks=[pytest.mark.slow, needs_deepspeed]),
    ],
)
def test_two_processes_evaluate_as_one(tmp_path, capfd, layout):
    run_evaluation.main(str(tmp_path / "1"))
    (alone,) = results(capfd.readouterr().out)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    if layout != "ddp":
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", on_cpus(layout, tmp_path)]
    done = subprocess.run(
        [*map(str, launch), run_evaluation.__file__, str(tmp_path / "2")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert results(done.stdout) == [alone, alone] and len(alone) == 2
    names = [f"samples/checkpoint-{step}/demo-demo.jsonl" for step in (2, 3)] + ["evaluation.json"]
    for name in names:
        one, two = ((tmp_path / str(n) / "evaluation" / name).read_bytes() for n in (1, 2))
        assert one == two


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps must be at least 1"),
        ({"protocol": "x"}, "unknown --protocol 'x'"),
        ({"sets": ["math500"]}, "has the sets demo"),
        ({"samples": 2}, "--metrics maj@4 wants 4 samples"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"max_context": 9, "every_n_steps": 4}, "within 9: raise --max_context"),
    ],
)
def test_wrong_settings_of_the_callback_are_found_before_training(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, callback=True, **settings)
    assert not (tmp_path / "evaluation").exists()
    assert not list(tmp_path.glob("checkpoint-*"))


# small parts


def test_ids_must_differ_and_names_become_file_names(sampler):
    data = Dataset.from_dict({"prompt": ["1", "2"], "answer": ["1", "2"], "id": ["a", "a"]})
    with pytest.raises(ValueError, match="two problems of 's' have the id 'a'"):
        as_problems(data, "s", sampler.tokenizer)
    assert file_name("Qwen/Qwen3-1.7B") == "Qwen_Qwen3-1.7B" and file_name("../..") == "_"
    assert len(file_name("a" * 300)) < 100 and file_name("a" * 300) != file_name("a" * 301)


def test_scores_of_a_set_without_levels(sampler):
    header = {
        "model": "m",
        "revision": "0123456789abcdef",
        "set": "s",
        "protocol": "p",
        "samples": 1,
        "temperature": 0.0,
    }
    sample = {"answer": "1", "correct": True, "length": 3, "truncated": False}
    row = score_row({**header, "metrics": ["pass@1"]}, [{"reference": {"answer": "1"}, "samples": [sample]}])
    assert row["by_level"] == {} and row["metrics"]["pass@1"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert "greedy" in markdown([row]) and "By difficulty" not in markdown([row])
