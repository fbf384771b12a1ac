"""Credit against the truth, and what runs learned with it, for docs/results/true_credit.md. All tables are in
benchmarks/results/true_credit_tables.md, and the page has some of them.

python benchmarks/true_credit.py audit demo                   # a part, such as demo_hum, demo_agent, sums_50, worked
python benchmarks/true_credit.py audit sums --model FOLDER    # parts of a language model need one; then any flag
python benchmarks/true_credit.py cost                         # tokens that chains sample
python benchmarks/true_credit.py learn                        # the runs on demo_agent that the raw data lack
python benchmarks/true_credit.py learn --model FOLDER         # those on sums
python benchmarks/true_credit.py projection                   # whole gradients against their projections
python benchmarks/true_credit.py tables                       # all tables, from the raw data, without a model
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hum
import numpy as np
import pandas as pd
from audited_runs import AGENT, FOLDER, SUMS, AuditedRuns
from fork_bed.analysis import verdicts
from fork_bed.progress import COMPARED
from fork_bed.store import read as read_forks
from forks import STORE
from pages import RESULTS, ROOT, table, write
from scipy.stats import spearmanr
from sums import write_sums, write_worked_sums

from trl_credit import DrGRPOConfig, GRPOConfig, GRPOTrainer, STraceConfig
from trl_credit.demo import DEMO_SETTINGS, demo_dataset, demo_model_path, demo_reward
from trl_credit.lab.audit.gradients import Projection, gradient_of
from trl_credit.lab.audit.run import _sampled as sampled_batches
from trl_credit.lab.audit.scores import Estimate, compare, progress_terms
from trl_credit.lab.comparison.scoring import compare_results
from trl_credit.lab.explain import explain
from trl_credit.lab.explain.measure import measured


HERE = Path(__file__).resolve().parent
PAGE = RESULTS / "true_credit.md"
ALL_TABLES = ROOT / "benchmarks" / "results" / "true_credit_tables.md"
OF_PAGE = ("learning", "learning_agent")  # of all tables
SINGLE = (
    "grpo",
    "s_trace",
    "p_trace",
    "grpo_lambda",
    "random=s_trace --selector random",
    "top_20=grpo --top_entropy_quantile 0.2",
    "s_trace_99=s_trace --trace_lambda 0.99",
    "s_trace_50=s_trace --selective_rate 0.5",
    "trace_alone=grpo --importance lambda_trace --trace_lambda 0.99",
    "trace_both=grpo --importance lambda_trace --trace_lambda 0.99 --trace_style both",
    "weight_past=grpo --loss_weight trace_past --trace_lambda 0.99",
    "weight_future=grpo --loss_weight trace_future --trace_lambda 0.99",
    "floor=grpo --advantage_floor -0.1",
)
OTHERS = ("dapo", "gspo", "gspo_token", "ha_dw", "opo", "fipo", "clip_cov", "kl_cov")
CHAINS = ("vine_ppo", "spo_chain")
TURNS = ("turns=spo_chain --segmentation turns",)
PARTS = ("demo", "demo_hum", "demo_agent", "sums", "sums_50", "sums_150", "worked")

HUM = {"s_trace": "S-trace", "s_trace_99": "s_trace_99", "random": "random", "p_trace": "P-trace", "top_20": "top_20"}
HUM |= {
    "trace": "trace_alone",
    "grpo_lambda": "GRPO-λ",
    "floor": "floor",
    "vine_ppo": "VinePPO",
    "spo_chain": "SPO-chain",
}
AUDITED = ("S-trace", "GRPO-λ", "P-trace", "SPO-chain", "HA-DW", "DAPO", "Dr. GRPO", "OPO", "VinePPO")
LABELS = {
    "random": "S-trace, random selector",
    "top_20": "top 20 % by entropy",
    "s_trace_99": "S-trace, λ = 0.99",
    "s_trace_50": "S-trace, ρ = 0.5",
    "trace_alone": "GRPO-λ, trace alone",
    "trace_both": "GRPO-λ, trace `both`",
    "weight_past": "GRPO-λ, ε-weight of the past",
    "weight_future": "GRPO-λ, ε-weight of the future",
    "floor": "GRPO with floor −0.1",
    "first_3": "the first three tokens alone (an oracle)",
}
COARSE = {"progress": 3, "progress difference": 3, "aim of stretches": 2, "bias": 2, "signal": 3}  # aim is too noisy
COLUMNS = {"progress": 3, "progress difference": 3, "aim": 2, "aim difference": 2, "bias": 2, "signal": 3}


def sums_flags(data: Path, model: str | None) -> str:
    """The flags of audits and runs on sums of two numbers."""
    write_sums(data / "sums.jsonl")
    task = f"--dataset_name {data}/sums.jsonl --reward {HERE}/sums.py:first_number --max_completion_length 6"
    return f"{of_model(model)} {task}"


def of_model(model: str | None) -> str:
    """The flags of a language model's parts."""
    return (
        f"--model_name_or_path {model} --dtype float32 --bf16 false --use_cpu true --prompt_style text:{{problem}} "
        "--num_generations 8 --per_device_train_batch_size 32"
    )


