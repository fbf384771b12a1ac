"""Runs whose order `true_credit.py` compares with an audit of the model before training: all algorithms at one rate,
and some at their best rates."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from pages import RESULTS, table

from trl_credit.lab.comparison.histories import read_history
from trl_credit.lab.statistics import paired_t


FOLDER = RESULTS / "true_credit"
SEEDS, TUNING = (1, 2, 3), 100
Run = tuple[str, str, int]  # entry, rate, seed


@dataclass
class AuditedRuns:
    """Runs of 40 updates on an audited task.

    Attributes:
        part: The audit.
        entries: For each algorithm the name in the audit and flags, GRPO first.
        rates: Learning rates. All entries run at the one in the middle.
        tuned: Entries that also run at the rate which is best on a seed of its own.
    """

    part: str
    entries: Mapping[str, tuple[str, str]]
    rates: tuple[str, str, str]
    tuned: tuple[str, ...]

    @property
    def file(self) -> Path:
        """The rewards of all runs."""
        return FOLDER / f"learning_{self.part}.jsonl"

    @cached_property
    def areas(self) -> dict[Run, float]:
        """The area of each run: its mean reward."""
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        rows = map(json.loads, lines)
        return {(row["entry"], row["rate"], row["seed"]): float(np.mean(row["reward"])) for row in rows}

    def learn(self, flags: str) -> None:
        """Trains what the file lacks."""
        equal = self.rates[1]
        self._run([(name, rate, TUNING) for name in self.tuned for rate in self.rates], flags)
        verdict = [(x, rate, s) for s in SEEDS for x in self.entries for rate in sorted({equal, self.best_rate(x)})]
        self._run(verdict, flags)

    def _run(self, runs: list[Run], flags: str) -> None:
        for name, rate, seed in (run for run in runs if run not in self.areas):
            with tempfile.TemporaryDirectory() as folder:
                words = f"{self.entries[name][1]} {flags} --beta 0 --lr_scheduler_type constant --max_steps 40"
                words += f" --logging_steps 1 --log_credit 0 --report_to none --save_only_model true --seed {seed}"
                words += f" --learning_rate {rate} --output_dir {folder}"
                command = [sys.executable, "-m", "trl_credit", "train", *words.split()]
                subprocess.run(command, check=True, capture_output=True)
                reward = [round(x, 5) for x in read_history(folder).values.tolist()]
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"entry": name, "rate": rate, "seed": seed, "reward": reward}) + "\n")
            self.areas[name, rate, seed] = float(np.mean(reward))
            print(name, rate, seed, f"{np.mean(reward):.3f}", flush=True)

    def best_rate(self, name: str) -> str:
        """The rate with the largest area on the tuning seed."""
        known = [rate for rate in self.rates if name in self.tuned and (name, rate, TUNING) in self.areas]
        return max(known, key=lambda rate: self.areas[name, rate, TUNING], default=self.rates[1])

    def against_grpo(self, *, tuned: bool) -> dict[str, list[float]]:
        """Area minus GRPO's for the seeds that both have, for each name in the audit. Only tuned ones if `tuned`."""
        rate, pairs = {name: self.best_rate(name) if tuned else self.rates[1] for name in self.entries}, {}
        for name in list(self.entries)[1:]:
            runs = [((name, rate[name], seed), ("grpo", rate["grpo"], seed)) for seed in SEEDS]
            both = [(own, base) for own, base in runs if own in self.areas and base in self.areas]
            if both and (name in self.tuned or not tuned):
                pairs[self.entries[name][0]] = [self.areas[own] - self.areas[base] for own, base in both]
        return pairs

    def learned(self, *, tuned: bool) -> dict[str, float]:
        """The mean of [`against_grpo`]."""
        return {label: float(np.mean(pairs)) for label, pairs in self.against_grpo(tuned=tuned).items()}

    def table(self, said: Mapping[str, list[str]], labels: Mapping[str, str]) -> str:
        """Area minus GRPO's at both rates, beside what the audit said before training."""
        kinds = (False, True) if self.tuned else (False,)
        areas, rows = [self.against_grpo(tuned=tuned) for tuned in kinds], []
        for label in areas[0]:
            tests = [paired_t(of[label]) if len(of.get(label, ())) > 1 else None for of in areas]
            cells = ["–" if x is None else f"{x.value:+.3f} ± {x.high - x.value:.3f}".replace("-", "−") for x in tests]
            rows.append([labels.get(label, label), *said[label], *cells])
        heads = [f"area, rate {self.rates[1]}", "area, tuned"][: len(kinds)]
        return table(["minus GRPO's", "progress", "aim", *heads], rows)


_BOTH = {
    "grpo": ("GRPO", "--algo grpo"),
    "s_trace": ("S-trace", "--algo s_trace"),
    "p_trace": ("P-trace", "--algo p_trace"),
    "grpo_lambda": ("GRPO-λ", "--algo grpo_lambda"),
    "random": ("random", "--algo s_trace --selector random"),
}
_OF_SUMS = {
    "top_20": ("top_20", "--algo grpo --top_entropy_quantile 0.2"),
    "vine_ppo": ("VinePPO", "--algo vine_ppo --num_iterations 1"),  # takes three times as long
}
_OF_AGENT = {
    "floor": ("floor", "--algo grpo --advantage_floor -0.1"),
    "dr_grpo": ("Dr. GRPO", "--algo dr_grpo"),
    "turns": ("turns", "--algo spo_chain --segmentation turns --num_iterations 1"),
}
SUMS = AuditedRuns("sums", _BOTH | _OF_SUMS, rates=("4e-6", "8e-6", "1.6e-5"), tuned=(*_BOTH, "top_20"))
AGENT = AuditedRuns("demo_agent", _BOTH | _OF_AGENT, rates=("2e-4", "4e-4", "8e-4"), tuned=())
