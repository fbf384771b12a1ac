"""A run in which a process dies or hangs in its second step, or the disk is full in its second save."""

import os
import resource
import signal
import sys
import time

from transformers import TrainerCallback
from worker import ON_CPU, trainer_of

from trl_credit import HADWTrainer
from trl_credit.demo import demo_reward


def main(fault: str, folder: str) -> None:
    rank, calls = int(os.environ.get("RANK", "0")), 0

    def reward(completions, answer, **kwargs):
        nonlocal calls
        calls += 1
        if rank == 1 and calls == 2:
            if fault == "dies":
                os._exit(7)
            time.sleep(600)
        return demo_reward(completions, answer)

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            print(f"STEP {state.global_step}", file=sys.stderr, flush=True)
            if fault == "full" and state.global_step == 2:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # less than the weights take

    sizes = {"max_steps": 4, "per_device_train_batch_size": 4, "max_completion_length": 12, "prompts": 32}
    saves = {"save_strategy": "steps" if fault == "full" else "no", "save_steps": 1}
    settings = {**ON_CPU, **sizes, **saves, "reward_timeout": 5.0, "callbacks": [Watch()]}
    trainer_of(HADWTrainer, reward, folder, **settings).train()
