"""The report of a comparison: one template as a Markdown and as an HTML file, with figures and `results.json`."""

import base64
import json
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from ...runs.identity import differences
from ...support.files import atomic_file, inside, write_atomically
from ..tables import for_terminal, markdown_table
from ..viewer.page import source_hash
from .answer import ENVIRONMENT, answer, interval_in_words, notes, signed
from .entries import in_order
from .export import INTERVAL, Table, write_curves, write_tables
from .figures import as_svg, draw_curves, draw_differences
from .grid import TUNING
from .groups import Group, common_axes, in_short
from .histories import AXES
from .results import Results
from .scoring import SCORES, ScoreRow, compare_results
from .settings_tables import differing_settings


FIGURES = "figures"
_P = ("p", "p by sign flips")  # columns
_PACKAGES = ("trl-credit", "trl", "transformers", "torch", "numpy", "scipy")


def write_report(results: Results, folder: Path) -> list[Path]:
    """Writes `report.md`, `report.html`, `results.json`, `curves.parquet`, `figures/` and `tables/`; returns the first
    two.

    Raises:
        OSError: the folder cannot be written to.
    """
    drawn = {}
    for stem, figure in _figures(results).items():
        drawn[stem] = as_svg(figure)
        path = inside(folder, FIGURES) / stem
        write_atomically(f"{path}.svg", drawn[stem])
        for kind, unset in (("png", "Software"), ("pdf", "CreationDate")):
            with atomic_file(f"{path}.{kind}") as file:
                figure.savefig(file, format=kind, dpi=160, metadata={unset: None})
    write_atomically(folder / "results.json", json.dumps(results.content, indent=1, ensure_ascii=False))
    write_tables(_tables(results), folder)
    write_curves(results.groups, folder, metric=results.content["metric"])
    pages = {folder / "report.md": as_markdown(results), folder / "report.html": as_html(results, drawn)}
    for path, text in pages.items():
        write_atomically(path, text)
    return list(pages)


def console_answer(results: Results) -> str:
    """The answer, what must be known beside it, and the verdict table without uncorrected p-values, for a terminal."""
    head, rows = verdict_table(results)
    lines = [[cell for name, cell in zip(head, row, strict=True) if name not in _P] for row in (head, *rows)]
    shown = [markdown_table(lines[0], lines[1:], right=True)] if rows else []
    return for_terminal("\n".join([*answer(results), *notes(results), *results.content["remarks"], "", *shown]))


