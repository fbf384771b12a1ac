"""The notebooks run from a clean kernel."""

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
    texts = [output["evalue"] for output in outputs if output["output_type"] == "error"]
    texts += ["".join(output["text"]) for output in outputs if output.get("name") == "stderr"]
    return texts + [match[0] for text in shown(outputs) for match in PLACES.finditer(text)]


def kinds(outputs: list[dict]) -> list[list[str]]:
    return [sorted(output.get("data", [output["output_type"]])) for output in outputs]


@pytest.mark.slow
@every_notebook
def test_it_runs_from_a_clean_kernel(path, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    script = load_script("examples/notebooks/notebooks.py")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:  # shorter runs, of five steps with a log of the last
        cell.source = re.sub(r'(\b(?:max_steps"?|log_credit"?|step)(?:: |=))\d+', r"\g<1>5", cell.source)
    notebook = script.execute(notebook, tmp_path)
    committed = cells(path, "code")
    fresh = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [problem for cell in fresh for problem in problems(cell.outputs)]
    assert not [match[0] for cell in fresh for text in shown(cell.outputs) if (match := re.search(str(tmp_path), text))]
    # the committed outputs are of these cells
    assert [kinds(cell.outputs) for cell in fresh] == [kinds(cell["outputs"]) for cell in committed]
    assert {entry.name for entry in tmp_path.iterdir()} == {"runs"}
