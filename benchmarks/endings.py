"""What the plots and the card at the end of a short run cost.

    python benchmarks/endings.py [--trees . ../other] [--repeats 5] [--steps 20]

Each repeat trains the embedded model in a fresh process per tree, a folder with a version of this package; the trees
take turns. Times are CPU seconds of that process: of `trainer.results.write()`, and of the import of matplotlib after
that of TRL, which happens when the trainer is imported. Draws are calls of `Figure.draw`, and calls those of Python
functions, both of a second `write`. Bytes are those of both plots.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def ending(steps: int) -> dict[str, float]:
    """Trains, and measures the end."""
    import trl.trainer.grpo_trainer  # noqa: F401

    start = time.process_time()
    from matplotlib.figure import Figure

    imported = time.process_time() - start
    from trl_credit import STraceConfig, STraceTrainer
    from trl_credit.demo import demo_dataset, demo_model_path, demo_reward

    with tempfile.TemporaryDirectory() as folder:
        args = STraceConfig(
            output_dir=folder,
            report_to="none",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=1,
            max_completion_length=40,
            max_steps=steps,
        )
        trainer = STraceTrainer(demo_model_path(), demo_reward, args, train_dataset=demo_dataset())
        trainer.results.writes_at_end = False
        trainer.train()
        modules, start = set(sys.modules), time.process_time()
        trainer.results.write()
        found = {"write (s)": time.process_time() - start, "import (s)": imported}
        found["modules"] = len(set(sys.modules) - modules)
        counts = {"draws": 0, "calls": 0}

        def count(frame: object, event: str, _: object) -> None:
            counts["calls"] += event == "call"
            counts["draws"] += event == "call" and frame.f_code is Figure.draw.__wrapped__.__wrapped__.__code__

        sys.setprofile(count)
        trainer.results.write()
        sys.setprofile(None)
        return found | counts | {"bytes": sum(path.stat().st_size for path in Path(folder).glob("*.png"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", nargs="+", default=["."])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print("\n" + json.dumps(ending(args.steps)))
        return
    found: dict[str, list[dict[str, float]]] = {tree: [] for tree in args.trees}
    for _ in range(args.repeats):
        for tree, runs in found.items():
            command = [sys.executable, __file__, "--child", "--steps", str(args.steps)]
            environment = os.environ | {"PYTHONPATH": str(Path(tree).resolve())}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    names = list(next(iter(found.values()))[0])
    print(f"Medians of {args.repeats} runs of {args.steps} steps; times with the smallest and the largest.\n")
    print(f"| tree | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for tree, runs in found.items():
        cells = []
        for name in names:
            values = sorted(run[name] for run in runs)
            middle = statistics.median(values)
            is_time = name.endswith("(s)")
            cells.append(f"{middle:.2f} ({values[0]:.2f} … {values[-1]:.2f})" if is_time else f"{middle:,.0f}")
        print(f"| {tree} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
