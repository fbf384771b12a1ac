"""Scripts of the repository as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType


ROOT = Path(__file__).resolve().parents[2]


def load_script(path: str | Path) -> ModuleType:
    """Runs a script of the repository without its `main`."""
    spec = importlib.util.spec_from_file_location(Path(path).stem + "_script", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
