"""Six steps without interruption, then the same run killed halfway; or its resumed second half. See `test_resume.py`.

One configuration has every kind of state: a replay buffer, a difficulty belief, and draws of the random selector.
"""

import os
import signal
from pathlib import Path

from transformers import TrainerCallback
from worker import ON_CPU, QUIET, parity, run_main, trainer_of

from trl_credit import SPOTreeConfig, SPOTreeTrainer
from trl_credit.demo import demo_settings


class Kill(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 4:  # a step after the checkpoint
            os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path, *, kill: bool = False, resume: bool = False) -> None:
    settings = demo_settings(SPOTreeConfig, per_device_train_batch_size=8, max_steps=6)
    settings |= {**QUIET, **ON_CPU, "save_strategy": "steps", "save_steps": 3, "tree_branching": [3, 2]}
    settings |= {"difficulty": "history", "importance": "eligible", "selector": "random"}
    settings |= {"replay_iterations": 3, "replay_cap": 3, "callbacks": [Kill()] if kill else []}
    trainer = trainer_of(SPOTreeTrainer, parity, folder, **settings)
    trainer.train(resume_from_checkpoint=resume)
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.free_memory()


def main(part: str, folder: str) -> None:
    if part == "resume":
        run(Path(folder) / "killed", resume=True)
    else:
        run(Path(folder) / "uninterrupted")
        run(Path(folder) / "killed", kill=True)


if __name__ == "__main__":
    run_main(main)
