"""The notebooks run from a clean kernel, and the committed files have outputs without traces of a machine."""

import json
import re
from pathlib import Path

import pytest
from scripts import ROOT, load_script


NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PLACES = re.compile(r"/(?:work|home|tmp|root|Users|opt|usr)/|site-packages|\\Users\\")

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[dict]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == kind]


def shown(outputs: list[dict]) -> list[str]:
    """The texts of outputs, without pictures."""
    texts = []
    for output in outputs:
        data = {"text": output.get("text", ""), **output.get("data", {})}
        texts += ["".join(value) for kind, value in data.items() if not kind.startswith("image/")]
    return texts


def problems(outputs: list[dict]) -> list[str]:
    """What must not be in an output: an error, a warning, or the place of a file."""
    found = [output["evalue"] for output in outputs if output["output_type"] == "error"]
    found += ["".join(output["text"]) for output in outputs if output.get("name") == "stderr"]
    return found + [match[0] for text in shown(outputs) for match in PLACES.finditer(text)]


def kinds(outputs: list[dict]) -> list[list[str]]:
    return [sorted(output.get("data", [output["output_type"]])) for output in outputs]


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["agents", "quickstart", "your_own_algorithm"]


@every_notebook
def test_the_committed_file_has_the_outputs_of_one_run(path):
    code = cells(path, "code")
    counts = [cell["execution_count"] for cell in code]
    assert counts == list(range(1, len(code) + 1)), "run examples/notebooks/notebooks.py"
    assert not [problem for cell in code for problem in problems(cell["outputs"])]
    assert not [cell["id"] for cell in code if PLACES.search("".join(cell["source"]))]
    assert not [cell["id"] for cell in code if cell["metadata"]]
    assert path.stat().st_size < 2e6
    kinds_shown = {kind for cell in code for output in cell["outputs"] for kind in output.get("data", ())}
    # GitHub shows the picture and not the viewer
    assert {"text/html", "image/png"} <= kinds_shown


@every_notebook
def test_its_text_says_what_to_look_at_and_its_links_lead_somewhere(path):
    texts = ["".join(cell["source"]) for cell in cells(path, "markdown")]
    assert sum("ook at" in text or "The output" in text for text in texts) >= 5
    for target, anchor in re.findall(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)", "\n".join(texts)):
        page = (path.parent / target).resolve()
        assert page.is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.M)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_figures_are_those_of_the_measurements():
    quickstart, agents = (
        "\n".join("".join(cell["source"]) for cell in cells(ROOT / "examples" / "notebooks" / name, "markdown"))
        for name in ("quickstart.ipynb", "agents.ipynb")
    )
    (row,) = re.findall(r"^\| S-trace \| (\S+) \[(\S+), (\S+)\] \| (\S+)", page("docs/results/embedded.md"), flags=re.M)
    difference, low, high, p = row
    words = re.sub(r"\s+", " ", quickstart)
    assert f"was {difference}, with a 95 % interval from {low} to {high}" in words and f"p is {p}" in words
    measured = re.findall(r"\S+ \[\S+, \S+\]", agents)
    assert len(measured) == 3 and all(value in page("docs/agents.md") for value in measured)


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@pytest.mark.slow
@every_notebook
def test_it_runs_from_a_clean_kernel(path, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    script = load_script("examples/notebooks/notebooks.py")
    notebook = script.execute(nbformat.read(path, as_version=4), tmp_path)
    committed = cells(path, "code")
    fresh = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [problem for cell in fresh for problem in problems(cell.outputs)]
    assert not [match[0] for cell in fresh for text in shown(cell.outputs) if (match := re.search(str(tmp_path), text))]
    # the committed outputs are of these cells
    assert [kinds(cell.outputs) for cell in fresh] == [kinds(cell["outputs"]) for cell in committed]
    assert {entry.name for entry in tmp_path.iterdir()} == {"runs"}
