"""What a comparison answers, in two sentences, and what a reader must know beside them."""

from collections.abc import Sequence

from .grid import TUNING
from .results import Results
from .scoring import ScoreRow
from .tuning import in_short


_NAMED = 4  # algorithms whose numbers stand in a sentence


def answer(results: Results) -> list[str]:
    """Two sentences on the primary metric: which differences are shown, and for which algorithms none is."""
    baseline, tested = results.content["baseline"], results.tested
    if not tested:
        nothing = f"Nothing is compared with {baseline}: there is no other algorithm with another gradient."
        return [nothing, f"The primary metric is {results.score()}."]
    parts = []
    for verdict in ("above", "below"):
        if rows := [row for row in tested if row.verdict == verdict]:
            parts.append(f"{_with_numbers(rows)} {_is(rows)} {verdict} {baseline}")
    family = sum(row.holm is not None for row in tested)
    corrected = f", Holm's correction for {family} comparisons" if family > 1 else ""
    counts = sorted({row.n for row in tested})
    paired = "paired " if all(row.paired for row in tested) else ""
    seeds = f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} {paired}seed{'s' * (counts != [1])}"
    shown = "; ".join(parts) or f"No difference from {baseline} is shown"
    rest = [row for row in tested if row.verdict not in ("above", "below")]
    second = "A difference is shown for every algorithm that was compared."
    if rest:
        untested = " or could not be tested" if any(row.verdict == "no test" for row in rest) else ""
        second = f"A difference is not shown{untested} for {_with_numbers(rest)}."
    return [f"{shown} ({seeds}, {results.score()}, 95 % intervals{corrected}).", second]


def notes(results: Results) -> list[str]:
    """Sentences beside the answer: equal gradients, comparisons that lose their difference to the correction, edges."""
    content, rows, baseline = results.content, results.rows, results.content["baseline"]
    same, sentences = content["same_gradient"], []
    if same:
        sentences.append(
            f"With one update per batch, the gradient of {_listed(same)} is {baseline}'s: differences from it are "
            "rounding, and are not counted."
        )
    if lost := [row.label for row in rows if row.verdict == "not shown" and row.excludes_zero]:
        family = sum(row.holm is not None for row in rows)
        sentences.append(
            f"{_listed(lost)}: the interval excludes 0, but the test corrected for {family} comparisons shows no "
            "difference."
        )
    if unpaired := [row.label for row in rows if not row.paired]:
        sentences.append(
            f"{_listed(unpaired)}: the seeds differ from {baseline}'s, so the test is Welch's, without pairs."
        )
    if untested := [row.label for row in results.tested if row.p is None]:
        sentences.append(
            f"No interval for {_listed(untested)}: it takes two seeds, and differences that are not all equal."
        )
    if few := [row.n for row in rows if row.p is not None and row.n < 5]:
        n = min(few)
        sentences.append(
            f"With {n} seeds the t interval rests on the assumption that scores vary normally. The sign-flip p of "
            f"pairs needs no such assumption, but it cannot be below {2 ** (1 - n):g}."
        )
    if content.get("sweep", "unknown") is None:  # older files do not tell
        steps = [(run.get("totals") or {}).get("steps") for run in content["runs"] if run["phase"] != TUNING]
        length = f"runs of {min(steps):,.0f} steps" if None not in steps else "these runs"
        sentences.append(f"Learning rates were not tuned here, and {length} say nothing about longer ones.")
    # a sweep of texts has no edge
    edges = [row for row in results.tuned if row.is_at_edge and not isinstance(row.best, str)]
    if edges:
        at = ", ".join(f"{row.label} ({in_short(row.best)})" for row in edges)
        sentences.append(f"The best value is at the edge of the sweep: {at}. A better one may lie beyond: widen it.")
    return sentences


def _with_numbers(rows: Sequence[ScoreRow]) -> str:
    """ "S-trace (+0.012 [0.003, 0.021])" for each; the labels alone where they are many."""
    if len(rows) > _NAMED:
        return _listed([row.label for row in rows])
    return _listed([f"{row.label} ({difference_in_words(row)})" for row in rows])


def difference_in_words(row: ScoreRow) -> str:
    """ "+0.012 [0.003, 0.021]", with a minus sign."""
    interval = "" if row.low is None else f" {interval_in_words(row)}"
    return f"{signed(row.difference)}{interval}"


def interval_in_words(row: ScoreRow) -> str:
    """ "[−0.003, 0.021]", or a dash."""
    return "–" if row.low is None else f"[{row.low:.3f}, {row.high:.3f}]".replace("-", "−")


def signed(value: float) -> str:
    """ "+0.012" or "−0.012"."""
    return f"{value:+.3f}".replace("-", "−")


def _is(rows: Sequence[ScoreRow]) -> str:
    return "is" if len(rows) == 1 else "are"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
