"""`trl-credit eval A B`: paired differences to the first model, per set and metric, as rows, Markdown and JSON."""

import json
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from .differences import holm, paired_difference
from .loading import shown
from .pairs import Pair, make_pairs, metrics_of
from .power import Needed, Spread, needed
from .problems import set_label
from .protocols import split_metric
from .runner import evaluate, sample_path
from .store import write_atomically
from .stored import Stored, chosen, find_stored, is_evaluation, read_stored
from .tables import Row, escaped, table


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
    """Compares models with the first of them on the problems that both have, and writes `differences.md` and `.json`.

    Args:
        models (`Sequence[str]`):
            Two or more: models as for [`evaluate`], or folders of an evaluation, whose samples are taken as they are.
        sets (`Sequence[str]`, *optional*):
            As for `evaluate`; without `protocols` which of the stored sets.
        output_dir (`str` or `Path`):
            For the two files, and for what is evaluated.
        protocols (`Sequence[str]`, *optional*):
            With it models are evaluated first, as far as their samples are not there. Without it all samples are
            stored ones: in `output_dir`, or in a model's own `evaluation`.
        metrics (`Sequence[str]`, *optional*):
            By default those that both were evaluated by.
        revision (`str`, *optional*):
            For models on the Hub.
        options (*optional*):
            For `evaluate`.

    Returns:
        `list[dict]`: the rows of the table. Differences are second minus first, in [−1, 1].

    Raises:
        ValueError: fewer than two models, no stored samples, or samples that cannot be compared; the message names
            what differs.
        OSError: a model that cannot be loaded.
    """
    if len(models) < 2 or len(set(models)) < len(models):
        raise ValueError(f"a comparison wants two models or more, each named once, got {' '.join(models)}")
    folder = Path(output_dir)
    labels = None if sets is None else [set_label(name) for name in sets]
    fresh = [] if protocols is None else [model for model in models if not is_evaluation(model)]
    stored = {
        model: chosen(find_stored(model, folder, revision), labels, protocols) for model in models if model not in fresh
    }
    if fresh:
        options["changes"] = {**(options.get("changes") or {}), "metrics": metrics}
        rows = evaluate(fresh, sets, protocols=protocols, output_dir=folder, revision=revision, **options)
        each = len(rows) // len(fresh)  # all models under all protocols, in order
        for i, model in enumerate(fresh):
            stored[model] = [_of_row(folder, row) for row in rows[i * each : (i + 1) * each]]
    return write_comparison(folder, {model: stored[model] for model in models}, metrics)


def write_comparison(folder: Path, stored: dict[str, list[Stored]], metrics: Sequence[str] | None = None) -> list[Row]:
    """The rows of a comparison with the first of some models, written into a folder; p-values corrected for all rows.

    Raises:
        ValueError: samples that cannot be compared.
    """
    names = _names(stored)
    first, rows, left_out = next(iter(stored.values())), [], []
    for name, theirs in list(zip(names, stored.values(), strict=True))[1:]:
        pairs, alone = make_pairs(first, theirs, (names[0], name))
        left_out += alone
        for pair in pairs:
            rows += [difference_row(pair, metric, (names[0], name)) for metric in metrics_of(pair, metrics)]
            if pair.left_out:
                where = f"{pair.first.header['set']} that not both of {names[0]} and {name} have"
                left_out.append(f"{pair.left_out} problems of {where}")
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    write_differences(folder, rows, left_out)
    return rows


def difference_row(pair: Pair, metric: str, names: tuple[str, str]) -> Row:
    """One comparison: of two models, on one set, by one metric."""
    first, second = pair.scores(metric)
    found = paired_difference(first, second)
    kind, k = split_metric(metric)
    needs = needed(found.value, [b - a for a, b in zip(first, second, strict=True)], _spread(pair, kind, k))
    return {
        "baseline": names[0],
        "model": names[1],
        "set": pair.second.header["set"],
        "protocol": pair.second.protocol,
        "metric": metric,
        "problems": len(first),
        "samples": [pair.first.samples, pair.second.samples],
        "values": [sum(first) / len(first), sum(second) / len(second)],
        "difference": found.value,
        "low": found.interval.low,
        "high": found.interval.high,
        "interval": found.interval.kind,
        "p": found.p,
        "better": found.better,
        "worse": found.worse,
        "same": found.same,
        "needed_problems": needs.problems,
        **_samples_needed(needs),
    }


