"""What a rollout log costs: blocks of N whole steps with and without `log_credit=N`, alternating in one run.

    python benchmarks/log_credit.py [--every 10] [--blocks 4] [--length 256] [--algo s_trace]

A step is all of it: generation by transformers, rewards, loss, backward pass and AdamW, on the embedded model, with
responses of `length` tokens. Every group is logged. Times are CPU seconds of this process, which other jobs disturb
less than wall time; they do not include waiting for the disk, once per shard. The ratio of the medians still contains
the noise of the machine. The share is the time spent in the log's own calls, divided by that of the steps with the log.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import trl
from transformers import TrainerCallback
from transformers.utils import logging

from trl_credit import ALGORITHMS
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.observe.schema import steps


class Blocks(TrainerCallback):
    """Seconds on the core from one step's begin to its end, added up."""

    def __init__(self) -> None:
        self.seconds = self._start = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._start = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds += time.process_time() - self._start


class Clock:
    """Adds up the time of some methods of an object."""

    def __init__(self, of: Any, names: tuple[str, ...]) -> None:
        self.seconds = 0.0
        for name in names:
            setattr(of, name, self._timed(getattr(of, name)))

    def _timed(self, method: Any) -> Any:
        def timed(*args: Any) -> Any:
            start = time.process_time()
            try:
                return method(*args)
            finally:
                self.seconds += time.process_time() - start

        return timed


def block(args: argparse.Namespace, every: int) -> tuple[float, float, int]:
    """Seconds of `args.every` steps, seconds in the log, and bytes that it wrote."""
    config_class, trainer_class = ALGORITHMS[args.algo]
    with tempfile.TemporaryDirectory() as folder:
        config = config_class(
            output_dir=folder,
            report_to="none",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            log_level="error",
            save_strategy="no",
            logging_strategy="no",
            max_steps=args.every,
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=args.length,
            generation_kwargs={"min_new_tokens": args.length},
            log_credit=every,
        )
        trainer = trainer_class(demo_model_path(), demo_reward, config, train_dataset=demo_dataset(64))
        blocks, clock = Blocks(), Clock(trainer._rollout_log, ("before", "sampled", "lost", "after"))
        trainer.add_callback(blocks)
        trainer.train()
        return blocks.seconds, clock.seconds, sum(Path(path).stat().st_size for _, path in steps(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", default="s_trace", choices=list(ALGORITHMS))
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    args = parser.parse_args()
    logging.disable_progress_bar()
    print(f"torch {torch.__version__}, trl {trl.__version__}, {torch.get_num_threads()} threads, {args.algo}, ", end="")
    print(f"16 responses of {args.length} tokens, {args.blocks} blocks of {args.every} steps\n")
    found: dict[int, list[tuple[float, float, int]]] = {0: [], args.every: []}
    block(args, args.every)  # what is slow once
    for number in range(args.blocks):
        # who goes first changes, so that neither always finds the caches as the other left them
        for every in sorted(found, reverse=number % 2 == 0):
            found[every].append(block(args, every))
    without, within = (statistics.median(seconds for seconds, _, _ in found[every]) for every in (0, args.every))
    _, own, size = found[args.every][-1]
    share = sum(own for _, own, _ in found[args.every]) / sum(seconds for seconds, _, _ in found[args.every])
    print("| without (s) | with (s) | ratio | in the log (s) | share | bytes |\n|---|---|---|---|---|---|")
    print(f"| {without:.2f} | {within:.2f} | {within / without:.3f} | {own:.3f} | {share:.2%} | {size:,} |")


if __name__ == "__main__":
    main()
