"""Flags of `benchmarks/gpu.sh`, which the process of every part reads again."""

import argparse
from pathlib import Path


# part → the tasks of it, each in a process of its own: an engine keeps memory and environment variables
TASKS = {
    "correctness": ("correctness",),
    "vllm": ("s_trace", "spo_chain", "spo_tree"),
    "passes": ("passes",),
    "speed": ("speed",),
    "learning": ("learning",),
}
SECONDS = {"correctness": 120, "vllm": 130, "passes": 70, "speed": 100, "learning": 60}  # together eight minutes
ALGORITHMS = ("grpo", "s_trace", "p_trace", "grpo_lambda", "spo_chain")


def make_parser() -> argparse.ArgumentParser:
    """A parser of all flags; `--task` and `--results` are for the processes of the parts."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.sh",
        description="Everything that only a GPU can show: correctness, a colocated vLLM, kernels of attention, speed "
        "and memory against TRL's GRPOTrainer, a short learning run. Exit code 1 where a check failed or a part did "
        "not end, 2 for a mistake. The models of passes and speed have random weights; no network is needed.",
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(TASKS)}; all of them")
    parser.add_argument("--dry_run", action="store_true", help="tiny sizes on the CPU: whether the script runs")
    parser.add_argument("--output", type=Path, help="Markdown file; benchmarks/results/<date>-gpu-<card>.md")
    for part, seconds in SECONDS.items():
        parser.add_argument(
            f"--{part}_seconds", type=float, default=seconds, help=f"after which {part} is stopped ({seconds})"
        )
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS), help="of the speed part")
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens per completion of the speed part (2048 8192)")
    parser.add_argument("--tokens", type=int, help="completion tokens of a step of the speed part (16384)")
    parser.add_argument("--repeats", type=int, help="measured steps of the parts passes and speed (5)")
    parser.add_argument("--learning_steps", type=int, help="optimizer steps of the learning part (60)")
    parser.add_argument("--least_rise", type=float, help="of the reward in the learning part (.2)")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    return parser
