"""What a rollout log costs: blocks of whole steps with and without `log_credit=N`, alternating in one run.

    python benchmarks/log_credit.py [--every 10] [--steps N] [--blocks 4] [--length 256] [--algo s_trace] [--demo]

A step is all of it: generation by transformers, rewards, loss, backward pass and AdamW, on the embedded model, with
16 responses of `length` tokens, or, with `--demo`, in that model's own settings, with 64 short responses. Every group
is logged. A block has `steps` steps, the first of which also does what is done once. Times are CPU seconds of this
process, which other jobs disturb less than wall time; they do not include waiting for the disk, once per shard. The
ratio of the medians still contains the noise of the machine. The share is the time spent in the log's own calls,
divided by that of the steps with the log. Calls are those of Python functions in the log, per step of one more block.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import trl
from transformers import TrainerCallback
from transformers.utils import logging

from trl_credit import ALGORITHMS
from trl_credit.demo import DEMO, demo_dataset, demo_model_path, demo_reward
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
    """Adds up the time of some methods of an object, or counts the Python functions that they call."""

    def __init__(self, of: Any, names: tuple[str, ...], *, counts: bool) -> None:
        self.seconds, self.calls, self._counts = 0.0, 0, counts
        for name in names:
            setattr(of, name, self._timed(getattr(of, name)))

    def _timed(self, method: Any) -> Any:
        def timed(*args: Any) -> Any:
            sys.setprofile(self._count if self._counts else None)
            start = time.process_time()
            try:
                return method(*args)
            finally:
                self.seconds += time.process_time() - start
                sys.setprofile(None)

        return timed

    def _count(self, frame: Any, event: str, _: Any) -> None:
        self.calls += event == "call"


def block(args: argparse.Namespace, every: int, *, counts: bool = False) -> tuple[float, float, int, int]:
    """Seconds of `args.steps` steps, seconds in the log, bytes that it wrote, and calls if they are counted."""
    config_class, trainer_class = ALGORITHMS[args.algo]
    sizes = {
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": args.length,
        "generation_kwargs": {"min_new_tokens": args.length},
    }
    of_demo = {name: x for name, x in DEMO.settings.items() if name not in ("max_steps", "logging_steps", "log_credit")}
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
            max_steps=args.steps,
            log_credit=every,
            **of_demo if args.demo else sizes,
        )
        trainer = trainer_class(demo_model_path(), demo_reward, config, train_dataset=demo_dataset(64))
        blocks, clock = Blocks(), Clock(trainer._rollout_log, ("before", "sampled", "lost", "after"), counts=counts)
        trainer.add_callback(blocks)
        trainer.train()
        size = sum(Path(path).stat().st_size for _, path in steps(folder))
        return blocks.seconds, clock.seconds, size, clock.calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", default="s_trace", choices=list(ALGORITHMS))
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, help="of a block; defaults to --every")
    parser.add_argument("--demo", action="store_true")
    args = parser.parse_args()
    args.steps = args.steps or args.every
    logging.disable_progress_bar()
    print(f"torch {torch.__version__}, trl {trl.__version__}, {torch.get_num_threads()} threads, {args.algo}, ", end="")
    sizes = "the embedded model's settings" if args.demo else f"16 responses of {args.length} tokens"
    print(f"{sizes}, {args.blocks} blocks of {args.steps} steps\n")
    blocks: dict[int, list[tuple[float, float, int, int]]] = {0: [], args.every: []}
    block(args, args.every)  # what is slow once
    for number in range(args.blocks):
        # who goes first changes, so that neither always finds the caches as the other left them
        for every in sorted(blocks, reverse=number % 2 == 0):
            blocks[every].append(block(args, every))
    without, within = (statistics.median(seconds for seconds, *_ in blocks[every]) for every in (0, args.every))
    own, size = statistics.median(own for _, own, *_ in blocks[args.every]), blocks[args.every][-1][2]
    share = sum(own for _, own, *_ in blocks[args.every]) / sum(seconds for seconds, *_ in blocks[args.every])
    calls = block(args, args.every, counts=True)[-1] / args.steps
    print("| without (s) | with (s) | ratio | in the log (s) | share | bytes | calls |\n|---|---|---|---|---|---|---|")
    cells = [f"{without:.2f}", f"{within:.2f}", f"{within / without:.3f}", f"{own:.3f}", f"{share:.2%}"]
    print(f"| {' | '.join([*cells, f'{size:,}', f'{calls:,.0f}'])} |")


if __name__ == "__main__":
    main()