def as_markdown(results: Results) -> str:
    """A report as GitHub's Markdown. Its figures are PNG files in a folder beside it."""
    text = _render("markdown.jinja", results, table_of=markdown_table, folder=FIGURES)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def as_html(results: Results, drawn: Mapping[str, str]) -> str:
    """A report as one HTML file without scripts or network access.

    `drawn` is the SVG of each figure, by its stem. An SVG in an image element runs no script.
    """
    style = (Path(__file__).parent / "assets" / "report.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; img-src data:; style-src {source_hash(style)}; base-uri 'none'; form-action 'none'"
    images = {stem: base64.b64encode(svg.encode("utf-8")).decode("ascii") for stem, svg in drawn.items()}
    return _render("html.jinja", results, images=images, style=Markup(style), policy=policy)


def _render(template: str, results: Results, **values: Any) -> str:
    """The template of a format, which includes `report.jinja`."""
    environment = ENVIRONMENT.overlay(autoescape="images" in values)
    groups, tables = results.groups, _tables(results)
    return environment.get_template(template).render(
        results=results,
        content=results.content,
        groups=groups,
        answer=" ".join(answer(results)),
        notes=[*notes(results), *results.content["remarks"], *_task_differences(groups)],
        others={results.score(key): tables[key] for key in SCORES if key in tables},
        axes=AXES,
        known_axes=common_axes(groups),
        packages=", ".join(f"{name} {version(name)}" for name in _PACKAGES),
        machine=f"Python {platform.python_version()}, {platform.platform()}",
        **tables,
        **values,
    )


def _figures(results: Results) -> dict[str, Figure]:
    """The figures by the stem of their files."""
    content, score = results.content, results.score()
    figures = {}
    if results.rows:
        same = content["same_gradient"]
        figures["differences"] = draw_differences(results.rows, score=score, baseline=content["baseline"], same=same)
    for axis in common_axes(results.groups):
        figures[axis] = draw_curves(results.groups, axis, metric=content["metric"], baseline=content["baseline"])
    return figures


def _tables(results: Results) -> dict[str, Table]:
    """The tables by the stem of their files; those of the other scores under the names of `SCORES`."""
    scored = [run for run in results.content["runs"] if run["phase"] != TUNING]
    others = [k for k in SCORES if k != results.content["primary"] and all(run[k] is not None for run in scored)]
    head = ["algorithm", "difference", INTERVAL, "seeds", results.content["baseline"], "mean"]  # without verdicts
    return {
        "verdict": verdict_table(results),
        **{key: Table(head, [_numbers(row) for row in compare_results(results.content, key)]) for key in others},
        "sweep": sweep_table(results),
        "cost": _cost_table(results.groups, common_axes(results.groups)),
        "settings": _settings_table(results.content["settings"]),
        "credit": _settings_table(differing_settings(results.groups, of_credit=True)),
    }


def verdict_table(results: Results) -> Table:
    """The differences by the primary metric, with their tests and verdicts."""
    head = ["algorithm", "verdict", "difference", INTERVAL, "p after Holm", *_P, "seeds"]
    rows = []
    for row in results.rows:
        verdict = "same gradient" if row.label in results.content["same_gradient"] else row.verdict
        label, difference, interval, *means = _numbers(row)
        rows.append([label, verdict, difference, interval, *map(_p, (row.holm, row.p, row.flip_p)), *means])
    return Table([*head, results.content["baseline"], "mean"], rows)


def sweep_table(results: Results) -> Table:
    """The scores on the tuning seeds by value, and the best values."""
    rows, values = [], in_order([value for row in results.tuned for value in row.scores])
    for row in results.tuned:
        scores = [f"{row.scores[value]:.3f}" if value in row.scores else "–" for value in values]
        rows.append([row.label, *scores, f"{in_short(row.best)}{' (edge)' if row.is_at_edge else ''}"])
    return Table(["algorithm", *map(in_short, values), "best"], rows)


def _cost_table(groups: Sequence[Group], axes: Sequence[str]) -> Table:
    """The mean totals of the runs of each algorithm."""
    rows = []
    for group in groups:
        means = [np.mean([run.totals[axis] for run in group.runs]) for axis in axes]
        rows.append([group.label, " ".join(map(str, group.seeds)), *(f"{mean:,.0f}" for mean in means)])
    return Table(["algorithm", "seeds", *(AXES[axis] for axis in axes)], rows)


def _settings_table(settings: dict[str, dict[str, Any]]) -> Table:
    rows = [[label, *map(_setting, own.values())] for label, own in settings.items()]
    return Table(["algorithm", *next(iter(settings.values()))], rows)


def _setting(value: Any) -> str:
    text = "–" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _task_differences(groups: Sequence[Group]) -> list[str]:
    """A sentence on what makes a comparison unfair: another model, reward or tokenizer, or other data."""
    tasks = []
    for run in (run for group in groups for run in group.runs):
        # on the embedded task each seed has its own data, with another digest
        data = {**(run.identity.get("data") or {}), "content": None}
        tasks.append({"data": data} | {name: run.identity.get(name) for name in ("model", "reward_funcs", "tokenizer")})
    unlike = {name.partition(".")[0] for task in tasks[1:] for name in differences(tasks[0], task, defaults={})}
    return [f"Different tasks: the runs differ in {', '.join(sorted(unlike))}."] if unlike else []


def _numbers(row: ScoreRow) -> list[str]:
    count = str(row.n) if row.paired else f"{row.n}, unpaired"
    return [row.label, signed(row.difference), interval_in_words(row), count, f"{row.baseline:.3f}", f"{row.mean:.3f}"]


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return in_short(float(f"{value:.1g}")) if value < 0.001 else f"{value:.3f}"
