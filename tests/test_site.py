"""The site has every page, its links lead somewhere, and the pages of the algorithms are what their script makes."""

import json
import re

import pytest
import yaml
from scripts import ROOT


DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages_of(nav):
    """The files that a `nav` names, in its order."""
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from pages_of(value) if isinstance(value, list) else [value]


def anchors(text):
    """The anchors of a page's headings, as GitHub and Python-Markdown make them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    words = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in re.findall(r"^#+ +(.*)$", text, re.MULTILINE))
    return {re.sub(r"\s", "-", each.strip()) for each in words}


def test_every_page_is_in_the_navigation_once():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = [*pages_of(yaml.safe_load(config)["nav"])]
    notebooks = [f"notebooks/{path.stem}.md" for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")]
    assert sorted(named) == sorted([*notebooks, *(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    wrong = []
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        if re.match("[a-z]+:", link):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists():
            wrong.append(link)
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
            wrong.append(link)
    assert not wrong


def test_links_out_of_the_docs_lead_to_the_repository(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "site")
    import stage

    page, repository = DOCS / "results" / "forks.md", "https://host/us/it"
    text = "[a](../which.md#b) ![c](forks/rates.png) [d](../../benchmarks/forks.py) [e](../../tests#f) [g](https://x)"
    assert stage.rewritten(text, page, repository) == (
        "[a](../which.md#b) ![c](forks/rates.png) [d](https://host/us/it/blob/main/benchmarks/forks.py) "
        "[e](https://host/us/it/tree/main/tests#f) [g](https://x)"
    )
    with pytest.raises(ValueError, match=r"^docs/results/forks\.md links to \.\./\.\./nothing, which is not there$"):
        stage.rewritten("[a](../../nothing)", page, repository)
    assert stage.rewritten("[a](../examples/notebooks/agents.ipynb)", DOCS / "viewer.md", repository) == (
        "[a](notebooks/agents.md)"
    )


def test_notebooks_are_pages_with_their_outputs(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(DOCS / "site")
    import stage

    stage.stage(tmp_path / "docs")
    folder = tmp_path / "docs" / "notebooks"
    for notebook in (ROOT / "examples" / "notebooks").glob("*.ipynb"):
        page = (folder / f"{notebook.stem}.md").read_text(encoding="utf-8")
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        for kind, files in (
            ("image/png", re.findall(r"!\[[^\]]*\]\(([^)]*\.png)\)", page)),
            ("text/html", re.findall(r'<iframe src="\.\./([^"]*)"', page)),  # the page's address ends with a slash
        ):
            assert len(files) == sum(kind in output.get("data", {}) for output in outputs)
            assert all((folder / file).stat().st_size > 1000 for file in files)
        for output in outputs:
            assert output["output_type"] != "stream" or "".join(output["text"]).rstrip() in page
        links = [link.partition("#")[0] for link in LINK.findall(page) if link.startswith("../")]
        assert links and all((folder / link).is_file() for link in links), notebook.stem


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"output_type": "error", "ename": "KeyError", "evalue": "'a'"}, "^n_1: a cell has failed: KeyError: 'a'$"),
        ({"output_type": "display_data", "data": {"text/html": "<b>1</b>"}}, "^n_1: an HTML output that is no page"),
    ],
)
def test_a_notebook_with_a_wrong_output_is_refused(monkeypatch, tmp_path, output, message):
    monkeypatch.syspath_prepend(DOCS / "site")
    import notebook_pages

    cell = {"cell_type": "code", "source": "1", "outputs": [output]}
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        notebook_pages.as_markdown(tmp_path / "n.ipynb", tmp_path, str)


def test_the_pages_of_the_algorithms_are_what_the_script_makes():
    """If this fails, run `python benchmarks/algorithm_pages.py`."""
    import algorithm_pages

    made = algorithm_pages.pages()
    assert {path.name for path in made} == {path.name for path in (DOCS / "algorithms").glob("*.md")}
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, path.name
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text):
            assert (path.parent / picture).is_file(), picture
