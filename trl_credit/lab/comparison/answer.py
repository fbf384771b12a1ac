"""What a comparison answers, in two sentences, and what a reader must know beside them."""

from typing import Any

from .grid import TUNING
from .scoring import ScoreRow, compare_results
from .tuning import edge_warnings, tuned_rows


_NAMED = 4  # algorithms whose numbers stand in a sentence
SCORE_WORDS = {"area": "mean {metric} over the run", "end": "{metric} at the end"}


def answer(results: dict[str, Any]) -> list[str]:
    """Two sentences on the primary metric: which differences are shown, and for which algorithms none is."""
    rows = compare_results(results, results["primary"])
    tested = [row for row in rows if row.label not in results["same_gradient"]]
    score = SCORE_WORDS[results["primary"]].format(metric=results["metric"])
    baseline = results["baseline"]
    if not tested:
        why = "the other algorithms have its gradient" if rows else "there is no other algorithm"
        return [f"Nothing is compared with {baseline}: {why}.", f"The primary metric is {score}."]
    shown = [(word, [row for row in tested if row.verdict == word]) for word in ("above", "below")]
    parts = [f"{_with_numbers(found)} {_is(found)} {word} {baseline}" for word, found in shown if found]
    rest = [row for row in tested if row.verdict in ("not shown", "no test")]
    counted = f"{_runs(tested)}, {score}, 95 % intervals{_correction(tested)}"
    first = f"{'; '.join(parts)} ({counted})." if parts else f"No difference from {baseline} is shown ({counted})."
    if not rest:
        return [first, "A difference is shown for every algorithm that was compared."]
    untested = any(row.verdict == "no test" for row in rest)
    verb = f"is not shown{' or could not be tested' if untested else ''}"
    if parts:
        return [first, f"A difference {verb} for {_with_numbers(rest)}."]
    return [first, f"{_with_numbers(rest)} {'was' if len(rest) == 1 else 'were'} compared."]


def notes(results: dict[str, Any]) -> list[str]:
    """Sentences beside the answer: equal gradients, comparisons that lose their difference to the correction, edges."""
    found = []
    baseline, same = results["baseline"], results["same_gradient"]
    rows = compare_results(results, results["primary"])
    if same:
        whose = f"{_listed(same)} {'has' if len(same) == 1 else 'have'} {baseline}'s gradient with one update per batch"
        found.append(f"{whose}. {'Its' if len(same) == 1 else 'Their'} differences are rounding, and are not counted.")
    chosen = {row.label: row.best for row in tuned_rows(results)}
    moved = [label for label in same if chosen.get(label) != chosen.get(baseline)]
    if moved:
        found.append(f"{_listed(moved)}: that rounding chose another {results['sweep']} than {baseline}'s.")
    lost = [row.label for row in rows if row.verdict == "not shown" and row.excludes_zero]
    if lost:
        found.append(
            f"{_listed(lost)}: the interval excludes 0, but the test corrected for "
            f"{sum(row.holm is not None for row in rows)} comparisons shows no difference."
        )
    if unpaired := [row.label for row in rows if not row.paired]:
        found.append(f"{_listed(unpaired)}: the seeds differ from {baseline}'s, so the test is Welch's, without pairs.")
    if untested := [row.label for row in rows if row.p is None and row.label not in same]:
        found.append(
            f"No interval for {_listed(untested)}: it takes two seeds, and differences that are not all equal."
        )
    few = [row for row in rows if row.p is not None and row.n < 5]
    if few:
        n, flips = min(row.n for row in few), ""
        if paired := [row.n for row in few if row.flip_p is not None]:
            flips = f" The sign-flip p needs no such assumption, but it cannot be below {2 ** (1 - min(paired)):g}."
        found.append(f"With {n} seeds the t interval rests on the assumption that scores vary normally.{flips}")
    if results.get("sweep", "unknown") is None:
        found.append(f"Learning rates were not tuned here, and {_length(results)} say nothing about longer runs.")
    return found + edge_warnings(results)


def _length(results: dict[str, Any]) -> str:
    """ "300 steps": what all runs of the verdict have reached."""
    steps = [(run.get("totals") or {}).get("steps") for run in results["runs"] if run["phase"] != TUNING]
    known = [count for count in steps if count is not None]
    return f"{min(known):,.0f} step{'s' * (min(known) != 1)}" if known else "these runs"


def _with_numbers(rows: list[ScoreRow]) -> str:
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


def _correction(tested: list[ScoreRow]) -> str:
    family = sum(row.holm is not None for row in tested)
    return f", Holm's correction for {family} comparisons" if family > 1 else ""


def _runs(rows: list[ScoreRow]) -> str:
    counts = sorted({row.n for row in rows})
    if counts == [1]:
        return "1 seed"
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{number} {'paired seeds' if all(row.paired for row in rows) else 'seeds'}"


def _is(rows: list[ScoreRow]) -> str:
    return "is" if len(rows) == 1 else "are"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