def audit(part: str, model: str | None, work: Path, flags: Sequence[str]) -> None:
    """Audits a part by the command, with further flags such as `--use_vllm`, and keeps what the tables need."""
    work.mkdir(parents=True, exist_ok=True)
    few = [*(f"--algo={name}" for name in SINGLE[:6])]
    if part.startswith("demo"):
        more = {"demo": OTHERS + CHAINS, "demo_hum": CHAINS[:1], "demo_agent": TURNS}[part]
        sizes = "--batches 20 --continuations 16" if part == "demo_hum" else "--batches 50 --responses 72"
        words = [*(f"--algo={name}" for name in SINGLE + more), "--dataset_name", part, *sizes.split()]
    elif part == "worked":
        write_worked_sums(work / "worked.jsonl")
        task = f"--dataset_name {work}/worked.jsonl --reward {HERE}/sums.py:after_so --max_completion_length 80"
        sizes = "--responses 24 --continuations 16 --token_budget 400000"
        words = [*few, *of_model(model).split(), *task.split(), *sizes.split()]
    else:
        words = [
            *few,
            *(f"--algo={name}" for name in (CHAINS if part == "sums" else CHAINS[1:])),
            f"--credit=first_3={HERE}/sums.py:first_three",
            *sums_flags(work, model).split(),
            *(["--batches", "50"] if part == "sums_150" else []),  # fewer prompts have signal
        ]
    folder = work / part
    command = [sys.executable, "-m", "trl_credit", "audit", *words, *flags, "--output_dir", str(folder)]
    subprocess.run(command, check=True)
    (FOLDER / part).mkdir(parents=True, exist_ok=True)
    for name in ("audit.json", "tokens.parquet"):
        shutil.copy(folder / name, FOLDER / part / name)
    with np.load(folder / "gradients.npz") as file:
        np.savez_compressed(FOLDER / part / "gradients.npz", **{name: file[name].astype(np.float32) for name in file})


def read(part: str) -> dict[str, Any]:
    """The scores of a part."""
    return json.loads((FOLDER / part / "audit.json").read_text(encoding="utf-8"))


def done() -> list[str]:
    """The parts that were run."""
    return [part for part in PARTS if (FOLDER / part / "audit.json").exists()]


def recomputed(part: str) -> dict[str, dict[str, Estimate]]:
    """The scores of a part, from its tokens and products of gradients. The sign's are not exact: its least standard
    deviation depends on the continuations."""
    tokens = measured_tokens(part)
    names = [name.removeprefix("credit: ") for name in tokens if name.startswith("credit: ")]
    with np.load(FOLDER / part / "gradients.npz") as file:
        gradients = {name: file[name].astype(float) for name in names if name in file}
    return compare(tokens, {name: tokens[f"credit: {name}"].to_numpy() for name in names}, gradients, floor=0.0)


def audit_table(part: str) -> str:
    """Progress and aim of a part's algorithms."""
    whole, rows = read(part), []
    scores = whole["scores"]
    columns = COLUMNS if scores["GRPO"]["aim"]["value"] is not None else COARSE
    for name, of in scores.items():
        cells = [in_words(of[column], digits) for column, digits in columns.items()]
        rows.append([LABELS.get(name, name), *cells])
    if whole["best_progress"]["value"] is not None:
        rows.append(["ΔV itself", in_words(whole["best_progress"], 3), *["–"] * (len(columns) - 1)])
    heads = ["minus GRPO's" if "difference" in column else column for column in columns]
    return table([part.replace("_", " "), *heads], rows)


def in_words(estimate: dict[str, float | None], digits: int) -> str:
    """A value with half of its interval; bold where a difference's interval is without 0."""
    if estimate["value"] is None:
        return "–"
    half = (estimate["high"] - estimate["low"]) / 2
    return f"{estimate['value']:.{digits}f} ± {half:.{digits}f}".replace("-", "−")


