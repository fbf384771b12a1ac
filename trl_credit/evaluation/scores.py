"""From the lines of a sample file to a row of the table."""

import zlib
from collections.abc import Sequence
from typing import Any

from .estimators import average_at_k, best_at_k, majority_at_k, mean_interval, pass_at_k
from .protocols import ha_dw_level, split_metric


_ESTIMATES = {"pass": pass_at_k, "best": best_at_k, "avg": average_at_k}
_MATH_LEVELS = {"easy": "easy (level 1)", "mid": "mid (levels 2, 3)", "hard": "hard (levels 4, 5)"}


def problem_score(metric: str, line: dict[str, Any], verdict: str = "correct") -> float:
    """pass@k, best@k, avg@k or maj@k of one problem, in [0, 1], by the verdicts of that name.

    Raises:
        ValueError: k is more than the samples of the problem.
    """
    kind, k = split_metric(metric)
    samples = line["samples"]
    if kind == "maj":
        return majority_at_k([s["answer"] for s in samples], [s[verdict] for s in samples], k)
    return _ESTIMATES[kind](len(samples), sum(s[verdict] for s in samples), k)


def score_row(header: dict[str, Any], lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of one model, set and protocol, with 95 % intervals over problems, overall and by difficulty level.

    Answers are read permissively; `metrics_strict` has the same metrics of answers as training reads them.

    Args:
        header (`dict`):
            Of the sample file.
        lines (`Sequence[dict]`):
            One per problem, judged.
    """
    samples = [sample for line in lines for sample in line["samples"]]
    scores = {metric: [problem_score(metric, line) for line in lines] for metric in header["metrics"]}
    by_level: dict[str, list[int]] = {}
    for i, line in enumerate(lines):
        if "level" in line["reference"]:
            by_level.setdefault(level_name(header["set"], line["reference"]["level"]), []).append(i)
    strict = {}
    if all("correct_strict" in sample for sample in samples):
        strict = {
            metric: _with_interval([problem_score(metric, line, "correct_strict") for line in lines])
            for metric in header["metrics"]
        }
    return {
        "model": header["model"],
        "revision": header["revision"],
        "set": header["set"],
        "protocol": header["protocol"],
        "problems": len(lines),
        "samples_per_problem": header["samples"],
        "temperature": header["temperature"],
        "metrics": {metric: _with_interval(values) for metric, values in scores.items()},
        **({"metrics_strict": strict} if strict else {}),
        "mean_length_tokens": sum(s["length"] for s in samples) / len(samples),
        "truncated_share": sum(s["truncated"] for s in samples) / len(samples),
        "by_level": {
            level: {
                "problems": len(rows),
                "metrics": {m: _with_interval([values[i] for i in rows]) for m, values in scores.items()},
            }
            for level, rows in sorted(by_level.items(), key=lambda item: _order(item[0]))
        },
    }


def level_name(set_name: str, level: object) -> str:
    """HA-DW's split for MATH and its subset of 500, the set's own level elsewhere."""
    return _MATH_LEVELS[ha_dw_level(level)] if set_name in ("math", "math500") else str(level)


def _order(level: str) -> tuple[int, str]:
    names = list(_MATH_LEVELS.values())
    return (names.index(level) if level in names else len(names), level.zfill(8))


def _with_interval(scores: Sequence[float]) -> dict[str, Any]:
    # one seed for all rows: two models on the same problems are resampled alike
    interval = mean_interval(scores, seed=zlib.crc32(b"trl_credit"))
    return {"value": sum(scores) / len(scores), "low": interval.low, "high": interval.high, "interval": interval.kind}
