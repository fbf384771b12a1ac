"""Tables and figures of docs/which.md and docs/results/embedded.md, from the raw results in docs/results.

python benchmarks/which.py
"""

import json
from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from fork_bed.algorithms import ALGORITHMS
from fork_bed.analysis import verdicts
from fork_bed.page import difference, signed
from fork_bed.store import CROSSING
from fork_bed.store import read as read_forks
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pages import RESULTS, ROOT, table, write

from trl_credit.lab.comparison.scoring import ScoreRow, compare_results
from trl_credit.lab.statistics import TTest, paired_t


PAGE, EMBEDDED = ROOT / "docs" / "which.md", RESULTS / "embedded.md"
FIGURES = RESULTS / "which"
SURE = 0.05  # Holm's p below which a number is bold
# labels of docs/results/hum, which are names of entries on the command line → names in tables
HUM = {
    "s_trace": "S-trace",
    "s_trace_99": "S-trace, λ = 0.99",
    "p_trace": "P-trace",
    "random_selector": "S-trace, random selector",
    "top_20": "top 20 % by entropy",
    "GRPO-λ": "GRPO-λ: trace, floor and β",
    "trace_floor": "GRPO-λ: trace and floor",
    "trace_beta": "GRPO-λ: trace and β",
    "trace": "GRPO-λ: trace alone",
    "floor_beta": "GRPO with floor −0.1 and β = 0.04",
    "floor": "GRPO with floor −0.1",
    "beta": "GRPO with β = 0.04",
}
FACTORS = {  # trace, floor, β
    (0, 0, 0): "GRPO",
    (0, 0, 1): "beta",
    (0, 1, 0): "floor",
    (0, 1, 1): "floor_beta",
    (1, 0, 0): "trace",
    (1, 0, 1): "trace_beta",
    (1, 1, 0): "trace_floor",
    (1, 1, 1): "GRPO-λ",
}
# situation → setting of the bed, algorithms that are shown, updates per batch
BED = {
    "sure": ("B", "s_trace p_trace lambda floor top_20 vine_ppo spo_chain oracle", 1),
    "loose": ("C", "s_trace s_trace_99 reference random p_trace lambda floor top_20 vine_ppo spo_chain oracle", 1),
    "variety": ("E", "s_trace reference p_trace lambda top_20 vine_ppo spo_chain oracle", 1),
    "end": ("A", "s_trace reference p_trace lambda top_20 vine_ppo spo_chain oracle", 1),
    "hard": ("F", "ha_dw dr_grpo s_trace vine_ppo spo_chain", 1),
    "reuse": ("C", "dapo_4 gspo_4 gspo_wide_4 lambda_4 s_trace_4", 4),
}


class Line(NamedTuple):
    """A line of a table: a name, the tests at the tuned and the untuned rate, Holm's p of both, and its command."""

    name: str
    tuned: TTest | None
    untuned: TTest | None
    tuned_p: float
    untuned_p: float
    command: str


def load(name: str) -> dict[str, Any]:
    """The raw results of a folder or file in docs/results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def bed_lines(forks: Mapping[str, Any], situation: str) -> list[Line]:
    """The lines of a situation that the bed has."""
    setting, names, updates = BED[situation]
    tuned, untuned = (verdicts(forks, setting, updates=updates, tuned=which) for which in (True, False))
    return [
        Line(
            ALGORITHMS[name].label,
            tuned[name].test,
            untuned[name].test,
            tuned[name].holm,
            untuned[name].holm,
            f"`forks.py check {setting}/{name}`",
        )
        for name in names.split()
    ]


def hum_lines(tuned: dict[str, Any], untuned: dict[str, Any], key: str = "area") -> list[Line]:
    """The lines of the trainer's runs on `demo_hum`."""
    found, other = ({row.label: row for row in compare_results(results, key)} for results in (tuned, untuned))
    lines = []
    for label, name in HUM.items():
        one, two = found[label], other.get(label)
        tests = _test(one), two and _test(two)
        lines.append(Line(name, *tests, one.holm or 1.0, (two.holm or 1.0) if two else 1.0, f"`compare`, {label}"))
    return lines


def _test(row: ScoreRow) -> TTest:
    return TTest(row.difference, row.low, row.high, row.p, row.n)


def lines_table(lines: list[Line], head: str) -> str:
    """A table of lines; bold where Holm's p is below 0.05."""
    rows = []
    for line in lines:
        cells = [(line.tuned, line.tuned_p), (line.untuned, line.untuned_p)]
        texts = ["" if test is None else _bold(difference(test), p) for test, p in cells]
        rows.append([line.name, *texts, line.command])
    return table([head, "rate tuned", "rate untuned", "command"], rows)


