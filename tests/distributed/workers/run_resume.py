"""Six steps without interruption, then the same run killed halfway; or its resumed second half. See `test_resume.py`.

The run of `trees` has a replay buffer, a difficulty belief, draws of the random selector, and prompts drawn by pass
rates in groups with signal; that of `groups` has the last two without trees, that of `teacher` a copy of the policy.
"""

import os
import signal
from pathlib import Path

from run_two_processes import by_prompt
from transformers import TrainerCallback
from worker import ON_CPU, QUIET, trainer_of

from trl_credit import CreditTrainer, SDPOTrainer, SPOTreeTrainer
from trl_credit.demo import demo_settings


GROUPS = {"groups": "refill", "prompt_sampler": "difficulty"}
TREES = {"difficulty": "history", "importance": "eligible", "selector": "random", "tree_branching": [3, 2]}
TREES |= {"replay_iterations": 3, "replay_cap": 3, **GROUPS}
# a moving average that is not the policy at the checkpoint
TEACHER = {"teacher_sync_steps": 2, "teacher_update_rate": 0.25, **GROUPS}
KINDS = {"trees": (SPOTreeTrainer, TREES), "groups": (CreditTrainer, GROUPS), "teacher": (SDPOTrainer, TEACHER)}


class Kill(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 4:  # a step after the checkpoint
            os.kill(os.getpid(), signal.SIGKILL)


def run(kind: str, folder: Path, *, kill: bool = False, resume: bool = False) -> None:
    trainer_class, more = KINDS[kind]
    settings = demo_settings(trainer_class.config_class, per_device_train_batch_size=8, max_steps=6)
    settings |= {**QUIET, **ON_CPU, "save_strategy": "steps", "save_steps": 3, **more}
    trainer = trainer_of(trainer_class, by_prompt, folder, callbacks=[Kill()] if kill else [], **settings)
    trainer.train(resume_from_checkpoint=resume)
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.free_memory()


def main(part: str, folder: str, kind: str) -> None:
    killed = Path(folder) / "killed"
    if part == "kill":
        run(kind, Path(folder) / "uninterrupted")
        return run(kind, killed, kill=True)
    run(kind, killed, resume=True)
    files = [path for path in killed.rglob("*") if "credit_run" not in path.name]
    before = [path.stat().st_mtime_ns for path in files]
    run(kind, killed, resume=True)  # already at its end: no process trains or writes anything
    assert before == [path.stat().st_mtime_ns for path in files]
