"""Tables and figures of docs/which.md and of demos.md in docs/results, and all tables of the testbed and the tasks.

The latter are in forks_tables.md and demos_tables.md of benchmarks/results. All are made from the raw results.

python benchmarks/which.py
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import hum
import numpy as np
import teacher_page
from fork_bed.algorithms import ALGORITHMS
from fork_bed.analysis import Verdict, verdicts
from fork_bed.page import FULL, cell
from fork_bed.page import tables as forks_tables
from fork_bed.store import read as read_forks
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pages import RESULTS, ROOT, table, write
from scipy import optimize, stats

from trl_credit.lab.comparison.answer import difference_in_words
from trl_credit.lab.comparison.scoring import compare_results
from trl_credit.lab.statistics import TTest


PAGE = ROOT / "docs" / "which.md"
FIGURES = RESULTS / "which"
# situation → its name, setting of the bed, algorithms that are shown, updates per batch
BED = {
    "sure": ("sure filler", "B", "s_trace p_trace lambda floor top_20 vine_ppo spo_chain oracle", 1),
    "loose": (
        "loose filler",
        "C",
        "s_trace s_trace_99 reference random p_trace lambda floor top_20 vine_ppo spo_chain oracle",
        1,
    ),
    "variety": ("harmless variety", "E", "s_trace reference p_trace lambda top_20 vine_ppo spo_chain oracle", 1),
    "end": ("answer at the very end", "A", "s_trace reference p_trace lambda top_20 vine_ppo spo_chain oracle", 1),
    "hard": ("hard prompts", "F", "ha_dw dr_grpo s_trace vine_ppo spo_chain", 1),
    "reuse": ("loose filler", "C", "dapo_4 gspo_4 gspo_wide_4 lambda_4 s_trace_4", 4),
}


class Line(NamedTuple):
    """A line of a table or figure: a name, the verdicts at the tuned and at the small rate, and what makes it anew."""

    name: str
    tuned: Verdict
    untuned: Verdict
    command: str = ""


def load(name: str) -> dict[str, Any]:
    """The raw results of a folder or file in docs/results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def bed_lines(forks: Mapping[str, Any], situation: str) -> list[Line]:
    """The lines of a situation that the bed has."""
    _, setting, names, updates = BED[situation]
    tuned, untuned = (verdicts(forks, setting, updates=updates, tuned=which) for which in (True, False))
    return [Line(ALGORITHMS[name].label, tuned[name], untuned[name]) for name in names.split()]


def hum_lines(runs: hum.Runs) -> list[Line]:
    """The lines of the trainer's runs on `demo_hum`, without those that have rollouts."""
    tuned, untuned = (hum.verdicts(runs, hum.SINGLE, tuned=which) for which in (True, False))
    return [Line(hum.ENTRIES[name].label, tuned[name], untuned[name], f"`hum.py check {name}`") for name in hum.SINGLE]


def lines_table(lines: list[Line], head: str) -> str:
    """A table of lines."""
    rows = [[line.name, cell(line.tuned), cell(line.untuned, tuned=False), line.command] for line in lines]
    return table([head, "rate tuned", "small rate", "command"], rows)


def map_table(forks: Mapping[str, Any], runs: hum.Runs) -> str:
    """What is above and below GRPO at tuned rates and equal updates, after Holm's correction, in every situation."""
    by_situation = {text: _of_bed(forks, *where) for text, where in _situations().items()}
    on_trainer = [hum.verdicts(runs, names, tuned=True) for names in (hum.SINGLE, hum.ROLLOUTS)]
    by_situation["loose filler, `demo_hum`"] = {
        hum.ENTRIES[name].label: v for one in on_trainer for name, v in one.items()
    }
    rows = []
    for text, by_label in by_situation.items():
        shown = {label: verdict.test.value > 0 for label, verdict in by_label.items() if verdict.holm < 0.05}
        above, below = ([label for label, is_above in shown.items() if is_above == up] for up in (True, False))
        rows.append([text, *("; ".join(labels) or "none shown" for labels in (above, below))])
    return table(["at tuned rates and equal updates", "above GRPO", "below GRPO"], rows, texts=3)


