"""Tables of docs/results/forks.md and of benchmarks/results/forks_tables.md, from the stored results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pages import RESULTS, ROOT, table, write

from trl_credit.lab.comparison.answer import signed
from trl_credit.lab.statistics import TTest, paired_t

from .algorithms import ALGORITHMS
from .analysis import UNTUNED, Verdict, baseline_area, best_rate, scores, verdicts
from .bed import SETTINGS
from .expected import Cell, cells
from .figures import draw_figures
from .progress import COMPARED, SITUATIONS, TAUGHT
from .store import CROSSING, TAUGHT_SITUATIONS, read
from .teachers import TEACHERS


PAGE, FULL = RESULTS / "forks.md", ROOT / "benchmarks" / "results" / "forks_tables.md"
ON_PAGE = ("settings", "tuned")


def make_page(store: Path) -> None:
    """Writes tables and figures from the results in a file. `which.py` writes those of `FULL`."""
    results = read(store)
    everything = tables(results)
    write(PAGE, {name: everything[name] for name in ON_PAGE})
    draw_figures(results, store.parent)


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """All tables, by name. The page has a part of them, `FULL` has all."""
    return {
        "names": _names(),
        "settings": _settings(results),
        "tuned": _differences(results, tuned=True),
        "untuned": _differences(results, tuned=False),
        "rates": _rates(results),
        "tokens": _tokens(results),
        "crossing": _crossing(results),
        "progress": _progress(results),
        "decisions": _decisions(results),
        "hard": _hard(results),
        "reuse": _reuse(results),
        "agreement": _agreement(results),
        "teachers": _taught(results),
        "teachers_equal": _taught(results, key="equal"),
        "teachers_untuned": _taught(results, tuned=False),
        "teachers_rates": _taught_rates(results),
        "teachers_progress": _taught_progress(results),
        "teachers_style": _style(results),
    }


def difference(test: TTest) -> str:
    """Mean and half of its interval."""
    return f"{signed(test.value)} ± {(test.high or test.value) - test.value:.3f}"


def cell(verdict: Verdict, *, tuned: bool = True) -> str:
    """Mean difference and half of its interval, bold where Holm's p is below 0.05 and the rates are tuned."""
    text = difference(verdict.test)
    return f"**{text}**" if tuned and verdict.holm < 0.05 else text


def _names() -> str:
    """What `forks.py check` calls the algorithms."""
    rows = [
        [_taught_label(name) if algorithm.teacher else algorithm.label, f"`{name}`"]
        for name, algorithm in ALGORITHMS.items()
    ]
    return table(["algorithm", "name"], rows, texts=2)


def _settings(results: Mapping[str, Any]) -> str:
    rows = []
    for name, setting in SETTINGS.items():
        bed = results["units"][f"bed/{name}"]
        shares = [f"{np.mean(bed[key]):.2f}" for key in ("share", "logged")]
        area = baseline_area(results, name), baseline_area(results, name, tuned=False)
        sizes = map(str, (setting.length, setting.filler, setting.tail, setting.sure))
        rows.append([f"{name}: {setting.about}", *sizes, *shares, *(f"{a:.3f}" for a in area)])
    head = ["setting", "tokens", "filler before a fork", "tail", "q", "φ", "logged"]
    return table([*head, "GRPO, tuned", f"GRPO at {results['rates'][UNTUNED]}"], rows)


def _differences(results: Mapping[str, Any], *, tuned: bool) -> str:
    by_setting = {setting: verdicts(results, setting, tuned=tuned) for setting in SETTINGS}
    rows = [
        [algorithm.label, *(cell(by_setting[setting][name], tuned=tuned) for setting in SETTINGS)]
        for name, algorithm in ALGORITHMS.items()
        if name in by_setting["A"]
    ]
    return table(["area minus GRPO's", *SETTINGS], rows)


def _rates(results: Mapping[str, Any]) -> str:
    rates, rows = results["rates"], []
    for name, algorithm in ALGORITHMS.items():
        if algorithm.updates == 1 and algorithm.teacher is None:
            best = [best_rate(results, f"{setting}/{name}") for setting in SETTINGS]
            rows.append([algorithm.label, *(_rate(rates, i) for i in best)])
    return table(["best rate", *SETTINGS], rows)


def _rate(rates: list[float], index: int) -> str:
    return f"{rates[index]}{' (edge)' if index in (0, len(rates) - 1) else ''}"


def _crossing(results: Mapping[str, Any]) -> str:
    """J minus GRPO's in C at the smallest rate, by where one stops."""
    base = results["units"]["crossing/grpo"]["at"]
    rows = []
    for name in ("s_trace", "reference", "vine_ppo"):
        own = results["units"][f"crossing/{name}"]["at"]
        tests = [paired_t(np.subtract(own[str(n)], base[str(n)])) for n in CROSSING]
        rows.append([ALGORITHMS[name].label, *map(difference, tests)])
    return table(["J minus GRPO's in C at rate 0.02", *(f"update {n}" for n in CROSSING)], rows)


def _tokens(results: Mapping[str, Any]) -> str:
    """VinePPO and SPO-chain against GRPO at equally many updates, and what an update costs."""
    rows = []
    for name in ("vine_ppo", "spo_chain"):
        for setting in "BCDE":
            unit = f"{setting}/{name}"
            cells = [cell(verdicts(results, setting, tuned=tuned)[name], tuned=tuned) for tuned in (True, False)]
            tokens = [results["units"][unit]["tokens"][rate] for rate in (best_rate(results, unit), UNTUNED)]
            rows.append([f"{ALGORITHMS[name].label}, {setting}", *cells, *(f"{times:.1f}×" for times in tokens)])
    head = ["area minus GRPO's", "rate tuned", "small rate", "tokens per update, tuned", "at the small rate"]
    return table(head, rows)


