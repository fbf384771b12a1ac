"""The results of the bed: one JSON file, to which every finished unit is added."""

import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from trl_credit.support.files import write_atomically

from .algorithms import ALGORITHMS
from .bed import SETTINGS, P, make_bed
from .progress import SITUATIONS, TAUGHT, decision_credit, forks_and_style, logged_share, noise_share, relative_progress
from .training import RATES, UPDATES, train


VERDICT, TUNING = tuple(range(12)), tuple(range(100, 106))
CROSSING = (100, 200, 450)
_OFF_POLICY = ("B", "C")
TAUGHT_SITUATIONS = ("C", "E")


def units() -> list[str]:
    """The names of all units of work, such as "C/s_trace"."""
    names = []
    for setting in SETTINGS:
        for name, algorithm in ALGORITHMS.items():
            where = SETTINGS if algorithm.updates == 1 else _OFF_POLICY
            if setting in where:
                names.append(f"{setting}/{name}")
    names += [f"crossing/{name}" for name in ("grpo", "s_trace", "reference", "vine_ppo")]
    names += [f"progress/{name}" for name in SITUATIONS] + [f"bed/{name}" for name in SETTINGS]
    names += [f"progress_taught/{name}" for name in TAUGHT_SITUATIONS]
    return names + [f"taught/{name}" for name in SETTINGS]


def run_unit(name: str) -> dict[str, Any]:
    """The results of a unit, rounded to what the tables need."""
    torch.set_num_threads(1)
    kind, _, what = name.partition("/")
    seeds = [*VERDICT, *TUNING]
    if kind == "progress":
        return _rounded(relative_progress(SITUATIONS[what], seeds=list(VERDICT), batches=400))
    if kind == "progress_taught":
        return _rounded(relative_progress(SITUATIONS[what], names=TAUGHT, seeds=list(VERDICT), batches=400))
    if kind == "taught":
        return _rounded(forks_and_style(make_bed(SETTINGS[what], list(VERDICT))))
    if kind == "bed":
        bed = make_bed(SETTINGS[what], list(VERDICT))
        decisions = decision_credit(SETTINGS[what], seeds=list(VERDICT))
        return _rounded({"share": noise_share(bed), "logged": logged_share(bed), "decisions": decisions})
    if kind == "crossing":
        solved = train(ALGORITHMS[what], SETTINGS["C"], rates=RATES[:1], seeds=list(VERDICT), updates=CROSSING[-1])
        curve = solved["solved"][:, 0]
        return _rounded({"curve": curve[9::10].mean(1), "at": {str(n): curve[n - 1] for n in CROSSING}})
    trained = train(ALGORITHMS[what], SETTINGS[kind], rates=RATES, seeds=seeds)
    solved, result = trained["solved"], {"tokens": trained["tokens"]}
    result["area"], result["end"] = solved.mean(0), solved[-UPDATES // 10 :].mean(0)
    if what == "grpo" or ALGORITHMS[what].teacher is not None:
        # a teacher's pass adds one to GRPO's three (forward, and twice that backward)
        result |= {"equal": solved[: UPDATES * 3 // 4].mean(0), "style": trained["style"]}
    if kind == "F":
        result["hard"] = trained["by_prompt"][..., : P // 2].mean(-1)
    return _rounded(result)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return _rounded(value.tolist())
    return [_rounded(item) for item in value] if isinstance(value, list) else round(value, 5)


def read(path: Path) -> dict[str, Any]:
    """What the file has, or an empty store."""
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    return {"rates": list(RATES), "verdict": list(VERDICT), "tuning": list(TUNING), "updates": UPDATES, "units": {}}


def run(path: Path, *, jobs: int) -> None:
    """Runs every unit that the file lacks, and adds it."""
    results = read(path)
    left = [name for name in units() if name not in results["units"]]
    with ProcessPoolExecutor(jobs) as pool:
        futures = {pool.submit(run_unit, name): name for name in left}
        for done, future in enumerate(as_completed(futures), 1):
            results["units"][futures[future]] = future.result()
            _write(path, results)
            print(f"{done}/{len(left)} {futures[future]}", flush=True)


def _write(path: Path, results: dict[str, Any]) -> None:
    """A line for each unit, in their order."""
    ordered = {name: results["units"][name] for name in units() if name in results["units"]}
    lines = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(unit)}" for name, unit in ordered.items())
    head = json.dumps({key: value for key, value in results.items() if key != "units"})
    write_atomically(path, f'{head[:-1]}, "units": {{\n  {lines}\n}}}}\n')