def _situations() -> dict[str, tuple[str, int]]:
    """Setting of the bed and updates per batch of each situation, by its name."""
    return {f"{about}, {_where(name)}": (setting, n) for name, (about, setting, _, n) in BED.items()} | {
        "long responses, testbed D": ("D", 1)
    }


def _of_bed(forks: Mapping[str, Any], setting: str, updates: int) -> dict[str, Verdict]:
    """The verdicts of a setting of the bed at tuned rates by label, without the oracle's."""
    by_name = verdicts(forks, setting, updates=updates)
    return {ALGORITHMS[name].label: verdict for name, verdict in by_name.items() if name != "oracle"}


def power_table(forks: Mapping[str, Any], runs: hum.Runs) -> str:
    """True differences that are shown with a chance of 80 % at tuned rates, for a situation's median spread."""
    by_situation = {
        text: verdicts(forks, setting, updates=updates) for text, (setting, updates) in _situations().items()
    }
    for text, names in (("loose filler", hum.SINGLE), ("with continuations", hum.ROLLOUTS)):
        by_situation[f"{text}, `demo_hum`"] = hum.verdicts(runs, names, tuned=True)
    rows = []
    for text, by_name in by_situation.items():
        tests = [verdict.test for verdict in by_name.values()]
        needed = [f"{_needed(tests, level):.3f}" for level in (0.05, 0.05 / len(tests))]
        rows.append([text, str(tests[0].n), str(len(tests)), *needed])
    return table(["at tuned rates", "seeds", "algorithms", "one test", "corrected"], rows)


def _needed(tests: list[TTest], level: float) -> float:
    """The true mean for which p of a paired t test is below a level with a chance of 80 %."""
    free = tests[0].n - 1
    error = np.median([test.high - test.value for test in tests]) / stats.t.ppf(0.975, free)
    bound = stats.t.ppf(1 - level / 2, free)
    return error * optimize.brentq(lambda mean: stats.nct.sf(bound, free, mean) - 0.8, 0.1, 3 * bound)


def embedded_table(results: dict[str, Any]) -> str:
    """The presets on the embedded task: the primary metric with its test, the others without."""
    primary, *others = (
        {row.label: row for row in compare_results(results, key)} for key in ("area", "end", "prompts", "generated")
    )
    rows = []
    for label, row in primary.items():
        corrected = "not tested (same gradient as GRPO)" if label in results["same_gradient"] else f"{row.holm:.2g}"
        more = [difference_in_words(other[label]) for other in others]
        rows.append([label, difference_in_words(row), corrected, *more])
    return table(["minus GRPO", "area, 95 %", "Holm's p", "end", "at equal prompts", "at equal tokens"], rows)


# labels of embedded/parts.json: entries of `hum.py` by another name, and controls
PARTS = {"GRPO": "grpo", "GRPO-λ": "grpo_lambda"}
CONTROLS = {"two_updates": "GRPO with two updates per batch", "double_rate": "GRPO at twice the learning rate"}


def parts_table(results: dict[str, Any]) -> str:
    """The parts of GRPO-λ's preset on the embedded task, and GRPO's controls."""
    prompts = {row.label: row for row in compare_results(results, "prompts")}
    rows = []
    for row in compare_results(results, "area"):
        name = CONTROLS.get(row.label) or hum.ENTRIES[PARTS.get(row.label, row.label)].label
        other = difference_in_words(prompts[row.label])
        rows.append([name, difference_in_words(row), f"{row.holm:.2g}", other])
    return table(["minus GRPO", "area, 95 %", "Holm's p", "at equal prompts"], rows)


