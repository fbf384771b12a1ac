"""Old import paths: modules that have moved are found under their former names too."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


MOVED = {
    "trl_credit.batches": "trl_credit.trainer.batches",
    "trl_credit.checkpoints": "trl_credit.trainer.checkpoints",
    "trl_credit.data_cleaning": "trl_credit.data.cleaning",
    "trl_credit.data_sets": "trl_credit.data.sets",
    "trl_credit.diagnostics": "trl_credit.trainer.metrics",
    "trl_credit.engine": "trl_credit.trainer.engine",
    "trl_credit.guards": "trl_credit.rewards.guard",
    "trl_credit.judging": "trl_credit.rewards.judging",
    "trl_credit.reasoning_gym_tasks": "trl_credit.rewards.reasoning_gym",
    "trl_credit.tree_attention": "trl_credit.rollouts.attention",
}


class _MovedFinder(MetaPathFinder, Loader):
    """Finds a module under its former name. The module itself is put in its place, so that there is only one of it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if _moved_to(name) else None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(_moved_to(module.__name__))


def _moved_to(name: str) -> str | None:
    """The new name of a module, or of one inside a package, that has moved."""
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


def find_moved_modules() -> None:
    """From now on. Called once, by the package."""
    sys.meta_path.insert(0, _MovedFinder())  # before what would find a module of a moved package a second time
