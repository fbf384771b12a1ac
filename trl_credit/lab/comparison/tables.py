"""The tables of a report, each made from the content of `results.json`, and their columns of numbers."""

from typing import Any

from .answer import SCORE_WORDS, interval_in_words, signed
from .pages import Block, Heading, Table, Text
from .scoring import SCORES, ScoreRow, compare_results
from .tuning import in_short, tuned_rows


_TITLES = {
    "area": "Over the run",
    "end": "At the end",
    "prompts": "At equal prompts",
    "generated": "At equal generated tokens",
}
_AGAIN = (
    "The same runs, scored again: these differences are not independent of those above. They have intervals, no "
    "verdicts, and no correction."
)


def verdict_table(results: dict[str, Any]) -> Table:
    """The differences by the primary metric, with their tests and verdicts."""
    rows = compare_results(results, results["primary"])
    compared, *counted = _head(results)
    head = [compared, "verdict", *counted[:2], "p after Holm", "p", "p by sign flips", *counted[2:]]
    cells = []
    for row in rows:
        same = row.label in results["same_gradient"]
        verdict = "same gradient" if same else row.verdict
        label, *numbers = _numbers(row)
        cells.append([label, verdict, *numbers[:2], _p(row.holm), _p(row.p), _p(row.flip_p), *numbers[2:]])
    return Table(head, cells)


def verdict_blocks(results: dict[str, Any]) -> list[Block]:
    """The verdict table under its heading."""
    score = SCORE_WORDS[results["primary"]].format(metric=results["metric"])
    text = f"The primary metric is {score}. A verdict is the t test at 5 % after Holm's correction."
    return [Heading("Verdict", 2), Text(text), verdict_table(results)]


def secondary_blocks(results: dict[str, Any]) -> list[Block]:
    """The other scores of the same runs: differences and intervals without verdicts."""
    others = [key for key in SCORES if key != results["primary"] and _has_score(results, key)]
    blocks: list[Block] = [Heading("Other scores of the same runs", 2), Text(_AGAIN)]
    for key in others:
        rows = [_numbers(row) for row in compare_results(results, key)]
        blocks += [Text(f"{_TITLES[key]}: {SCORES[key]}."), Table(_head(results), rows)]
    return blocks if others else []


def sweep_blocks(results: dict[str, Any]) -> list[Block]:
    """The scores on the tuning seeds by value, and which values were chosen."""
    rows = tuned_rows(results)
    if not rows:
        return []
    score, setting = SCORE_WORDS[results["primary"]].format(metric=results["metric"]), results["sweep"]
    seeds = sorted({run["seed"] for run in results["runs"] if run["phase"] == "tuning"})
    chosen = ", ".join(f"{row.label} {in_short(row.best)}" for row in rows)
    on = f"on the tuning seeds {' '.join(map(str, seeds))}"
    text = f"{score[0].upper()}{score[1:]}, {on}. Chosen: {chosen}."
    values = list(dict.fromkeys(value for row in rows for value in row.scores))
    values = sorted(values) if all(isinstance(value, int | float) for value in values) else values
    scores = [[row.label, *(f"{row.scores[v]:.3f}" if v in row.scores else "–" for v in values)] for row in rows]
    best = [f"{in_short(row.best)}{' (edge)' if row.is_at_edge else ''}" for row in rows]
    table = Table(["algorithm", *map(in_short, values), "best"], [[*s, b] for s, b in zip(scores, best, strict=True)])
    return [Heading(f"Tuning of {setting}", 2), Text(text), table]


def _has_score(results: dict[str, Any], key: str) -> bool:
    return all(run[key] is not None for run in results["runs"] if run["phase"] != "tuning")


def _head(results: dict[str, Any]) -> list[str]:
    return ["algorithm", "difference", "95 % interval", "seeds", results["baseline"], "mean"]


def _numbers(row: ScoreRow) -> list[str]:
    count = str(row.n) if row.paired else f"{row.n}, unpaired"
    return [row.label, signed(row.difference), interval_in_words(row), count, f"{row.baseline:.3f}", f"{row.mean:.3f}"]


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return in_short(float(f"{value:.1g}")) if value < 0.001 else f"{value:.3f}"
