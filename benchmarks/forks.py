"""The bed whose answer is known: forks in filler, where the expected reward of a policy is exact.

python benchmarks/forks.py run [--jobs 2]    # runs what docs/results/forks/results.json lacks, an hour on a core
python benchmarks/forks.py check C/s_trace   # a line of the page anew, half a minute
python benchmarks/forks.py tables            # the tables and figures of docs/results/forks.md from that file
"""

import argparse

from pages import RESULTS


STORE = RESULTS / "forks" / "results.json"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "check", "tables"))
    parser.add_argument("unit", nargs="?", help="what to check: setting/algorithm")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    if args.what == "run":
        from fork_bed.store import run

        run(STORE, jobs=args.jobs)
    elif args.what == "check":
        from fork_bed.check import check

        check(STORE, args.unit)
    else:
        from fork_bed.page import make_page

        make_page(STORE)


if __name__ == "__main__":
    main()
