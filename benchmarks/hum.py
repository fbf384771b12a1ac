"""Runs of the real trainer on `demo_hum`, the embedded task with loose filler, for docs/results/demos.md.

python benchmarks/hum.py run [--jobs 2]    # the runs that docs/results/hum/runs.jsonl lacks, five core-hours for all
python benchmarks/hum.py check s_trace     # a line of the page anew: its runs and GRPO's, 12 minutes on two cores
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fork_bed.analysis import Verdict
from fork_bed.page import cell, difference
from pages import RESULTS, table

from trl_credit.lab.comparison.histories import read_history
from trl_credit.lab.statistics import TTest, holm, paired_t
from trl_credit.support.files import write_atomically


STORE = RESULTS / "hum" / "runs.jsonl"
RATES = ("2.5e-5", "5e-5", "1e-4")
UNTUNED = RATES[0]  # the smallest, as on the bed
TUNING, VERDICT = (100, 101), (0, 1, 2, 3, 4, 5)
SHARED = "--dataset_name demo_hum --logging_steps 1 --log_credit 0 --disable_tqdm true --report_to none".split()
_SINGLE = "--max_steps 60"
_FEW = "--per_device_train_batch_size 32"  # 4 prompts per update, since rollouts are expensive
_ROLLOUTS = f"--max_steps 30 {_FEW} --rollout_batch_size 128 --num_iterations 1 --beta 0"
_LAMBDA = "--algo grpo --importance lambda_trace --trace_lambda 0.99"


@dataclass(frozen=True)
class Entry:
    """An algorithm: its name in tables, its flags of `trl-credit train`, and the entry that it is compared with."""

    label: str
    flags: str
    baseline: str = "grpo"


ENTRIES = {
    "grpo": Entry("GRPO", f"--algo grpo {_SINGLE}"),
    "s_trace": Entry("S-trace", f"--algo s_trace --beta 0 {_SINGLE}"),
    "s_trace_99": Entry("S-trace, λ = 0.99", f"--algo s_trace --trace_lambda 0.99 --beta 0 {_SINGLE}"),
    "random": Entry("S-trace, random selector", f"--algo s_trace --selector random --beta 0 {_SINGLE}"),
    "p_trace": Entry("P-trace", f"--algo p_trace --beta 0 {_SINGLE}"),
    "top_20": Entry("top 20 % by entropy", f"--algo grpo --top_entropy_quantile 0.2 {_SINGLE}"),
    "trace": Entry("GRPO-λ, trace alone", f"{_LAMBDA} {_SINGLE}"),
    "trace_floor": Entry("GRPO-λ, trace and floor", f"{_LAMBDA} --advantage_floor -0.1 {_SINGLE}"),
    "trace_beta": Entry("GRPO-λ, trace and β", f"{_LAMBDA} --beta 0.04 {_SINGLE}"),
    "grpo_lambda": Entry("GRPO-λ, trace, floor and β", f"--algo grpo_lambda {_SINGLE}"),
    "floor": Entry("GRPO with floor −0.1", f"--algo grpo --advantage_floor -0.1 {_SINGLE}"),
    "beta": Entry("GRPO with β = 0.04", f"--algo grpo --beta 0.04 {_SINGLE}"),
    "floor_beta": Entry("GRPO with floor −0.1 and β", f"--algo grpo --advantage_floor -0.1 --beta 0.04 {_SINGLE}"),
    "grpo_32": Entry("GRPO", f"--algo grpo --max_steps 150 {_FEW}", "grpo_32"),
    "vine_ppo": Entry("VinePPO", f"--algo vine_ppo {_ROLLOUTS}", "grpo_32"),
    "spo_chain": Entry("SPO-chain", f"--algo spo_chain --cutpoint_interval 2 {_ROLLOUTS}", "grpo_32"),
}


class Unit(NamedTuple):
    """One run."""

    entry: str
    rate: str
    seed: int


Runs = dict[Unit, dict[str, Any]]  # reward of every update, generated tokens up to it where they matter


def read(path: Path = STORE) -> Runs:
    """The finished runs of the file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {Unit(row.pop("entry"), row.pop("rate"), row.pop("seed")): row for row in map(json.loads, lines)}


