"""Tries all that `tests/hostile/` has, and writes what became of it to docs/reliability.md:

    python tests/hostile/table.py    # all of it, also what is marked slow

A test says with `@pytest.mark.hostile("kind", "refused")` or `"survived"` what it tries and what must come of it; each
of its parametrized cases counts as one. One that tries several says how many: `record_property("tried", n)`.
"""

import re
from collections import Counter
from pathlib import Path

import pytest


HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reliability.md"
OUTCOMES = ("refused", "survived")
_PLACE = re.compile(r"(?<=<!-- hostile -->\n).*?(?=<!-- /hostile -->)", re.DOTALL)


class Counted:
    """A plugin of pytest that counts what passed, by kind and outcome."""

    def __init__(self) -> None:
        self.passed: Counter[tuple[str, str]] = Counter()
        self.not_passed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if (marker := item.get_closest_marker("hostile")) is not None:
                kind, outcome = marker.args
                if outcome not in OUTCOMES:
                    raise pytest.UsageError(f"{item.nodeid}: {outcome!r} is none of {', '.join(OUTCOMES)}")
                item.user_properties.append(("hostile", (kind, outcome)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if report.failed or report.skipped:
            self.not_passed.append(report.nodeid)
        elif report.when == "call" and "hostile" in properties:
            self.passed[tuple(properties["hostile"])] += int(properties.get("tried", 1))

    def sentence(self) -> str:
        """How many tries there were, in all and of each kind, the most frequent first."""
        of_outcome, of_kind = Counter(), Counter()
        for (kind, outcome), count in self.passed.items():
            of_outcome[outcome] += count
            of_kind[kind] += count
        kinds = ", ".join(f"{kind} ({count})" for kind, count in of_kind.most_common())
        refused, survived = (f"{of_outcome[outcome]:,}" for outcome in OUTCOMES)
        return f"Of {of_outcome.total():,} tries {refused} were refused and {survived} survived: {kinds}.\n"


def main() -> int:
    counted = Counted()
    status = pytest.main(["-q", "-p", "no:warnings", "-m", "", str(HERE)], plugins=[counted])
    if status or counted.not_passed:
        print(f"not passed: {', '.join(counted.not_passed)}: the page is left as it was")
        return 1
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_PLACE.sub(lambda _: counted.sentence(), page), encoding="utf-8")
    print(counted.sentence())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
