"""Trains random configurations, and prints a line for each that differs from one of its variants."""

import argparse
import logging
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path


os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path += [str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2] / "benchmarks")]

from quick_libraries import LOADED_ONCE, make_quick

from .equalities import checked
from .training import save_model


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.metamorphic", description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="configurations (default: 50)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first configuration (default: 0)")
    args = parser.parse_args()
    make_quick()
    logging.disable()
    warnings.simplefilter("ignore")
    equalities, passed, start = Counter(), 0, time.monotonic()
    with tempfile.TemporaryDirectory() as model:
        save_model(model)
        LOADED_ONCE.add(model)
        for done, number in enumerate(range(args.first, args.first + args.count), 1):
            case, problems = checked(args.seed, number, model)
            equalities.update([*problems])
            wrong = {name: problem for name, problem in problems.items() if problem}
            passed += not wrong
            if wrong:
                print(f"python -m tests.metamorphic --seed {args.seed} --first {number} --count 1: {wrong} {case}")
            if done % 50 == 0 or done == args.count:
                counts = f"{passed} of {done} configurations, {equalities.total()} equalities"
                print(f"{counts} in {time.monotonic() - start:.0f} s: {dict(equalities)}", flush=True)
    return passed < args.count


if __name__ == "__main__":
    sys.exit(main())