def learning_table(runs: AuditedRuns) -> str:
    """Area minus GRPO's, beside what the audit said before training."""
    measures = ("progress difference", "aim difference")
    said = {name: [in_words(of[x], 3) for x in measures] for name, of in read(runs.part)["scores"].items()}
    return runs.table(said, LABELS)


def predicted_table() -> str:
    """Rank correlations, over algorithms, of what audits say and what runs learned."""
    learned = {}
    for of, task in ((SUMS, "sums"), (AGENT, "`demo_agent`")):
        for what, tuned in ((f"rate {of.rates[1]}", False), ("tuned", True)):
            if difference := of.learned(tuned=tuned):
                learned[f"{task}, {what}"] = (of.part, difference)
    results = json.loads((RESULTS / "embedded" / "results.json").read_text(encoding="utf-8"))
    verdict = {row.label: row.difference for row in compare_results(results, "area")}
    learned["`demo`, rate 1e-4"] = ("demo", {name: x for name, x in verdict.items() if name in AUDITED})
    every = hum.read()
    for what, tuned in (("`demo_hum`, rate 2.5e-5", False), ("`demo_hum`, tuned", True)):
        own = {label: hum.against_grpo(every, name, tuned=tuned).value for name, label in HUM.items()}
        learned[what] = ("demo_hum", own)
    rows = []
    for what, (part, difference) in learned.items():
        if part in done():
            scores = read(part)["scores"]
            cells, names = [], [name for name in difference if name in scores]
            for measure in ("progress difference", "aim difference"):
                known = [n for n in names if scores[n][measure]["value"] is not None]
                cells.append(rank([scores[n][measure]["value"] for n in known], [difference[n] for n in known]))
            rows.append([what, str(len(names)), *cells])
    forks = read_forks(STORE)
    for setting in "ACE":
        progress = forks["units"][f"progress/{setting}"]
        for what, tuned in (("rate 0.02", False), ("tuned", True)):
            learned_there = verdicts(forks, setting, tuned=tuned)
            pairs = [(np.mean(progress[name]), learned_there[name].test.value) for name in COMPARED]
            rows.append([f"testbed {setting}, {what}", str(len(pairs)), rank(*zip(*pairs, strict=True)), "–"])
    return table(["runs", "algorithms", "rank correlation with progress", "with aim"], rows)


def rank(first: Sequence[float], second: Sequence[float]) -> str:
    """Spearman's rank correlation."""
    return f"{spearmanr(first, second).statistic:.2f}".replace("-", "−")


def coverage_table() -> str:
    """How often the intervals hold the truth, over algorithms, and the mean estimate over the truth."""
    results = json.loads((FOLDER / "coverage.json").read_text(encoding="utf-8"))
    measures = (
        "V",
        "ΔV",
        "aim",
        "aim difference",
        "focus",
        "bias",
        "signal",
        "progress",
        "progress difference",
        "best progress",
    )
    rows = []
    for measure in measures:
        cells = []
        for of in results.values():
            shares = [x for key, x in of["inside"].items() if key.rpartition(": ")[2] == measure]
            means = [x for key, x in of["true, mean, sd"].items() if key.rpartition(": ")[2] == measure]
            bias = max((abs(mean - true) for true, mean, _ in means), default=float("nan"))
            ends = f"{np.mean(shares):.3f}" if shares else "–"
            ends += f" ({min(shares):.3f} to {max(shares):.3f})" if len(shares) > 1 else ""
            cells += [ends, "–" if np.isnan(bias) else f"{bias:.3f}"]
        rows.append([measure.replace("best progress", "ΔV itself"), *cells])
    heads = [head for label in results for head in (f"{label}: inside", "largest bias")]
    return table(["measure", *heads], rows)


def cost() -> None:
    """Measures the tokens that chains sample on `demo` before training, divided by those of the responses."""
    sampled = {}
    for name, label in (("vine_ppo", "VinePPO"), ("spo_chain", "SPO-chain")):
        with tempfile.TemporaryDirectory() as folder:
            words = f"--algo {name} --max_steps 8 --learning_rate 1e-12 --logging_steps 1 --log_credit 0 --seed 100"
            words += f" --report_to none --output_dir {folder}"
            subprocess.run([sys.executable, "-m", "trl_credit", "train", *words.split()], check=True)
            log = json.loads((Path(folder) / "checkpoint-8" / "trainer_state.json").read_text(encoding="utf-8"))[
                "log_history"
            ]
        shares = [row["credit/rollout_token_share"] for row in log if "credit/rollout_token_share" in row]
        sampled[label] = round(1 / (1 - float(np.mean(shares))), 2)
    (FOLDER / "cost.json").write_text(json.dumps(sampled) + "\n", encoding="utf-8")


