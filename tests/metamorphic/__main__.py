"""Trains random configurations, and prints a line for each that is not equal to its variants."""

import argparse
import logging
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path


os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.metamorphic", description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="configurations (default: 50)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first configuration (default: 0)")
    parser.add_argument("--verbose", action="store_true", help="print every configuration")
    args = parser.parse_args()
    import torch
    from quick_libraries import LOADED_ONCE, make_quick

    from .equalities import checked
    from .training import save_model

    make_quick()
    torch.set_num_threads(1)
    logging.disable()
    warnings.simplefilter("ignore")
    equalities, failed, start = Counter(), [], time.monotonic()
    with tempfile.TemporaryDirectory() as model:
        save_model(model)
        LOADED_ONCE.add(model)
        for number in range(args.first, args.first + args.count):
            case, problems = None, {}
            try:
                case, problems = checked(args.seed, number, model)
            except Exception:
                problems = {"plain": traceback.format_exc()}
            equalities.update([*problems])
            if wrong := {name: problem for name, problem in problems.items() if problem}:
                failed.append(number)
                print(
                    f"python -m tests.metamorphic --seed {args.seed} --first {number} --count 1",
                    wrong,
                    case,
                    flush=True,
                )
            elif args.verbose:
                print(number, *problems, case, flush=True)
    passed, seconds = args.count - len(failed), time.monotonic() - start
    print(
        f"{passed} of {args.count} configurations, {equalities.total()} equalities, {seconds:.0f} s: {dict(equalities)}"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
