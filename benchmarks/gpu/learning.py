"""GRPO and S-trace on the embedded task: does the reward rise? bfloat16 autocast, generation by transformers."""

import math
import time
from argparse import Namespace

from machine import Machine, trainer_for
from record import Recorder

from trl_credit import ALGORITHMS
from trl_credit.demo import demo_dataset, demo_model_path, demo_settings


ALGOS = ("grpo", "s_trace")
FIRST, LAST = 3, 10  # steps of 64 responses that are averaged


def main(args: Namespace, recorder: Recorder) -> None:
    machine = Machine(args.dry_run)
    steps = args.learning_steps or (3 if machine.dry else 60)
    # three steps teach nothing: what a dry run shows is that it ends
    least = args.least_rise if args.least_rise is not None else (-1.0 if machine.dry else 0.2)
    small = {"per_device_train_batch_size": 16} if machine.dry else {}
    for algo in ALGOS:
        with recorder.attempt(algo):
            config_class, _ = ALGORITHMS[algo]
            settings = demo_settings(config_class, logging_steps=1, seed=0, max_steps=steps, **small)
            with trainer_for(
                ALGORITHMS[algo], demo_model_path(), data=demo_dataset(seed=0), **machine.settings(), **settings
            ) as trainer:
                start = time.perf_counter()
                trainer.train()
                seconds = time.perf_counter() - start
            rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
            first, last = (sum(part) / len(part) for part in (rewards[:FIRST], rewards[-LAST:]))
            recorder.row(
                algorithm=f"`{algo}`",
                steps=f"{len(rewards)} of {settings['per_device_train_batch_size']} responses",
                **{"first → last reward": f"{first:.3f} → {last:.3f}", "seconds": f"{seconds:.0f}"},
            )
            rise = f"{last - first:+.3f}"
            ok = math.isfinite(last) and last - first >= least
            recorder.check(f"{algo}: rise of the reward", rise, wanted=f"at least {least:+.3f}", ok=ok)
        machine.free()
