"""The tables of docs/results/demos.md on teachers, from the runs and audits of the commands on that page.

python benchmarks/teacher_page.py keep FOLDER    # takes over FOLDER/compare/TASK and FOLDER/audit/TASK

Then `python benchmarks/which.py` writes the tables.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from pages import RESULTS, table

from trl_credit.lab.statistics import TTest, holm, paired_t
from trl_credit.support.files import read_json, write_atomically


STORE = RESULTS / "teacher"
TASKS = ("demo", "demo_hum")
LABELS = {
    "grpo": "GRPO",
    "rlsd": "RLSD, told the answer",
    "rlsd_wrong": "RLSD, told a wrong answer",
    "opd_tenth": "OPD, c = 0.1, told the answer",
    "opd": "OPD, told the answer",
    "opd_wrong": "OPD, told a wrong answer",
    "opd_better": "OPD, a better model",
    "Dr. GRPO": "Dr. GRPO",
}
TEACHERS = {"told": "told the answer", "told_wrong": "told a wrong answer", "better": "a better model"}
COST = 3 / 4  # of the updates of GRPO at equal tokens of forward passes: a loss counts three, a teacher one
Runs = dict[tuple[str, str], dict[str, dict[int, list[float]]]]  # task and label → rate → seed → reward of each update


def keep(folder: Path) -> None:
    """Takes over the rewards of all runs of comparisons, and the scores of audits."""
    lines, audits = [], {}
    for task in TASKS:
        grid = read_json(folder / "compare" / task / "grid.json")["runs"]
        for name, run in grid.items():
            label, rate, seed = name.split("/")
            log = folder / "compare" / task / "logs" / f"{name}.jsonl"
            rewards = [json.loads(line)["reward"] for line in log.read_text().splitlines()]
            row = {"task": task, "label": label, "rate": rate.partition("-")[2], "seed": int(seed.partition("-")[2])}
            lines.append(json.dumps(row | {"phase": run["phase"], "reward": [round(x, 4) for x in rewards]}) + "\n")
        audits[task] = read_json(folder / "audit" / task / "audit.json")["scores"]
    write_atomically(STORE / "runs.jsonl", "".join(lines))
    write_atomically(STORE / "audits.json", json.dumps(audits, indent=1) + "\n")


def read_runs(*, phase: str) -> Runs:
    """The runs of a phase, "tuning" or "verdict"."""
    runs: Runs = defaultdict(lambda: defaultdict(dict))
    for row in map(json.loads, (STORE / "runs.jsonl").read_text(encoding="utf-8").splitlines()):
        if row["phase"] == phase:
            runs[row["task"], row["label"]][row["rate"]][row["seed"]] = row["reward"]
    return runs


def runs_table() -> str:
    """Every algorithm against GRPO, at equal updates and at equal tokens of forward passes."""
    runs, rows = read_runs(phase="verdict"), []
    for task in TASKS:
        ((base_rate, base),) = runs[task, "grpo"].items()
        labels = [label for of, label in runs if of == task and label != "grpo"]
        tests: dict[float, list[TTest]] = {}
        for share in (1.0, COST):
            tests[share] = []
            for label in labels:
                ((_, own),) = runs[task, label].items()
                areas = [np.mean(own[s][: round(share * len(own[s]))]) - np.mean(base[s]) for s in sorted(base)]
                tests[share].append(paired_t(np.array(areas)))
        adjusted = {share: holm([test.p for test in of]) for share, of in tests.items()}
        mean = np.mean([np.mean(x) for x in base.values()])
        rows.append([f"`{task}`: GRPO", base_rate, f"{mean:.3f}", ""])
        for k, label in enumerate(labels):
            cells = [cell(tests[share][k], adjusted[share][k]) for share in tests]
            rows.append([f"`{task}`: {LABELS[label]}", next(iter(runs[task, label])), *cells])
    return table(["area minus GRPO's", "best rate", "equal updates", "equal tokens of passes"], rows)


def cell(test: TTest, corrected: float) -> str:
    """A difference and half of its interval, bold if it survives the correction."""
    text = f"{test.value:+.3f} ± {test.high - test.value:.3f}".replace("-", "−")
    return f"**{text}**" if corrected < 0.05 else text


def audit_table() -> str:
    """Aim and progress."""
    rows = []
    for task, scores in read_json(STORE / "audits.json").items():
        for label in (label for label in LABELS if label in scores):
            of = {name: in_words(scores[label][name]) for name in ("aim", "progress", "progress difference")}
            rows.append([f"`{task}`: {LABELS[label]}", *of.values()])
    return table(["credit", "aim", "progress", "minus GRPO's"], rows)


def in_words(estimate: dict[str, Any]) -> str:
    """Such as "0.10 [0.01, 0.19]"."""
    return "{value:.2f} [{low:.2f}, {high:.2f}]".format(**estimate).replace("-", "−")


def shares_table() -> str:
    """Where teachers differ from the policy."""
    rows = []
    for name, row in read_json(STORE / "shares.json").items():
        task, _, kind = name.partition("/")
        shares = [f"{row[key]:.0%}" for key in ("tokens", "results", "last")]
        gaps = [f"{row[key]:+.2f}".replace("-", "−") for key in ("step right", "step wrong", "end right", "end wrong")]
        rows.append([f"`{task}`: {TEACHERS[kind]}", *shares, *gaps])
    head = ["teacher", "results among tokens", "of all abs(d)", "on the last one", "d, right step", "wrong step"]
    return table([*head, "last, right", "last, wrong"], rows)


def tables() -> dict[str, str]:
    """The tables by name."""
    return {"runs": runs_table(), "audits": audit_table(), "shares": shares_table()}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keep",))
    parser.add_argument("folder", type=Path)
    keep(parser.parse_args().folder)


if __name__ == "__main__":
    main()