def write(runs: Runs, path: Path = STORE) -> None:
    """Writes the file, runs in the order of entries, rates and seeds."""
    order = sorted(runs, key=lambda unit: (list(ENTRIES).index(unit.entry), RATES.index(unit.rate), unit.seed))
    write_atomically(path, "".join(json.dumps(unit._asdict() | runs[unit]) + "\n" for unit in order))


def area(run: dict[str, Any], updates: int | None = None) -> float:
    """Mean reward over the run, or over its first updates."""
    return float(np.mean(run["reward"][:updates]))


def best_rate(runs: Runs, entry: str) -> str:
    """The rate with the largest mean area over the tuning seeds, the first one of several."""
    return max(RATES, key=lambda rate: np.mean([area(runs[Unit(entry, rate, seed)]) for seed in TUNING]))


def units(runs: Runs) -> Iterator[list[Unit]]:
    """What has to be run: first the tuning, then the verdict at the rates that it has chosen, then at the smallest."""
    yield [Unit(entry, rate, seed) for entry in ENTRIES for rate in RATES for seed in TUNING]
    yield [Unit(entry, best_rate(runs, entry), seed) for seed in VERDICT for entry in ENTRIES]
    yield [Unit(entry, UNTUNED, seed) for seed in VERDICT for entry in ENTRIES]


