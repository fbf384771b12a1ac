"""`trl-credit eval A B`: paired differences from the first model, in `differences.json` and `differences.md`."""

import json
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from ...support.files import write_atomically
from ..statistics import holm, paired_difference
from ..tables import escape_markdown, markdown_table
from .models import relative_name
from .pairs import Pair, comparable_metrics, make_pairs, select
from .power import Spread, needed
from .problems import set_label
from .protocols import split_metric
from .runner import evaluate
from .sample_store import StoredSamples, find_stored, is_evaluation, read_stored, sample_path
from .score_report import model_label
from .scores import Row


DIFFERENCES_VERSION = 1


def compare_models(
    models: Sequence[str],
    sets: Sequence[str] | None = None,
    *,
    output_dir: str | Path,
    protocols: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    revision: str | None = None,
    **options: Any,
) -> list[Row]:
    """Compares models with the first one on the problems that both have, and writes `differences.md` and `.json`.

    Args:
        models (`Sequence[str]`):
            Two or more: models as for [`evaluate`], or folders of an evaluation, whose stored samples are used.
        sets (`Sequence[str]`, *optional*):
            As for `evaluate`; without `protocols`, the stored sets to compare.
        output_dir (`str` or `Path`):
            Folder for the two files, and for what is evaluated.
        protocols (`Sequence[str]`, *optional*):
            If given, samples that are missing are generated first. Else all samples are stored ones, in `output_dir` or
            in a model's own `evaluation`.
        metrics (`Sequence[str]`, *optional*):
            Defaults to those that both models were evaluated by.
        revision (`str`, *optional*):
            For models on the Hub.
        options (*optional*):
            Further arguments of `evaluate`.

    Returns:
        `list[dict]`: the rows of the table. Differences are second minus first, in [−1, 1].

    Raises:
        ValueError: fewer than two models, no stored samples, or samples that cannot be compared; the message names
            what differs.
        OSError: a model that cannot be loaded.
    """
    if len(models) < 2 or len(set(models)) < len(models):
        raise ValueError(f"a comparison needs two models or more, each named once, got {' '.join(models)}")
    folder = Path(output_dir)
    labels = None if sets is None else [set_label(name) for name in sets]
    to_evaluate = [] if protocols is None else [model for model in models if not is_evaluation(model)]
    stored = {
        model: select(find_stored(model, folder, revision), labels, protocols)
        for model in models
        if model not in to_evaluate
    }
    if to_evaluate:
        options["changes"] = {**(options.get("changes") or {}), "metrics": metrics}
        rows = evaluate(to_evaluate, sets, protocols=protocols, output_dir=folder, revision=revision, **options)
        each = len(rows) // len(to_evaluate)
        for i, model in enumerate(to_evaluate):
            stored[model] = [_samples_of_row(folder, row) for row in rows[i * each : (i + 1) * each]]
    return write_comparison(folder, {model: stored[model] for model in models}, metrics)


