"""A run in which a process dies or hangs in its second step."""

import os
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

    sizes = {"max_steps": 4, "per_device_train_batch_size": 4, "max_completion_length": 12, "prompts": 32}
    trainer_of(HADWTrainer, reward, folder, **ON_CPU, **sizes, reward_timeout=5.0, callbacks=[Watch()]).train()
