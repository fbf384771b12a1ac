"""What groups with signal cost and gain on the embedded task: keep, replace, refill and the difficulty sampler, paired.

    python benchmarks/groups.py [--seeds 0 1 …] [--output_dir comparison/groups]     # about half an hour on two cores
    python benchmarks/groups.py --output_dir comparison/groups --table               # of runs that are there

Runs `trl-credit compare`, which writes its report into the folder, and prints a table of what the runs sampled. The
score is the mean of 16 samples per problem of the protocol `demo`, whatever prompts a run draws. Rewards are no
score here: they are those of the prompts that were drawn.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import numpy as np

from trl_credit.lab.comparison.histories import read_history
from trl_credit.runs.checkpoints import last_checkpoint


METRIC = "eval_demo/pass@1"
MODES = {
    "keep": "",
    "replace": " --groups replace",
    "refill": " --groups refill",
    "difficulty": " --prompt_sampler difficulty",
}


def command(output_dir: Path, seeds: list[int]) -> list[str]:
    """The comparison, all modes with GRPO's settings."""
    entries = [f"{name}=grpo{flags}" for name, flags in MODES.items()]
    score = ["--metric", METRIC, "--evaluation_protocol", "demo", "--evaluate_every", "20", "--max_steps", "120"]
    where = ["--seeds", *map(str, seeds), "--output_dir", str(output_dir)]
    return [sys.executable, "-m", "trl_credit", "compare", "--algo", *entries, "--baseline", "keep", *score, *where]


def row_of(name: str, folder: Path) -> str:
    """A row of the table, from all runs of a mode."""
    histories, logs = [], []
    for run in sorted((folder / "runs" / name).iterdir()):
        histories.append(read_history(run, metric=METRIC))
        state = json.loads((last_checkpoint(run) / "trainer_state.json").read_text(encoding="utf-8"))
        logs.append([row for row in state["log_history"] if "credit/groups_without_signal" in row])

    def mean(key: str, default: float) -> float:
        return fmean(row.get(key, default) for log in logs for row in log)

    shares = 1 - mean("credit/groups_without_signal", 0.0), mean("credit/groups/copies", 0.0)
    prompts, tokens = (fmean(h.totals[axis] for h in histories) for axis in ("prompts", "generated"))
    # at equally many tokens: those of `keep`, which generates the fewest
    limit = fmean(read_history(run, metric=METRIC).totals["generated"] for run in (folder / "runs" / "keep").iterdir())
    area = fmean(h.values.mean() for h in histories)
    at_equal = fmean(float(np.interp(limit, h.axes["generated"], h.values)) for h in histories)
    end = fmean(h.values[-1] for h in histories)
    cells = [f"`{name}`", len(histories), f"{100 * shares[0]:.1f} %", f"{shares[1]:.2f}", f"{prompts:,.0f}"]
    cells += [f"{tokens:,.0f}", f"{area:.3f}", f"{end:.3f}", f"{at_equal:.3f}"]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--output_dir", type=Path, default=Path("comparison/groups"))
    parser.add_argument("--table", action="store_true", help="Print the table of runs that are there.")
    args = parser.parse_args()
    if not args.table:
        subprocess.run(command(args.output_dir, args.seeds), check=True)
    heads = "mode, runs, groups with signal in a batch, copies, prompts sampled, tokens generated".split(", ")
    heads += ["pass@1: mean over the run", "end", "at equal tokens"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in MODES:
        print(row_of(name, args.output_dir))


if __name__ == "__main__":
    main()