def write_comparison(
    folder: Path, stored: dict[str, list[StoredSamples]], metrics: Sequence[str] | None = None
) -> list[Row]:
    """Compares the samples of each model with those of the first, and writes the two files.

    p-values are corrected for all rows together.

    Raises:
        ValueError: samples that cannot be compared.
    """
    names = _names(stored)
    (baseline, first), *others = zip(names, stored.values(), strict=True)
    rows, left_out = [], []
    for name, second in others:
        pairs, alone = make_pairs(first, second, (baseline, name))
        left_out += alone
        for pair in pairs:
            rows += [_difference_row(pair, metric, (baseline, name)) for metric in comparable_metrics(pair, metrics)]
            if pair.left_out:
                left_out.append(
                    f"{pair.left_out} problems of {pair.first.header['set']} that only one of {baseline} and {name} has"
                )
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    content = {"version": DIFFERENCES_VERSION, "comparisons": len(rows), "left_out": left_out, "rows": rows}
    write_atomically(folder / "differences.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_atomically(folder / "differences.md", _markdown(rows, left_out))
    return rows


def _difference_row(pair: Pair, metric: str, names: tuple[str, str]) -> Row:
    """The comparison of two models on one set by one metric."""
    first, second = pair.scores(metric)
    found = paired_difference(first, second)
    kind, k = split_metric(metric)
    k = k if kind == "pass" else 1
    # pass@k and avg@k with enough samples to separate the variances
    samples = pair.first.samples, pair.second.samples
    can_spread = kind in ("pass", "avg") and min(samples) >= 2 * k and len(pair.lines) > 1
    spread = Spread(*pair.verdicts(), k) if can_spread else None
    problems_needed, samples_needed = needed(found.value, [b - a for a, b in zip(first, second, strict=True)], spread)
    suffice = None if samples_needed is None else isfinite(samples_needed)
    return {
        "baseline": names[0],
        "model": names[1],
        "set": pair.second.header["set"],
        "protocol": pair.second.protocol,
        "metric": metric,
        "problems": len(first),
        "samples": list(samples),
        "values": [sum(first) / len(first), sum(second) / len(second)],
        "difference": found.value,
        "low": found.interval.low,
        "high": found.interval.high,
        "interval": found.interval.kind,
        "p": found.p,
        "better": found.better,
        "worse": found.worse,
        "same": found.same,
        "needed_problems": problems_needed,
        "needed_samples": int(samples_needed) if suffice else None,
        "samples_suffice": suffice,
    }


def _markdown(rows: Sequence[Row], left_out: Sequence[str]) -> str:
    """The answer of each comparison, a table with a line for each, and the meaning of its columns."""
    answers = "".join(f"* {_answer(row)}\n" for row in rows)
    text = (
        f"{answers}\nPaired differences in percentage points, model minus baseline: the mean over the problems that "
        "both have, with the 95 % bootstrap interval over problems, each with all its samples. p: two-sided, by "
        f"flipping the signs of whole problems.{f' p (Holm): for the {len(rows)} lines together.' * (len(rows) > 1)} "
        "Needed: "
        "the number of problems with these samples, or of samples of each of these problems, to find a difference of "
        "this size with 80 % power at α = 0.05."
    )
    if any(row["interval"] == "wilson" for row in rows):
        text += (
            " W: all problems differ by the same amount, most often 0. This does not show that they are equal: the "
            "interval is Wilson's bound on what other problems could change."
        )
    lines = [
        {
            "model": row["model"],
            "baseline": row["baseline"],
            "set": f"{row['set']} ({row['protocol']})",
            "metric": row["metric"],
            "problems": str(row["problems"]),
            "samples": " and ".join(map(str, dict.fromkeys(row["samples"]))),
            "scores": " → ".join(f"{100 * value:.1f}" for value in row["values"]),
            "difference": f"{_points(row['difference'])} [{_points(row['low'])}, {_points(row['high'])}]"
            + (" W" if row["interval"] == "wilson" else ""),
            "p": _p_value(row["p"]),
            **({"p (Holm)": _p_value(row["p_holm"])} if len(rows) > 1 else {}),
            "better, worse, same": f"{row['better']}, {row['worse']}, {row['same']}",
            "problems needed": str(row["needed_problems"] or "–"),
            "samples needed": "more problems" if row["samples_suffice"] is False else str(row["needed_samples"] or "–"),
        }
        for row in rows
    ]
    table = markdown_table(list(lines[0]), [list(line.values()) for line in lines])
    return f"{text}\n\n{table}" + "".join(f"\nLeft out: {escape_markdown(what)}.\n" for what in left_out)


def _answer(row: Row) -> str:
    """What a comparison says, in a sentence; the p-value is the one that is corrected for all of them."""
    shown = row["p_holm"] < 0.05
    better = escape_markdown(row["model"] if row["difference"] > 0 else row["baseline"])
    verdict = f"{better} is better" if shown else "no difference shown"
    needed = row["needed_problems"]
    more = f"; one of this size needs about {needed:,} problems" if needed and not shown else ""
    points = f"{_points(row['difference'])} points [{_points(row['low'])}, {_points(row['high'])}]"
    what = f"{escape_markdown(row['model'])} − {escape_markdown(row['baseline'])}, {row['metric']} on {row['set']}"
    return f"{what}: {points}, p = {_p_value(row['p_holm'])}: {verdict}{more}."


def _samples_of_row(folder: Path, row: Row) -> StoredSamples:
    found = read_stored(sample_path(folder, row["model"], row["set"], row["protocol"]))
    # an existing file may have been scored by other metrics
    return replace(found, header={**found.header, "metrics": list(row["metrics"])})


def _names(stored: dict[str, list[StoredSamples]]) -> list[str]:
    """The models' labels in the samples, or their folders if two labels are equal."""
    labels = [model_label(samples[0].header) if samples else word for word, samples in stored.items()]
    folders = [relative_name(Path(word)) if Path(word).is_dir() else word for word in stored]
    return next((names for names in (labels, folders) if len(set(names)) == len(names)), list(stored))


def _points(share: float) -> str:
    text = f"{100 * share:+.1f}".replace("-", "−")
    return "0.0" if text[1:] == "0.0" else text


def _p_value(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"