def _bold(text: str, p: float) -> str:
    return f"**{text}**" if p < SURE else text


def factorial_table(hum: dict[str, Any]) -> str:
    """Main effects of trace, floor and β: the mean of the four variants with it minus that of the four without, by
    seed."""
    scores: dict[str, dict[int, dict[str, float]]] = {}
    for run in hum["runs"]:
        if run["phase"] == "verdict":
            scores.setdefault(run["label"], {})[run["seed"]] = run
    seeds = sorted(scores["GRPO"])
    rows = []
    for place, name in enumerate(("trace", "floor −0.1", "β = 0.04")):
        cells = []
        for key in ("area", "end"):
            effect = [
                sum(
                    (2 * levels[place] - 1) * scores[FACTORS[levels]][seed][key] for levels in product((0, 1), repeat=3)
                )
                / 4
                for seed in seeds
            ]
            cells.append(difference(paired_t(effect)))
        rows.append([name, *cells])
    return table(["main effect", "area", "end"], rows)


def rates_table(hum: dict[str, Any]) -> str:
    """Mean area on the tuning seeds by rate; the best is bold."""
    found: dict[str, dict[float, list[float]]] = {}
    for run in hum["runs"]:
        if run["phase"] == "tuning":
            found.setdefault(run["label"], {}).setdefault(run["value"], []).append(run["area"])
    values = sorted(found["GRPO"], key=float)
    rows = []
    for label, by_value in found.items():
        means = [float(np.mean(by_value[value])) for value in values]
        cells = [f"**{mean:.3f}**" if mean == max(means) else f"{mean:.3f}" for mean in means]
        rows.append([HUM.get(label, label), *cells])
    return table(["area on the tuning seeds", *map(str, values)], rows)


class Lengths(NamedTuple):
    """Runs with rollouts and GRPO's, at the rate that is best on the tuning seed.

    Attributes:
        updates, generated: Paired tests of the area over equally many updates, and over equally many generated tokens.
        cost: Generated tokens per update over GRPO's.
        rate: The algorithm's learning rate.
    """

    updates: TTest
    generated: TTest
    cost: float
    rate: float


def rollout_tests(results: dict[str, Any]) -> dict[str, Lengths]:
    """VinePPO and SPO-chain against GRPO, by label."""
    chosen = {
        label: _at_best_rate(results["runs"], label) for label in dict.fromkeys(r["label"] for r in results["runs"])
    }
    runs = [run for by_seed in chosen.values() for run in by_seed.values()]
    updates, tokens = min(len(run["reward"]) for run in runs), min(run["generated"][-1] for run in runs)
    base = chosen.pop("GRPO")
    per_update = _per_update(base)
    found = {}
    for label, own in chosen.items():
        pairs = [(own[seed], base[seed]) for seed in sorted(base)]
        tests = [
            paired_t([np.mean(one["reward"][:updates]) - np.mean(other["reward"][:updates]) for one, other in pairs]),
            paired_t([_area_over_tokens(one, tokens) - _area_over_tokens(other, tokens) for one, other in pairs]),
        ]
        found[label] = Lengths(*tests, _per_update(own) / per_update, own[min(own)]["value"])
    return found


def _at_best_rate(runs: list[dict[str, Any]], label: str) -> dict[int, dict[str, Any]]:
    """The verdict's runs by seed. They are made at the best rate alone."""
    return {run["seed"]: run for run in runs if run["label"] == label and run["phase"] == "verdict"}


def _per_update(runs: dict[int, dict[str, Any]]) -> float:
    return float(np.mean([run["generated"][-1] / len(run["generated"]) for run in runs.values()]))


def _area_over_tokens(run: dict[str, Any], limit: float) -> float:
    """Mean reward up to `limit` generated tokens; an update counts by its tokens, the last one by those below it."""
    ends = np.minimum(run["generated"], limit)
    return float(np.sum(np.diff(ends, prepend=0.0) * run["reward"]) / limit)


def tokens_table(forks: Mapping[str, Any], rollouts: dict[str, Any]) -> str:
    """VinePPO and SPO-chain against GRPO at equal updates and at equal generated tokens."""
    rows = [
        [f"{label}, `demo_hum`", difference(found.updates), difference(found.generated), f"{found.cost:.1f}×"]
        for label, found in rollout_tests(rollouts).items()
    ]
    for name in ("vine_ppo", "spo_chain"):
        test, tokens = verdicts(forks, "C")[name].test, forks["units"][f"C/{name}"]["tokens"]
        rows.append([f"{ALGORITHMS[name].label}, bed C", difference(test), "", f"{tokens:.1f}×"])
    return table(["area minus GRPO's", "equal updates", "equal generated tokens", "tokens per update"], rows)


