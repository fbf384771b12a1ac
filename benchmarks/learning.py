"""Does every algorithm learn the embedded task? Trains each from the packaged checkpoint and prints the table.

    python benchmarks/learning.py [--algos s_trace gspo ...] [--seeds 0 1 2] [--max_steps 150]

Reward is the mean over the first 3 and over the last `--window` steps of 64 responses; seconds are of training alone,
from the packaged checkpoint.
"""

import argparse
import json
import platform
import tempfile
import time

import torch
import transformers
import trl
from transformers.utils import logging

from trl_credit import ALGORITHMS
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward, demo_settings


def learn(algo: str, seed: int, max_steps: int | None) -> tuple[list[float], float]:
    """Mean reward of each logged step, and seconds of training."""
    config_class, trainer_class = ALGORITHMS[algo]
    settings = demo_settings(config_class, logging_steps=1, seed=seed)
    if max_steps is not None:
        settings["max_steps"] = max_steps
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_class(
            model=demo_model_path(),
            reward_funcs=demo_reward,
            args=config_class(
                output_dir=folder,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                log_level="error",
                **settings,
            ),
            train_dataset=demo_dataset(seed=seed),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
    return [row["reward"] for row in trainer.state.log_history if "reward" in row], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--max_steps", type=int, default=None)
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--json", default=None, help="file to write the curves to")
    args = parser.parse_args()
    logging.disable_progress_bar()
    print(f"torch {torch.__version__}, trl {trl.__version__}, transformers {transformers.__version__}, ", end="")
    print(f"{torch.get_num_threads()} threads, {platform.machine()}\n")
    print("| algorithm | " + " | ".join(f"seed {seed}: first → last, rise (s)" for seed in args.seeds) + " |")
    print("|---" * (1 + len(args.seeds)) + "|")
    curves: dict[str, dict[int, list[float]]] = {}
    short = []
    for algo in args.algos:
        cells = []
        for seed in args.seeds:
            rewards, seconds = learn(algo, seed, args.max_steps)
            curves.setdefault(algo, {})[seed] = rewards
            first = sum(rewards[:3]) / 3
            last = sum(rewards[-args.window :]) / len(rewards[-args.window :])
            cells.append(f"{first:.3f} → {last:.3f}, {last - first:+.3f} ({seconds:.0f})")
            if last - first < 0.25 or seconds > 300:
                short.append(f"{algo} seed {seed}")
        print(f"| `{algo}` | " + " | ".join(cells) + " |", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(curves, file)
    if short:
        raise SystemExit(f"rose by less than 0.25, or took more than 5 minutes: {', '.join(short)}")


if __name__ == "__main__":
    main()
