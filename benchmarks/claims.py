"""What the papers say of their algorithms, looked for in finished runs on the embedded task: three tables.

    python benchmarks/claims.py clip RUN [RUN ...]       share of tokens that the clip range takes out of the gradient
    python benchmarks/claims.py norm RUN [RUN ...]       gradient norms
    python benchmarks/claims.py hard RUN [RUN ...]       accuracy by how many of a problem's six facts were mis-taught

A RUN is a folder of `trl-credit compare`, `…/runs/ALGORITHM/seed-N`. docs/results/embedded.md has the tables.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.demo.task import DEMO, mistaught_facts, work_out
from trl_credit.runs.checkpoints import last_checkpoint


SAMPLES = 8  # of each problem
PROBLEMS = 512


def logged(run: Path, name: str) -> np.ndarray:
    """A number of every optimizer step that has it."""
    state = json.loads((last_checkpoint(run) / "trainer_state.json").read_text(encoding="utf-8"))
    return np.array([row[name] for row in state["log_history"] if name in row])


def grouped(runs: Iterable[Path]) -> dict[str, list[Path]]:
    """Runs by the folder above them, the name in the comparison."""
    found: dict[str, list[Path]] = defaultdict(list)
    for run in runs:
        found[run.parent.name].append(run)
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    for row in (head, ["---"] + ["--:"] * (len(head) - 1), *rows):
        print("| " + " | ".join(row) + " |")


def clip(runs: Sequence[Path]) -> None:
    """Mean over steps, then over runs, with the lowest and the highest run."""
    rows = []
    for name, own in grouped(runs).items():
        tokens, responses = (
            [100 * logged(run, key).mean() for run in own]
            for key in ("credit/clip_fraction", "credit/clip_fraction/response_mean")
        )
        rows.append(
            [name, str(len(own)), *(f"{np.mean(x):.2f} ({min(x):.2f} to {max(x):.2f})" for x in (tokens, responses))]
        )
    table(["algorithm", "runs", "% of tokens", "% of tokens, mean over responses"], rows)


def norm(runs: Sequence[Path]) -> None:
    """Before clipping to `max_grad_norm`: quartiles over the steps of all runs, and the largest."""
    rows = []
    for name, own in grouped(runs).items():
        norms = np.concatenate([logged(run, "grad_norm") for run in own])
        low, middle, high, most = np.quantile(norms, [0.25, 0.5, 0.75, 0.99])
        share = 100 * (norms > 5 * middle).mean()
        numbers = (f"{x:.2f}" for x in (low, middle, high, most, norms.max()))
        rows.append([name, str(len(own)), *numbers, f"{share:.1f}"])
    table(["algorithm", "runs", "25 %", "median", "75 %", "99 %", "largest", "% above 5 medians"], rows)


def hard(runs: Sequence[Path]) -> None:
    """Accuracy at temperature 1 on problems of another seed than training's, mean over runs and its standard error."""
    data = demo_dataset(PROBLEMS, seed=1)
    wrong = mistaught_facts()
    n_wrong = np.array([sum(s[:3] in wrong for s in work_out(prompt).split(";")) for prompt in data["prompt"]])
    parts = {"0": n_wrong == 0, "1": n_wrong == 1, "2": n_wrong == 2, "3 and more": n_wrong >= 3}
    rows = []
    for name, own in {"start": [Path(demo_model_path())], **grouped(runs)}.items():
        found = np.stack([accuracy(run, data) for run in own])
        cells = []
        for part in parts.values():
            scores = found[:, part].mean(axis=1)
            error = f" ± {scores.std(ddof=1) / np.sqrt(len(scores)):.3f}" if len(scores) > 1 else ""
            cells.append(f"{scores.mean():.3f}{error}")
        rows.append([name, str(len(own)), *cells])
    head = [f"{name} mis-taught ({part.sum()} problems)" for name, part in parts.items()]
    table(["algorithm", "runs", *head], rows)


def accuracy(model_path: Path, data) -> np.ndarray:
    """Share of right responses to each problem, shape (problems,)."""
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    model = AutoModelForCausalLM.from_pretrained(model_path)
    inputs = tokenizer(list(data["prompt"]), return_tensors="pt", padding=True, return_token_type_ids=False)
    n = inputs["input_ids"].size(1)
    how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": DEMO.max_completion_length}
    found = []
    for _ in range(SAMPLES):
        with torch.no_grad():
            ids = model.generate(**inputs, **how)
        texts = tokenizer.batch_decode(ids[:, n:], skip_special_tokens=True)
        found.append(demo_reward(texts, data["answer"]))
    return np.array(found).mean(axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["clip", "norm", "hard"])
    parser.add_argument("runs", nargs="+", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    {"clip": clip, "norm": norm, "hard": hard}[args.what](args.runs)


if __name__ == "__main__":
    main()