def embedded_table(results: dict[str, Any]) -> str:
    """The presets on the embedded task: the primary metric with its test, the others without."""
    primary, *others = (
        {row.label: row for row in compare_results(results, key)} for key in ("area", "end", "prompts", "generated")
    )
    rows = []
    for label, row in primary.items():
        test = "GRPO's gradient" if row.label in results["same_gradient"] else f"{row.holm:.2g}"
        interval = f"{signed(row.difference)} [{signed(row.low)}, {signed(row.high)}]" if row.low is not None else ""
        rows.append(
            [label, _bold(interval, row.holm or 1.0), test, *(_secondary(other.get(label)) for other in others)]
        )
    return table(["minus GRPO", "area, 95 %", "Holm's p", "end", "at equal prompts", "at equal tokens"], rows)


def _secondary(row: ScoreRow | None) -> str:
    return "" if row is None else difference(_test(row))


def crossing_table(forks: Mapping[str, Any]) -> str:
    """S-trace minus GRPO in C at the smallest rate, by where one stops."""
    base, rows = forks["units"]["crossing/grpo"]["at"], []
    for name in ("s_trace", "reference", "vine_ppo"):
        own = forks["units"][f"crossing/{name}"]["at"]
        cells = [difference(paired_t(np.subtract(own[str(n)], base[str(n)]))) for n in CROSSING]
        rows.append([ALGORITHMS[name].label, *cells])
    return table(["expected reward minus GRPO's", *(f"after {n} updates" for n in CROSSING)], rows)


def all_tables() -> dict[str, str]:
    """The tables of docs/which.md, by name."""
    forks = read_forks(RESULTS / "forks" / "results.json")
    hum, untuned = load("hum/results.json"), load("hum/untuned.json")
    tables = {name: lines_table(bed_lines(forks, name), f"area minus GRPO's, {_where(name)}") for name in BED}
    tables["hum"] = lines_table(hum_lines(hum, untuned), "area minus GRPO's, `demo_hum`")
    tables["factorial"] = factorial_table(hum)
    tables["hum_rates"] = rates_table(hum)
    tables["tokens"] = tokens_table(forks, load("rollouts/results.json"))
    tables["crossing"] = crossing_table(forks)
    return tables


def _where(situation: str) -> str:
    setting, _, updates = BED[situation]
    return f"bed {setting}" + (f", {updates} updates per batch" if updates > 1 else "")


def draw_figures(forks: Mapping[str, Any], hum: dict[str, Any], untuned: dict[str, Any]) -> None:
    """A forest plot for each situation."""
    FIGURES.mkdir(exist_ok=True)
    for name in BED:
        _draw(name, bed_lines(forks, name))
    _draw("hum", hum_lines(hum, untuned))


def _draw(name: str, lines: list[Line]) -> None:
    figure = Figure(figsize=(6.4, 0.9 + 0.27 * len(lines)), dpi=100, layout="constrained")
    axes = figure.subplots()
    for tuned, colour, shift in ((True, "#c2410c", 0.14), (False, "#2563eb", -0.14)):
        found = [(place, line.tuned if tuned else line.untuned) for place, line in enumerate(reversed(lines))]
        points = [(place + shift, test) for place, test in found if test is not None and test.high is not None]
        axes.errorbar(
            [test.value for _, test in points],
            [place for place, _ in points],
            xerr=[test.high - test.value for _, test in points],
            fmt="o",
            markersize=3.5,
            linewidth=1.2,
            color=colour,
            label="rate tuned" if tuned else "rate untuned",
        )
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_yticks(range(len(lines)), [line.name for line in reversed(lines)])
    axes.set_xlabel("area minus GRPO's, 95 % paired t interval", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7, frameon=False)
    FigureCanvasAgg(figure).print_png(FIGURES / f"{name}.png", metadata={"Software": None})


def main() -> None:
    """Fills both pages and draws the figures."""
    write(PAGE, all_tables())
    write(EMBEDDED, {"embedded": embedded_table(load("embedded/results.json"))})
    draw_figures(read_forks(RESULTS / "forks" / "results.json"), load("hum/results.json"), load("hum/untuned.json"))


if __name__ == "__main__":
    main()
