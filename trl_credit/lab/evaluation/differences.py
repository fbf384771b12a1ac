"""`trl-credit eval A B`: paired differences from the first model, in `differences.json` and `differences.md`."""

import json
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from ...support.files import write_atomically
from ..statistics import holm, paired_difference
from ..tables import table_of
from .problems import set_label
from .protocols import split_metric
from .runner import evaluate
from .sample_store import Line, SampleFile, is_evaluation, read_evaluation, read_stored, sample_path
from .samplers import relative_name
from .score_report import in_points, model_label, p_value, render
from .scores import Row, problem_score


# header fields that must agree; the number of samples, the seed and the engine may differ
SAME = ("temperature", "max_new_tokens", "max_context", "top_p", "top_k", "prompt_style")
SAME += ("chat_template_kwargs", "reward", "reward_source")
# (z_(1−α/2) + z_power)² of the normal distribution, for a power of 0.8 at α = 0.05, two-sided
_FACTOR = (NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)) ** 2


def compare_models(
    models: Sequence[str],
    sets: Sequence[str] | None = None,
    *,
    output_dir: str | Path,
    protocols: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    **options: Any,
) -> list[Row]:
    """Compares models with the first one on the problems that both have, and writes `differences.md` and `.json`.

    Args:
        models (`Sequence[str]`):
            Two or more: models as for [`evaluate`], or folders of an evaluation, whose stored samples are used.
        sets (`Sequence[str]`, *optional*):
            As for `evaluate`; of stored samples, those to compare.
        output_dir (`str` or `Path`):
            Folder for the two files, and for what is evaluated.
        protocols (`Sequence[str]`, *optional*):
            As for `evaluate`, which models need; of stored samples, those to compare.
        metrics (`Sequence[str]`, *optional*):
            Defaults to those that both models were evaluated by.
        options (*optional*):
            Further arguments of `evaluate`.

    Returns:
        `list[dict]`: the rows of the table. Differences are second minus first, in [−1, 1]. p-values are corrected for
        all rows together.

    Raises:
        ValueError: fewer than two models, no protocol for a model, or samples that cannot be compared; the message
            names what differs.
        OSError: a model that cannot be loaded.
    """
    if len(models) < 2 or len(set(models)) < len(models):
        raise ValueError(f"a comparison needs two models or more, each named once, got {' '.join(models)}")
    folder = Path(output_dir)
    labels = None if sets is None else [set_label(name) for name in sets]
    files = {model: read_evaluation(model, labels, protocols) for model in models if is_evaluation(model)}
    sampled = [model for model in models if model not in files]
    if sampled and protocols is None:
        raise ValueError(f"{sampled[0]!r} is not the folder of an evaluation: give a --protocol to sample with")
    for model in sampled:
        changes = {**(options.get("changes") or {}), "metrics": metrics}
        rows = evaluate([model], sets, protocols=protocols, output_dir=folder, **{**options, "changes": changes})
        files[model] = [read_stored(sample_path(folder, row["model"], row["set"], row["protocol"])) for row in rows]
        for file, row in zip(files[model], rows, strict=True):  # an existing file may have been scored by other metrics
            file.header["metrics"] = list(row["metrics"])
    rows, left_out = [], []
    baseline, *others = _names({model: files[model] for model in models})
    for name, model in zip(others, models[1:], strict=True):
        pairs, alone = _partners(files[models[0]], files[model], (baseline, name))
        left_out += alone
        for first, second in pairs:
            lines = _paired_lines(first, second, (baseline, name))
            for metric in _metrics(first, second, metrics):
                rows.append({"baseline": baseline, "model": name, **_difference_row(first, second, lines, metric)})
            if count := len(first.lines) + len(second.lines) - 2 * len(lines):
                left_out.append(f"{count} problems of {first.header['set']} that only one of {baseline} and {name} has")
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    content = {"version": 1, "comparisons": len(rows), "left_out": left_out, "rows": rows}
    write_atomically(folder / "differences.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    table = table_of([_cells(row, several=len(rows) > 1) for row in rows])
    report = render("differences.md.jinja", rows=rows, table=table, left_out=left_out)
    write_atomically(folder / "differences.md", report)
    return rows


def _names(files: dict[str, list[SampleFile]]) -> list[str]:
    """The models' labels in the samples, or their folders if two labels are equal."""
    labels = [model_label(samples[0].header) if samples else word for word, samples in files.items()]
    folders = [relative_name(Path(word)) if Path(word).is_dir() else word for word in files]
    return labels if len(set(labels)) == len(labels) else folders


def _partners(
    first: Sequence[SampleFile], second: Sequence[SampleFile], names: tuple[str, str]
) -> tuple[list[tuple[SampleFile, SampleFile]], list[str]]:
    """Pairs of equal sets and protocols, and sentences on the samples that only one model has.

    Raises:
        ValueError: nothing is in common.
    """
    equal = [(a, b) for a in first for b in second if (a.header["set"], a.protocol) == (b.header["set"], b.protocol)]
    pairs: list[tuple[SampleFile, SampleFile]] = []
    # equal labels first; then a changed protocol, which may differ in nothing but the number of samples
    for a, b in sorted(equal, key=lambda pair: pair[0].label != pair[1].label):
        if not any(a is first_file or b is second_file for first_file, second_file in pairs):
            pairs.append((a, b))
    paired = [file.path for pair in pairs for file in pair]
    files = [(name, file) for name, of_model in zip(names, (first, second), strict=True) for file in of_model]
    alone = [f"only {name} has {file.label}" for name, file in files if file.path not in paired]
    if not pairs:
        raise ValueError(f"there is nothing to compare: {'; '.join(alone) or 'no samples of these sets and protocols'}")
    return pairs, alone


def _paired_lines(first: SampleFile, second: SampleFile, names: tuple[str, str]) -> list[tuple[Line, Line]]:
    """The lines of both models for each problem that both have.

    Raises:
        ValueError: a setting, a gold or a prompt differs, or no problem is in common; the message names it.
    """
    where = f"{names[0]!r} and {names[1]!r} on {first.label} cannot be compared"
    for key in SAME:
        if (a := first.header.get(key)) != (b := second.header.get(key)):
            raise ValueError(f"{where}: {key} is {a!r} and {b!r}. Evaluate one with the other's")
    partners = {line["id"]: line for line in second.lines}
    lines = [(line, partners[line["id"]]) for line in first.lines if line["id"] in partners]
    if not lines:
        raise ValueError(f"{where}: they have no problem id in common. Check that it is one set")
    # prompts are messages for one tokenizer and text for another: their digests are compared instead
    own = {"prompt": None}
    unlike = [a["id"] for a, b in lines if a["prompt"] != b["prompt"] or a["reference"] | own != b["reference"] | own]
    if unlike:
        which = f"{len(unlike)} of {len(lines)} problems of the same id have another prompt, answer or column"
        raise ValueError(f"{where}: {which}, such as {unlike[0]!r}. Use one set for both")
    return lines


def _metrics(first: SampleFile, second: SampleFile, chosen: Sequence[str] | None) -> list[str]:
    """The metrics asked for, or those that both models were evaluated by.

    Raises:
        ValueError: none can be compared.
    """
    metrics = chosen or [metric for metric in first.header["metrics"] if metric in second.header["metrics"]]
    if first.header["samples"] != second.header["samples"]:  # on which the bias of best@k depends
        metrics = [metric for metric in metrics if split_metric(metric)[0] not in ("best", "maj")]
    if not metrics:
        why = f"no metric of {first.label} can be compared (best@k and maj@k need equal numbers of samples)"
        raise ValueError(f"{why}: give --metrics pass@1")
    return metrics


def _difference_row(first: SampleFile, second: SampleFile, lines: Sequence[tuple[Line, Line]], metric: str) -> Row:
    """The comparison of two models on one set by one metric."""
    scores = [[problem_score(metric, line) for line in of_model] for of_model in zip(*lines, strict=True)]
    row = {"set": second.header["set"], "protocol": second.protocol, "metric": metric, "problems": len(lines)}
    row["samples"] = [first.header["samples"], second.header["samples"]]
    row["values"] = [sum(of_model) / len(lines) for of_model in scores]
    row |= paired_difference(*scores)._asdict()
    return row | {"needed_problems": needed_problems(np.subtract(scores[1], scores[0]))}


def needed_problems(differences: np.ndarray) -> int | None:
    """Problems that find the mean of these differences with power 0.8 at α = 0.05: (z_(1−α/2) + z_power)² s² / mean²,
    rounded up, at least 2. `None` for a mean of 0, or fewer than 2 problems."""
    mean = differences.mean()
    if len(differences) < 2 or np.isclose(mean, 0, atol=1e-12):
        return None
    return max(2, ceil(_FACTOR * differences.var(ddof=1) / mean**2))


def _cells(row: Row, *, several: bool) -> dict[str, str]:
    """A line of the table."""
    interval = f"[{in_points(row['low'])}, {in_points(row['high'])}]" + " W" * (row["interval"] == "wilson")
    return {
        "model": row["model"],
        "baseline": row["baseline"],
        "set": f"{row['set']} ({row['protocol']})",
        "metric": row["metric"],
        "problems": str(row["problems"]),
        "samples": " and ".join(map(str, dict.fromkeys(row["samples"]))),
        "scores": " → ".join(f"{100 * value:.1f}" for value in row["values"]),
        "difference": f"{in_points(row['difference'])} {interval}",
        "p": p_value(row["p"]),
        **({"p (Holm)": p_value(row["p_holm"])} if several else {}),
        "better, worse, same": f"{row['better']}, {row['worse']}, {row['same']}",
        "problems needed": str(row["needed_problems"] or "–"),
    }