def write_differences(folder: Path, rows: Sequence[Row], left_out: Sequence[str]) -> None:
    """`differences.json` and `differences.md`, each whole or not at all."""
    content = {"version": DIFFERENCES_VERSION, "comparisons": len(rows), "left_out": list(left_out), "rows": list(rows)}
    write_atomically(folder / "differences.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_atomically(folder / "differences.md", differences_markdown(rows, left_out))


def differences_markdown(rows: Sequence[Row], left_out: Sequence[str]) -> str:
    """A table with a line per comparison, and what its columns mean."""
    k = len(rows)
    together = "" if k == 1 else f" p (Holm): for the {k} lines together."
    text = (
        "Paired differences in points of percent, from the baseline to the model: the mean over the problems that both "
        "have, with the 95 % bootstrap interval over problems, each with all its samples. p: two-sided, by flipping "
        f"the signs of whole problems.{together} Needed, to find a difference of just this size with 80 % power at "
        "α = 0.05: so many problems with these samples, or so many samples of each of these problems."
    )
    if any(row["interval"] == "wilson" for row in rows):
        text += (
            " W: all problems differ alike, most often by nothing. No difference seen is not no difference: the "
            "interval is Wilson's bound on what other problems could change."
        )
    head = ["model", "baseline", "set", "metric", "problems", "samples", "scores", "difference", "p", "p (Holm)"]
    head += ["better, worse, same", "problems needed", "samples needed"]
    body = [
        [
            row["model"],
            row["baseline"],
            f"{row['set']} ({row['protocol']})",
            row["metric"],
            str(row["problems"]),
            " and ".join(map(str, dict.fromkeys(row["samples"]))),
            " → ".join(f"{100 * value:.1f}" for value in row["values"]),
            f"{_signed(row['difference'])} [{_signed(row['low'])}, {_signed(row['high'])}]"
            + (" W" if row["interval"] == "wilson" else ""),
            _p(row["p"]),
            _p(row["p_holm"]),
            f"{row['better']}, {row['worse']}, {row['same']}",
            _number(row["needed_problems"]),
            "more problems" if row["samples_suffice"] is False else _number(row["needed_samples"]),
        ]
        for row in rows
    ]
    if k == 1:
        head, *body = (
            [cell for cell, name in zip(line, head, strict=True) if name != "p (Holm)"] for line in (head, *body)
        )
    return text + "\n\n" + table(head, body) + "".join(f"\nLeft out: {escaped(what)}.\n" for what in left_out)


def _spread(pair: Pair, kind: str, k: int) -> Spread | None:
    """For pass@k and avg@k, where there are samples enough to tell the variances apart; greedy ones have but one."""
    if kind not in ("pass", "avg"):
        return None
    k = k if kind == "pass" else 1
    enough = min(pair.first.samples, pair.second.samples) >= 2 * k and len(pair.lines) > 1
    return Spread(*pair.verdicts(), k) if enough else None


def _samples_needed(needs: Needed) -> dict[str, Any]:
    if needs.samples is None:
        return {"needed_samples": None, "samples_suffice": None}
    suffice = isfinite(needs.samples)
    return {"needed_samples": int(needs.samples) if suffice else None, "samples_suffice": suffice}


def _of_row(folder: Path, row: Row) -> Stored:
    found = read_stored(sample_path(folder, row["model"], row["set"], row["protocol"]))
    # a file that was there already may have been scored by other metrics
    return replace(found, header={**found.header, "metrics": list(row["metrics"])})


def _names(stored: dict[str, list[Stored]]) -> list[str]:
    """The models' names in the samples, with commits; where two are the same, those of the folders."""
    tries = (
        [_name(one[0].header) if one else word for word, one in stored.items()],
        [shown(Path(word)) if Path(word).is_dir() else word for word in stored],
    )
    return next((names for names in tries if len(set(names)) == len(names)), list(stored))


def _name(header: dict[str, Any]) -> str:
    return f"{header['model']} ({header['revision'][:12]})" if header["revision"] else header["model"]


def _signed(share: float) -> str:
    text = f"{100 * share:+.1f}".replace("-", "−")
    return "0.0" if text[1:] == "0.0" else text


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def _number(number: int | None) -> str:
    return "–" if number is None else str(number)