def _progress(results: Mapping[str, Any]) -> str:
    by_situation = {name: results["units"][f"progress/{name}"] for name in SITUATIONS}
    rows = [
        [ALGORITHMS[name].label, *(f"{np.mean(one[name]):.2f}" for one in by_situation.values())] for name in COMPARED
    ]
    return table(["progress per update, divided by GRPO's", *by_situation], rows)


def _decisions(results: Mapping[str, Any]) -> str:
    rows = []
    for setting in ("A", "B"):
        shares = results["units"][f"bed/{setting}"]["decisions"]
        for name, label in (("s_trace", "S-trace, P-trace"), ("lambda", "GRPO-λ, trace alone")):
            rows.append([f"{setting}, {label}", *(f"{share:.2f}" for share in shares[name])])
    return table(["credit of a fork, divided by the mean of the four", "first", "second", "third", "last"], rows)


def _hard(results: Mapping[str, Any]) -> str:
    rows = []
    for name in ("ha_dw", "dr_grpo"):
        for tuned in (True, False):
            tests = [verdicts(results, "F", tuned=tuned, key=key)[name].test for key in ("area", "hard")]
            rows.append([f"{ALGORITHMS[name].label}, {'tuned' if tuned else 'small rate'}", *map(difference, tests)])
    return table(["area minus GRPO's in F", "all prompts", "hard prompts"], rows)


def _reuse(results: Mapping[str, Any]) -> str:
    columns = [(verdicts(results, setting, updates=4, tuned=t), t) for setting in "BC" for t in (True, False)]
    rows = [[ALGORITHMS[name].label, *(cell(of[name], tuned=t) for of, t in columns)] for name in columns[0][0]]
    head = ["area minus that of GRPO with 4 updates", "B, tuned", "B, small rate", "C, tuned", "C, small rate"]
    fresh = []
    for setting in "BC":
        for tuned in (True, False):
            pairs = [
                (unit, best_rate(results, unit) if tuned else UNTUNED)
                for unit in (f"{setting}/grpo", f"{setting}/grpo_4")
            ]
            once, four = (scores(results, unit)[1][rate] for unit, rate in pairs)
            fresh.append(difference(paired_t(once - four)))
    return table(head, [["GRPO with a new batch for each update", *fresh], *rows])


def _agreement(results: Mapping[str, Any]) -> str:
    groups: dict[str, list[Cell]] = {}
    for one in cells(results):
        name = f"{ALGORITHMS[one.algorithm].label}, {'rate tuned' if one.tuned else 'small rate'}"
        groups.setdefault(name, []).append(one)
    rows = []
    for name, group in groups.items():
        far = max(group, key=lambda one: one.distance)
        numbers = (f"{signed(value)} ± {half:.3f}" for value, half in (far.theirs, far.ours))
        rows.append([name, f"{sum(one.agrees for one in group)} of {len(group)}", far.setting, *numbers])
    return table(["", "cells that agree", "farthest in", "the other's", "this one's"], rows)


def _taught(results: Mapping[str, Any], *, tuned: bool = True, key: str = "area") -> str:
    """Differences from GRPO of credit from each teacher."""
    columns = {setting: verdicts(results, setting, tuned=tuned, key=key, taught=True) for setting in SETTINGS}
    if key == "area":
        columns["F, hard prompts"] = verdicts(results, "F", tuned=tuned, key="hard", taught=True)
    rows = [
        [_taught_label(name), *(cell(column[name], tuned=tuned) for column in columns.values())]
        for name in columns["F"]
    ]
    return table(["area minus GRPO's", *columns], rows)


def _taught_label(name: str) -> str:
    algorithm = ALGORITHMS[name]
    return f"{algorithm.label}; {algorithm.teacher.label}"


def _taught_rates(results: Mapping[str, Any]) -> str:
    rows = []
    for name, algorithm in ALGORITHMS.items():
        if algorithm.teacher is not None:
            best = (best_rate(results, f"{setting}/{name}") for setting in SETTINGS)
            rows.append([_taught_label(name), *(_rate(results["rates"], i) for i in best)])
    return table(["best rate", *SETTINGS], rows)


def _taught_progress(results: Mapping[str, Any]) -> str:
    by_situation = {name: results["units"][f"progress_taught/{name}"] for name in TAUGHT_SITUATIONS}
    rows = [
        [_taught_label(name), *(f"{np.mean(one[name]):.2f}".replace("-", "−") for one in by_situation.values())]
        for name in TAUGHT
    ]
    return table(["progress per update, divided by GRPO's", *by_situation], rows)


def _style(results: Mapping[str, Any]) -> str:
    """The forks' share of |d| at the start, and what tuned runs do to the action that the style favours."""
    starts = [results["units"][f"taught/{setting}"] for setting in SETTINGS]
    rows = [
        [
            "share of \\|d\\| on forks, told the answer, with a style",
            *(f"{np.mean(one['forks']['style']):.2f}" for one in starts),
        ]
    ]
    rows.append(["its action at filler: probability at the start", *(f"{np.mean(one['style']):.3f}" for one in starts)])
    for name, algorithm in ALGORITHMS.items():
        if name == "grpo" or algorithm.teacher is TEACHERS["style"]:
            units = [f"{setting}/{name}" for setting in SETTINGS]
            ends = (scores(results, unit, "style")[1][best_rate(results, unit)].mean() for unit in units)
            rows.append([f"after {algorithm.label}", *(f"{end:.3f}" for end in ends)])
    return table(["teacher with a style", *SETTINGS], rows)