def train(unit: Unit) -> dict[str, Any]:
    """Trains in a process of its own, as a user would.

    Raises:
        SystemExit: the run failed.
    """
    flags = [*ENTRIES[unit.entry].flags.split(), "--learning_rate", unit.rate, "--seed", str(unit.seed)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trl_credit", "train", *flags, *SHARED, "--output_dir", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"error: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
        history = read_history(folder)
    measured: dict[str, Any] = {"reward": [round(reward, 4) for reward in history.values.tolist()]}
    generated = [round(tokens) for tokens in history.axes["generated"].tolist()]
    # at equal updates all others generate as many tokens as GRPO: the sum is enough
    return measured | {"generated": generated if ENTRIES[unit.entry].baseline == "grpo_32" else generated[-1]}


def train_all(todo: Sequence[Unit], *, jobs: int) -> Iterator[tuple[Unit, dict[str, Any]]]:
    """Trains several at a time; yields each when it has finished."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(train, unit): unit for unit in todo}
        for done, future in enumerate(as_completed(futures), 1):
            if future.exception():
                pool.shutdown(cancel_futures=True)
            history = future.result()
            print(f"{done}/{len(todo)} {' '.join(map(str, futures[future]))}: area {area(history):.3f}", flush=True)
            yield futures[future], history


def run(*, jobs: int) -> None:
    """Trains what the file lacks, and adds it."""
    runs = read()
    for phase in units(runs):
        for unit, history in train_all([unit for unit in dict.fromkeys(phase) if unit not in runs], jobs=jobs):
            runs[unit] = history
            write(runs)


def check(entry: str | None, *, jobs: int) -> None:
    """Trains an entry and its baseline anew with the seeds of the verdict, at the tuned and the untuned rate, and
    prints the differences beside those of the file.

    Raises:
        SystemExit: there is no such entry, or a difference lies outside of the file's interval.
    """
    if entry not in ENTRIES or ENTRIES[entry].baseline == entry:
        raise SystemExit(f"error: name what to check: {', '.join(e for e in ENTRIES if ENTRIES[e].baseline != e)}")
    runs = read()
    todo = dict.fromkeys(
        Unit(name, rate, seed)
        for name in (ENTRIES[entry].baseline, entry)
        for rate in (best_rate(runs, name), UNTUNED)
        for seed in VERDICT
    )
    anew = runs | dict(train_all(list(todo), jobs=jobs))
    worst, inside = max(abs(area(anew[unit]) - area(runs[unit])) for unit in todo), True
    # one machine repeats its runs to the bit; another one may round otherwise, and then samples other responses
    print(f"largest difference of a run's area from the file: {worst:.5f}")
    for tuned in (True, False):
        new, stored = (against_grpo(one, entry, tuned=tuned) for one in (anew, runs))
        inside = inside and stored.low <= new.value <= stored.high
        numbers = [f"{test.value:+.3f} [{test.low:+.3f}, {test.high:+.3f}]" for test in (new, stored)]
        print(f"{'tuned' if tuned else 'small rate'}: area minus GRPO's {numbers[0]}, in the file {numbers[1]}")
    if not inside:
        raise SystemExit("error: a difference lies outside of the file's interval")


# Differences from GRPO, and the tables of docs/results/demos.md that show them


SINGLE = tuple(name for name, entry in ENTRIES.items() if entry.baseline == "grpo" and name != "grpo")
ROLLOUTS = tuple(name for name, entry in ENTRIES.items() if entry.baseline == "grpo_32" and name != "grpo_32")
FACTORS = {  # trace, floor, β
    "grpo": (0, 0, 0),
    "beta": (0, 0, 1),
    "floor": (0, 1, 0),
    "floor_beta": (0, 1, 1),
    "trace": (1, 0, 0),
    "trace_beta": (1, 0, 1),
    "trace_floor": (1, 1, 0),
    "grpo_lambda": (1, 1, 1),
}
Score = Callable[[dict[str, Any]], float]  # of a run


def rate_of(runs: Runs, entry: str, *, tuned: bool) -> str:
    """The learning rate of an entry: its best one on the tuning seeds, or the smallest."""
    return best_rate(runs, entry) if tuned else UNTUNED


def scores(runs: Runs, entry: str, *, tuned: bool, score: Score = area) -> np.ndarray:
    """The scores of an entry on the seeds of the verdict, shape (seeds,)."""
    rate = rate_of(runs, entry, tuned=tuned)
    return np.array([score(runs[Unit(entry, rate, seed)]) for seed in VERDICT])


def against_grpo(runs: Runs, entry: str, *, tuned: bool, score: Score | None = None) -> TTest:
    """The paired test of an entry against GRPO, each at its own rate. The score is the area over equally many updates,
    unless another one is given."""
    score = score or area_score(runs, entry)
    own, base = (scores(runs, name, tuned=tuned, score=score) for name in (entry, ENTRIES[entry].baseline))
    return paired_t(own - base)


def area_score(runs: Runs, entry: str) -> Score:
    """The area over the updates that the runs of an entry and its baseline have."""
    return rollout_score(runs, equal="updates") if entry in ROLLOUTS else area


def verdicts(runs: Runs, entries: tuple[str, ...], *, tuned: bool, score: Score | None = None) -> dict[str, Verdict]:
    """The tests of several entries with Holm's correction over them."""
    tests = {name: against_grpo(runs, name, tuned=tuned, score=score) for name in entries}
    adjusted = holm([test.p for test in tests.values()])
    return {
        name: Verdict(test, float(rate_of(runs, name, tuned=tuned)), p)
        for (name, test), p in zip(tests.items(), adjusted, strict=True)
    }


def third(number: int) -> Score:
    """Mean reward of a third of the run, by its number from 0."""
    return lambda run: float(np.mean(np.array_split(run["reward"], 3)[number]))


def main_effect(scores_of: Mapping[str, np.ndarray], factor: int) -> TTest:
    """The mean of the four variants with a part of GRPO-λ minus that of the four without it, paired by seed.

    `scores_of` has the scores of each variant of `FACTORS`, shape (seeds,).
    """
    signed = [(2 * levels[factor] - 1) * scores_of[name] for name, levels in FACTORS.items()]
    return paired_t(np.sum(signed, axis=0) / 4)


def factorial_table(columns: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """What each part of GRPO-λ's preset adds, a column for each head; Holm's correction is over the three parts."""
    cells = []
    for head, scores_of in columns.items():
        effects = [main_effect(scores_of, factor) for factor in range(3)]
        adjusted = holm([effect.p for effect in effects])
        pairs = zip(effects, adjusted, strict=True)
        cells.append([cell(Verdict(effect, 0.0, p), tuned=head == "rate tuned") for effect, p in pairs])
    parts = ("trace, λ = 0.99", "floor −0.1", "β = 0.04")
    rows = [[part, *effects] for part, *effects in zip(parts, *cells, strict=True)]
    return table(["main effect on the area", *columns], rows)


def hum_factorial(runs: Runs) -> str:
    """The factorial on `demo_hum`."""
    heads = {"rate tuned": True, "small rate": False}
    return factorial_table({h: {name: scores(runs, name, tuned=t) for name in FACTORS} for h, t in heads.items()})


def stages_table(runs: Runs) -> str:
    """The differences in each third of the run at the smallest rate."""
    thirds = [verdicts(runs, SINGLE, tuned=False, score=third(number)) for number in range(3)]
    rows = [[ENTRIES[name].label, *(difference(by_entry[name].test) for by_entry in thirds)] for name in SINGLE]
    return table([f"reward minus GRPO's at {UNTUNED}", "updates 1–20", "21–40", "41–60"], rows)


def rates_table(runs: Runs) -> str:
    """Mean area on the tuning seeds by rate; the best is bold."""
    rows = []
    for name, entry in ENTRIES.items():
        means = {rate: np.mean([area(runs[Unit(name, rate, seed)]) for seed in TUNING]) for rate in RATES}
        updates = len(runs[Unit(name, RATES[0], TUNING[0])]["reward"])
        label = entry.label + (f", 32 responses, {updates} updates" if entry.baseline == "grpo_32" else "")
        best = best_rate(runs, name)
        rows.append([label, *(f"**{mean:.3f}**" if rate == best else f"{mean:.3f}" for rate, mean in means.items())])
    return table(["area on the tuning seeds", *RATES], rows)


def rollout_score(runs: Runs, *, equal: str) -> Score:
    """The area over equally many updates or generated tokens, for the runs with 32 responses per update."""
    own = [run for unit, run in runs.items() if ENTRIES[unit.entry].baseline == "grpo_32"]
    if equal == "updates":
        updates = min(len(run["reward"]) for run in own)
        return lambda run: area(run, updates)
    limit = min(run["generated"][-1] for run in own)
    return lambda run: _area_over_tokens(run, limit)


def _area_over_tokens(run: dict[str, Any], limit: float) -> float:
    """Mean reward up to `limit` generated tokens: an update counts by its tokens."""
    ends = np.minimum(run["generated"], limit)
    return float(np.sum(np.diff(ends, prepend=0.0) * run["reward"]) / limit)


def rollouts_table(runs: Runs) -> str:
    """VinePPO and SPO-chain at equal updates and at equal generated tokens."""
    rows = []
    for name in ROLLOUTS:
        cells = [
            cell(verdicts(runs, ROLLOUTS, tuned=tuned, score=rollout_score(runs, equal=equal))[name], tuned=tuned)
            for equal in ("updates", "tokens")
            for tuned in (True, False)
        ]
        rows.append([ENTRIES[name].label, *cells, f"{cost(runs, name):.1f}×"])
    head = [f"equal {axis}, {rate}" for axis in ("updates", "tokens") for rate in ("tuned", "small rate")]
    return table(["area minus GRPO's, `demo_hum`", *head, "tokens per update"], rows)


def cost(runs: Runs, entry: str) -> float:
    """Generated tokens per update over GRPO's, on the seeds of the verdict at the tuned rates."""

    def per_update(name: str) -> float:
        own = [runs[Unit(name, best_rate(runs, name), seed)] for seed in VERDICT]
        return float(np.mean([run["generated"][-1] / len(run["generated"]) for run in own]))

    return per_update(entry) / per_update(ENTRIES[entry].baseline)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "check"))
    parser.add_argument("entry", nargs="?", help="what to check, a name of ENTRIES")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    args = parser.parse_args()
    if args.what == "run":
        run(jobs=args.jobs)
    else:
        check(args.entry, jobs=args.jobs)


if __name__ == "__main__":
    main()
