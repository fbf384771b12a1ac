"""Three notebooks: a first training with its credit, an algorithm of your own, an agent

pip install jupyterlab
jupyter lab quickstart.ipynb              # the others: your_own_algorithm.ipynb, agents.ipynb
"""

# The script runs the notebooks of this folder in a clean kernel, and writes their outputs back:
#
#     python examples/notebooks/notebooks.py                  # all of them
#     python examples/notebooks/notebooks.py agents           # one of them
#
# It needs `pip install nbclient ipykernel`. A notebook runs in a temporary folder, so that nothing is left but its
# outputs. An error in a cell ends the script, and leaves the file as it was. Durations are cut from the outputs, so
# that a second run on the same machine changes nothing.

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode


FOLDER = Path(__file__).resolve().parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(notebook: NotebookNode, folder: str | Path, *, timeout: float = 1800) -> NotebookNode:
    """Runs all cells of a notebook from a clean kernel in a folder, and returns it with its outputs.

    Raises:
        CellExecutionError: a cell raised an error.
    """
    for cell in notebook.cells:
        cell.metadata = {}
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
    )
    return normalized(client.execute())


def normalized(notebook: NotebookNode) -> NotebookNode:
    """Removes what differs from run to run or from machine to machine."""
    notebook.metadata = METADATA
    for output in [output for cell in notebook.cells for output in cell.get("outputs", ())]:
        if output.output_type == "stream":
            output.text = re.sub(r" +[\d.]+ s/step$", "", output.text, flags=re.MULTILINE)
    return notebook


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs notebooks and writes their outputs back.")
    names = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(names)} (default: all)")
    for name in parser.parse_args(argv).names or names:
        path, start = FOLDER / f"{Path(name).stem}.ipynb", time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(nbformat.read(path, as_version=4), folder)
        nbformat.write(notebook, path)
        size = path.stat().st_size / 1e6
        print(f"{path.name}: {time.perf_counter() - start:.0f} s, {size:.2f} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
