"""The tables of docs/which.md and of its pages of detail are those of the raw results, and so are its differences."""

import re

import which
from fork_bed.page import difference
from fork_bed.page import tables as forks_tables
from fork_bed.store import read
from forks import STORE
from pages import filled


def test_the_tables_are_made_from_the_raw_results() -> None:
    for path, tables in which.page_tables().items():
        page = path.read_text(encoding="utf-8")
        assert all(f"<!-- table: {name} -->" in page for name in tables)
        assert filled(page, tables) == page


def test_every_difference_of_the_first_page_is_in_a_table() -> None:
    page = which.PAGE.read_text(encoding="utf-8")
    tables = "".join(table for of_page in which.page_tables().values() for table in of_page.values())
    known = tables + "".join(forks_tables(read(STORE)).values())
    found = re.findall(r"([+−]?\d\.\d{3} ± \d\.\d{3})", page)
    assert len(found) > 15
    assert not [one for one in found if one not in known]


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
