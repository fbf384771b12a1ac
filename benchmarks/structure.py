"""How much there is to read: code lines, imports, and what one training step runs through, of a checkout.

    python benchmarks/structure.py                                              # of this checkout
    PYTHONPATH=OTHER python benchmarks/structure.py OTHER --knobs trace_lambda  # of another one

Prints a Markdown table. A code line is not blank, not a comment, and not in a docstring. A subpackage is a folder of
the package, or a folder of `lab` and `rewards`. A step is one `training_step` with its generation, on the embedded
model in one process: distinct functions of the package that run in it, their calls, and the files that define them.
"""

import argparse
import ast
import contextlib
import io
import os
import re
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType


PACKAGE = "trl_credit"
SPLIT = ("lab", "rewards")  # subpackages that have subpackages
LAYOUT_TOKENS = {getattr(tokenize, name) for name in "COMMENT NL NEWLINE INDENT DEDENT ENCODING ENDMARKER".split()}
ALGORITHMS = ("s_trace", "spo_chain", "spo_tree")


def code_lines(text: str) -> int:
    """Lines with code: neither blank nor comments nor docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT_TOKENS:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def by_subpackage(folder: Path) -> Counter[str]:
    """Code lines of the Python files of a folder, by subfolder."""
    lines: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        name = "/".join(parts[: 2 if parts[0] in SPLIT and len(parts) > 2 else 1]) if len(parts) > 1 else "(root)"
        lines[name] += code_lines(path.read_text("utf-8"))
    return lines


def untyped_trainers(folder: Path) -> int:
    """Parameters and attributes named `trainer` whose type is `Any`."""
    count = 0
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.arg) and node.annotation is not None:
                name, annotation = node.arg, ast.unparse(node.annotation)
            elif isinstance(node, ast.AnnAssign):
                name, annotation = ast.unparse(node.target), ast.unparse(node.annotation)
            else:
                continue
            is_trainer = name.rpartition(".")[2].lstrip("_") == "trainer"
            count += is_trainer and re.search(r"\bAny\b", annotation) is not None
    return count


def places_of(knob: str, folder: Path) -> list[str]:
    """Modules in which the name of a knob occurs, with the number of lines."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        lines = sum(bool(re.search(rf"\b{knob}\b", line)) for line in path.read_text("utf-8").splitlines())
        if lines:
            found[path.relative_to(folder).as_posix()] = lines
    return [f"{path} ({lines})" for path, lines in found.items()]


class CountedCalls:
    """Context manager that counts calls of the package's functions, by code object."""

    def __init__(self, folder: Path) -> None:
        self.prefix, self.counts = str(folder) + os.sep, Counter()

    def __enter__(self) -> "CountedCalls":
        sys.setprofile(self._count)
        threading.setprofile(self._count)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        # comprehensions and lambdas are parts of the function around them
        if event == "call" and frame.f_code.co_filename.startswith(self.prefix) and frame.f_code.co_name[0] != "<":
            self.counts[frame.f_code] += 1


def one_step(algo: str, folder: Path) -> Counter[CodeType]:
    """Calls of the largest of three steps after the first one, which also fills caches. Not every step generates."""
    import trl_credit
    from trl_credit import demo

    config_class, trainer_class = trl_credit.ALGORITHMS[algo]
    steps = []

    class CountedTrainer(trainer_class):
        def training_step(self, *args, **kwargs):
            with CountedCalls(folder) as calls:
                loss = super().training_step(*args, **kwargs)
            steps.append(calls.counts)
            return loss

    settings = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    settings |= {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8, "max_steps": 4}
    if algo == "spo_tree":
        settings |= {"tree_branching": [2, 2, 2], "tree_segment_length": 2}
    with tempfile.TemporaryDirectory() as output_dir, contextlib.redirect_stdout(io.StringIO()):
        trainer = CountedTrainer(
            model=demo.demo_model_path(),
            reward_funcs=demo.demo_reward,
            args=config_class(output_dir=output_dir, **settings),
            train_dataset=demo.demo_dataset(seed=0),
        )
        trainer.train()
    return max(steps[1:], key=len)


def classes_between(trainer_class: type) -> list[str]:
    """Classes between a named trainer and TRL's GRPOTrainer."""
    import trl

    mro = trainer_class.__mro__
    return [found.__name__ for found in mro[1 : mro.index(trl.GRPOTrainer)]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--knobs", nargs="*", default=["certain_tolerance"], help="names whose places are listed")
    parser.add_argument("--no_steps", action="store_true", help="leave out what needs the package imported")
    options = parser.parse_args()
    root = options.checkout.resolve()
    folder = root / PACKAGE

    package, tests = by_subpackage(folder), by_subpackage(root / "tests")
    rows = [("code lines of the package", f"{package.total():,}"), ("code lines of the tests", f"{tests.total():,}")]
    rows += [(f"· {PACKAGE}/{name}", f"{lines:,}") for name, lines in package.most_common()]
    rows.append(("modules in the root", len(list(folder.glob("*.py")))))
    rows.append(("files of the package", len(list(folder.rglob("*.py")))))
    longest = max((len(path.read_text("utf-8").splitlines()), path.name) for path in folder.rglob("*.py"))
    rows.append(("longest file", f"{longest[1]}, {longest[0]} lines"))
    rows.append(("`trainer: Any`", untyped_trainers(folder)))
    for knob in options.knobs:
        places = places_of(knob, folder)
        rows.append((f"places of the knob `{knob}`", f"{len(places)}: {', '.join(places)}"))
    if not options.no_steps:
        sys.path.insert(0, str(root))
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import trl_credit

        if Path(trl_credit.__file__).parent != folder:
            sys.exit(f"trl_credit is imported from {trl_credit.__file__}: set PYTHONPATH={root}")
        between = classes_between(trl_credit.ALGORITHMS["s_trace"][1])
        rows.append(("classes from STraceTrainer to GRPOTrainer", f"{len(between)}: {', '.join(between)}"))
        for algo in ALGORITHMS:
            counts = one_step(algo, folder)
            modules = {code.co_filename for code in counts}
            text = f"{len(counts)} functions, {counts.total():,} calls, {len(modules)} files"
            rows.append((f"one step of {algo}", text))
    print("| | |\n| :-- | :-- |")
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
