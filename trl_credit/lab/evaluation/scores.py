"""pass@k, best@k, avg@k and maj@k from the verdicts on a problem's samples, and the row of a model's scores."""

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from math import comb
from typing import Any

from ..statistics import mean_interval
from .protocols import check_samples, ha_dw_level, split_metric


Row = dict[str, Any]
_IGNORED = re.compile(r"\s+|\\[!,;: ]|\\(?:left|right)(?![A-Za-z])|\$")
_MATH_LEVELS = {"easy": "easy (level 1)", "mid": "mid (levels 2, 3)", "hard": "hard (levels 4, 5)"}


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 − C(n−c, k) / C(n, k): probability that k of n samples, c of which are right, contain a right one.

    The unbiased estimator of Chen et al. (arXiv 2107.03374, Eq. 1), computed in integers and rounded once.
    """
    subsets = comb(n, k)
    return (subsets - comb(n - c, k)) / subsets


def majority(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """maj@n: whether the most frequent answer of the n samples is right.

    If m answers tie for the most votes, the score is 1/m. Right samples vote together, however they write the answer;
    wrong ones vote together if their [`normal_form`] is equal. Wrong samples without an answer do not vote. Without
    votes the score is 0.

    Args:
        answers (`Sequence[str | None]`):
            Extracted answers; `None` if there is none.
        correct (`Sequence[bool]`):
            Whether each is right.
    """
    right, pairs = sum(correct), zip(answers, correct, strict=True)
    rivals = Counter(normal_form(answer) for answer, is_right in pairs if not is_right and answer is not None)
    most = max(rivals.values(), default=0)
    if right == 0 or right < most:
        return 0.0
    return 1 / (1 + list(rivals.values()).count(right))


def normal_form(answer: str) -> str:
    """An answer without spaces, `$`, `\\left`, `\\right` and a final full stop, which do not change its meaning.

    Equal normal forms vote together. No mathematics is done: 0.5 and 1/2 are two answers unless both are right.
    """
    return _IGNORED.sub("", answer).removesuffix(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")


def problem_score(metric: str, line: dict[str, Any], verdict: str = "correct") -> float:
    """The score of one problem, in [0, 1], from the verdicts `correct` or `correct_strict` on its n samples.

    * pass@k: see [`pass_at_k`].
    * best@k: 1 − (1 − c/n)^k, probability that k draws with replacement contain one of the c right samples. veRL's
      best@k, which bootstraps, converges to it. With n = k samples it is at most pass@k. The mean of pass@k over N
      problems is then a multiple of 1/N; the mean of best@k need not be one.
    * avg@k: c / n, the mean over all subsets of k samples of the share of right ones, for every k.
    * maj@k: see [`majority`]; k is n.

    Raises:
        ValueError: k is larger than the number of samples, or another number for maj@k.
    """
    kind, k = split_metric(metric)
    correct = [sample[verdict] for sample in line["samples"]]
    n, c = len(correct), sum(correct)
    check_samples(metric, n)
    if kind == "maj":
        return majority([sample["answer"] for sample in line["samples"]], correct)
    if kind == "pass":
        return pass_at_k(n, c, k)
    return 1 - (1 - c / n) ** k if kind == "best" else c / n


def score_row(header: dict[str, Any], lines: Sequence[dict[str, Any]]) -> Row:
    """Scores of one model, set and protocol with 95 % intervals over problems, overall and by difficulty level.

    `metrics` uses the permissive verdicts, `metrics_strict` those that training uses.

    Args:
        header (`dict`):
            Header of the sample file.
        lines (`Sequence[dict]`):
            One per problem, judged.
    """
    metrics = header["metrics"]
    samples = [sample for line in lines for sample in line["samples"]]
    has_strict = all("correct_strict" in sample for sample in samples)
    by_level: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if "level" in line["reference"]:
            by_level.setdefault(level_name(header["set"], line["reference"]["level"]), []).append(line)
    return {
        **{name: header[name] for name in ("model", "revision", "set", "protocol")},
        "problems": len(lines),
        "samples_per_problem": header["samples"],
        "temperature": header["temperature"],
        "metrics": _with_intervals(metrics, lines, "correct"),
        **({"metrics_strict": _with_intervals(metrics, lines, "correct_strict")} if has_strict else {}),
        "mean_length_tokens": sum(s["length"] for s in samples) / len(samples),
        "truncated_share": sum(s["truncated"] for s in samples) / len(samples),
        "by_level": {
            level: {"problems": len(of_level), "metrics": _with_intervals(metrics, of_level, "correct")}
            for level, of_level in sorted(by_level.items(), key=_level_order)
        },
    }


def level_name(set_name: str, level: object) -> str:
    """HA-DW's split for MATH and MATH500; the level itself for other sets."""
    return _MATH_LEVELS[ha_dw_level(level)] if set_name in ("math", "math500") else str(level)


def _level_order(item: tuple[str, Any]) -> tuple[int, str]:
    names = list(_MATH_LEVELS.values())
    return (names.index(item[0]) if item[0] in names else len(names), item[0].zfill(8))


def _with_intervals(metrics: Sequence[str], lines: Sequence[dict[str, Any]], verdict: str) -> dict[str, dict[str, Any]]:
    result = {}
    for metric in metrics:
        scores = [problem_score(metric, line, verdict) for line in lines]
        # one seed for all rows: two models are resampled alike
        low, high, kind = mean_interval(scores, seed=zlib.crc32(b"trl_credit"))
        result[metric] = {"value": sum(scores) / len(scores), "low": low, "high": high, "interval": kind}
    return result