def parts_factorial(results: dict[str, Any]) -> str:
    """The factorial on the embedded task."""
    areas: dict[str, dict[int, float]] = {}
    for run in results["runs"]:
        areas.setdefault(PARTS.get(run["label"], run["label"]), {})[run["seed"]] = run["area"]
    seeds = sorted(areas["grpo"])
    scores_of = {name: np.array([areas[name][seed] for seed in seeds]) for name in hum.FACTORS}
    return hum.factorial_table({"`demo`": scores_of})


def demos_pages(runs: hum.Runs) -> dict[Path, dict[str, str]]:
    """The tables of the page on the embedded tasks, and of the file that has all of them."""
    results, parts = load("embedded/results.json"), load("embedded/parts.json")
    tables = {
        "embedded": embedded_table(results),
        "parts": parts_table(parts),
        "parts_factorial": parts_factorial(parts),
        "hum": lines_table(hum_lines(runs), "area minus GRPO's, `demo_hum`"),
        "factorial": hum.hum_factorial(runs),
        "hum_stages": hum.stages_table(runs),
        "hum_tokens": hum.rollouts_table(runs),
        "hum_rates": hum.rates_table(runs),
        **teacher_page.tables(),
    }
    of_page = ("parts_factorial", "runs")
    return {
        RESULTS / "demos.md": {name: tables[name] for name in of_page},
        ROOT / "benchmarks" / "results" / "demos_tables.md": tables,
    }


def page_tables() -> dict[Path, dict[str, str]]:
    """The tables of each page, by name."""
    forks, runs = read_forks(RESULTS / "forks" / "results.json"), hum.read()
    return {
        PAGE: {"map": map_table(forks, runs)},
        FULL: forks_tables(forks) | {"power": power_table(forks, runs)},
        **demos_pages(runs),
    }


def _where(situation: str) -> str:
    _, setting, _, updates = BED[situation]
    return f"testbed {setting}" + (f", {updates} updates per batch" if updates > 1 else "")


def _draw(name: str, situation: str, lines: list[Line], limits: tuple[float, float]) -> None:
    figure = Figure(figsize=(6.4, 1.3 + 0.27 * len(lines)), dpi=100, layout="constrained")
    axes = figure.subplots()
    for tuned, colour, shift in ((True, "#c2410c", 0.14), (False, "#2563eb", -0.14)):
        tests = [(line.tuned if tuned else line.untuned).test for line in reversed(lines)]
        axes.errorbar(
            [test.value for test in tests],
            [place + shift for place in range(len(tests))],
            xerr=[test.high - test.value for test in tests],
            fmt="o",
            markersize=3.5,
            linewidth=1.2,
            color=colour,
            label="best rate of each" if tuned else "small rate",
        )
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_xlim(limits)
    axes.set_yticks(range(len(lines)), [line.name for line in reversed(lines)])
    axes.set_xlabel("area minus GRPO's, 95 % paired t interval", fontsize=8)
    axes.tick_params(labelsize=8)
    figure.suptitle(f"How much better than GRPO is each algorithm?\n{situation}", fontsize=9)
    figure.legend(loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    FigureCanvasAgg(figure).print_png(FIGURES / f"{name}.png", metadata={"Software": None})


def main() -> None:
    """Fills the pages and draws the figures, all with the same range of differences."""
    for page, tables in page_tables().items():
        write(page, tables)
    FIGURES.mkdir(exist_ok=True)
    forks = read_forks(RESULTS / "forks" / "results.json")
    figures = {name: (f"{BED[name][0]}, {_where(name)}", bed_lines(forks, name)) for name in BED}
    figures["hum"] = ("loose filler, demo_hum on the real trainer", hum_lines(hum.read()))
    tests = [v.test for _, lines in figures.values() for line in lines for v in (line.tuned, line.untuned)]
    limits = min(test.low for test in tests) - 0.02, max(test.high for test in tests) + 0.02
    for name, (situation, lines) in figures.items():
        _draw(name, situation, lines, limits)


if __name__ == "__main__":
    main()