def cost_table() -> str:
    """Progress on `demo` per token sampled and per token with credit, GRPO's as 1."""
    sampled = json.loads((FOLDER / "cost.json").read_text(encoding="utf-8"))
    tokens, scores, rows = measured_tokens("demo"), read("demo")["scores"], []
    for name in ("GRPO", "top_20", "VinePPO", "SPO-chain"):
        more = sampled.get(name, 1.0)
        trained = (tokens[f"credit: {name}"] != 0).mean() / (tokens["credit: GRPO"] != 0).mean()
        worth = scores[name]["progress"]["value"] / scores["GRPO"]["progress"]["value"]
        cells = [f"{x:.{digits}f}" for x, digits in ((worth, 2), (more, 1), (worth / more, 3), (trained, 2))]
        rows.append([LABELS.get(name, name), *cells, f"{worth / trained:.2f}"])
    heads = ["progress", "tokens sampled", "progress per token sampled", "tokens with credit"]
    return table(["divided by GRPO's", *heads, "progress per token with credit"], rows)


def measured_tokens(part: str) -> pd.DataFrame:
    """The measured tokens of a part."""
    return pd.read_parquet(FOLDER / part / "tokens.parquet")


def page_tables() -> dict[Path, dict[str, str]]:
    """The tables of the page and of the file that has all of them, by name."""
    tables = {part: audit_table(part) for part in done()}
    tables |= {
        "cost": cost_table(),
        "learning": learning_table(SUMS),
        "learning_agent": learning_table(AGENT),
        "predicted": predicted_table(),
        "coverage": coverage_table(),
    }
    return {PAGE: {name: tables[name] for name in OF_PAGE}, ALL_TABLES: tables}


def projection() -> None:
    """Prints progress on `demo` from whole gradients and from their projections: 20 batches of GRPO and S-trace."""
    args = GRPOConfig(output_dir="unused", report_to="none", **DEMO_SETTINGS)
    configs = {"GRPO": args, "S-trace": STraceConfig(output_dir="unused", report_to="none", **DEMO_SETTINGS)}
    configs["Dr. GRPO"] = DrGRPOConfig(output_dir="unused", report_to="none", **DEMO_SETTINGS)
    trainer = GRPOTrainer(demo_model_path(), demo_reward, args, train_dataset=demo_dataset())
    whole, projected = {name: [] for name in configs}, {name: [] for name in configs}
    with tempfile.TemporaryDirectory() as folder:
        parts = sampled_batches(trainer, Path(folder), 20)
    for shard, _ in parts:
        shard = measured(shard, trainer.model, trainer.tokenizer)
        for name, config in configs.items():
            explained = explain(shard, config, name=name)
            rows = zip(explained.shard.responses, explained.divisors, strict=True)
            credit = [np.array(response["credit"]) / divisor for response, divisor in rows]
            for kind, store in ((Projection(trainer.model), projected), (Whole(trainer.model), whole)):
                store[name].append(gradient_of(trainer.engine, explained.shard.responses, credit, kind).astype(float))
    for what, store in (("whole", whole), ("projected", projected)):
        p = np.stack(store["Dr. GRPO"])
        for name in ("GRPO", "S-trace"):
            g = np.stack(store[name])
            print(what, name, f"progress {progress_terms(p @ p.T, p @ g.T, g @ g.T)[0][2]:.4f}")


class Whole:
    """Gradients as they are."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def take(self) -> np.ndarray:
        """All numbers of the gradients, which it removes."""
        parts = [x.grad.flatten().numpy() for x in self.model.parameters()]
        self.model.zero_grad()
        return np.concatenate(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("what", choices=("audit", "cost", "learn", "projection", "tables"))
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--model", help="folder or id of a language model")
    parser.add_argument("--work", type=Path, default=Path("true_credit"), help="folder for what a resume needs")
    args, flags = parser.parse_known_args()
    if flags and args.what != "audit":
        parser.error(f"unknown: {' '.join(flags)}")
    if args.what == "audit":
        audit(args.part, args.model, args.work, flags)
    elif args.what == "learn" and args.model is None:
        AGENT.learn("--dataset_name demo_agent")
    elif args.what == "learn":
        args.work.mkdir(parents=True, exist_ok=True)
        SUMS.learn(sums_flags(args.work, args.model))
    elif args.what == "cost":
        cost()
    elif args.what == "projection":
        projection()
    else:
        for path, tables in page_tables().items():
            write(path, tables)


if __name__ == "__main__":
    main()
