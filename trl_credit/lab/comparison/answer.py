"""What a comparison answers, in two sentences, and what a reader must know beside them."""

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..tables import escape_markdown, listed
from .grid import TUNING
from .groups import in_short
from .results import Results
from .scoring import ScoreRow


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
            parts.append(f"{_with_numbers(rows)} {'is' if len(rows) == 1 else 'are'} {verdict} {baseline}")
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
    content, rows = results.content, results.rows
    steps = [(run.get("totals") or {}).get("steps") for run in content["runs"] if run["phase"] != TUNING]
    # a sweep of texts has no edge
    edges = [row for row in results.tuned if row.is_at_edge and not isinstance(row.best, str)]
    equal = [row.label for row in results.tested if row.difference == 0 and row.low is None]
    norms = {group.label: [run.norms for run in group.runs] for group in results.groups}
    text = ENVIRONMENT.get_template("notes.jinja").render(
        content=content,
        family=sum(row.holm is not None for row in rows),
        lost=[row.label for row in rows if row.verdict == "not shown" and not row.low <= 0 <= row.high],
        unpaired=[row.label for row in rows if not row.paired],
        equal=[label for label in equal if norms.get(label) == norms.get(content["baseline"])],
        short=[label for label in equal if norms.get(label) != norms.get(content["baseline"])],
        untested=[row.label for row in results.tested if row.p is None],
        fewest=min((row.n for row in rows if row.p is not None), default=None),
        steps=None if None in steps else min(steps),
        edges=[f"{row.label} ({in_short(row.best)})" for row in edges],
    )
    return text.splitlines()


def _with_numbers(rows: Sequence[ScoreRow]) -> str:
    """ "S-trace (+0.012 [0.003, 0.021])" for each; the labels alone where they are many."""
    if len(rows) > _NAMED:
        return listed([row.label for row in rows])
    return listed([f"{row.label} ({difference_in_words(row)})" for row in rows])


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


_OPTIONS = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
ENVIRONMENT = Environment(loader=PackageLoader(__package__, "assets"), **_OPTIONS)
ENVIRONMENT.filters |= {"listed": listed, "plain": escape_markdown}
