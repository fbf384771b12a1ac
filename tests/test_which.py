"""The tables of docs/which.md and docs/results/embedded.md are those of the raw results in docs/results."""

import which
from fork_bed.page import difference
from fork_bed.store import read
from forks import STORE
from pages import filled


def test_the_tables_are_made_from_the_raw_results() -> None:
    for path, tables in ((which.PAGE, which.all_tables()), (which.EMBEDDED, which.embedded_tables())):
        page = path.read_text(encoding="utf-8")
        assert all(f"<!-- table: {name} -->" in page for name in tables)
        assert filled(page, tables) == page


def test_a_change_of_a_raw_number_shows_in_a_table() -> None:
    results = read(STORE)
    line = which.bed_lines(results, "loose")[0]
    rate = results["rates"].index(line.tuned.rate)
    results["units"]["C/s_trace"]["area"][rate][0] += 0.12  # the first of twelve seeds
    moved = which.bed_lines(results, "loose")[0]
    assert round(moved.tuned.test.value - line.tuned.test.value, 6) == 0.01
    assert difference(moved.tuned.test) != difference(line.tuned.test)


def test_every_situation_has_its_figure() -> None:
    page = which.PAGE.read_text(encoding="utf-8")
    for name in (*which.BED, "hum"):
        assert f"(results/which/{name}.png)" in page and (which.FIGURES / f"{name}.png").is_file()
