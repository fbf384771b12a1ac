"""Trains random configurations, and prints a line for each that differs from one of its variants."""

import argparse
import logging
import os
import sys
import tempfile
import warnings
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
    passed = 0
    with tempfile.TemporaryDirectory() as model:
        save_model(model)
        LOADED_ONCE.add(model)
        for number in range(args.first, args.first + args.count):
            case, wrong = checked(args.seed, number, model)
            passed += not wrong
            if wrong:
                print(f"--seed {args.seed} --first {number} --count 1: {wrong} {case}", flush=True)
    print(f"{passed} of {args.count} configurations")
    return passed < args.count


if __name__ == "__main__":
    sys.exit(main())
