"""Six steps in one go, then the first half of the same run, killed; or its second half, resumed. See `test_resume.py`.

One configuration with every kind of state: a replay buffer, a difficulty belief, and draws of the random selector.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import TrainerCallback

from trl_credit import SPOTreeConfig, SPOTreeTrainer
from trl_credit.demo import demo_dataset, demo_model_path, demo_settings


class Kill(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 4:  # a step after the checkpoint
            os.kill(os.getpid(), signal.SIGKILL)


def either_way(completions: list[str], **kwargs) -> list[float]:
    """Of the task's own reward a small batch may have nothing but zeros."""
    return [float(sum(map(ord, text)) % 2) for text in completions]


def run(folder: Path, *, kill: bool = False, resume: bool = False) -> None:
    settings = demo_settings(SPOTreeConfig, per_device_train_batch_size=8, num_generations=4, max_steps=6)
    args = SPOTreeConfig(
        output_dir=str(folder),
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        save_strategy="steps",
        save_steps=3,
        difficulty="history",
        importance="eligible",
        selector="random",
        replay_iterations=3,
        replay_cap=3,
        **{**settings, "logging_steps": 1, "tree_branching": [3, 2]},
    )
    callbacks = [Kill()] if kill else []
    trainer = SPOTreeTrainer(demo_model_path(), either_way, args, train_dataset=demo_dataset(64), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.free_memory()


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[2])
    if sys.argv[1] == "resume":
        run(target / "killed", resume=True)
    else:
        run(target / "whole")
        run(target / "killed", kill=True)
    PartialState().destroy_process_group()
