"""Trains with a checkpoint at every step and is killed at random moments, again and again; see `test_checkpoints.py`.

Each start is a fork of one prepared process, so that only the training itself has to start.
"""

import atexit
import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from tqdm import tqdm
from worker import QUIET, print_result, trainer_of

from trl_credit import SPOTreeConfig, SPOTreeTrainer
from trl_credit.demo import demo_reward, demo_settings
from trl_credit.rollouts.replay import ReplayBuffer
from trl_credit.runs.checkpoints import is_complete, last_checkpoint


def newest(folder: str) -> Path:
    return max(Path(folder).glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2]))


def stop(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def wait_for_change(look: Callable[[str], object], folder: str, child: int) -> None:
    before = look(folder)
    while look(folder) == before:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            raise SystemExit("a run ended by itself")
        time.sleep(0.001)


def main(folder: str, kills: str) -> None:
    tqdm.monitor_interval = 0  # threads do not survive a fork
    tqdm.set_lock(threading.RLock())  # all forks share the default lock, and a killed one never releases it
    saves = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    settings = demo_settings(SPOTreeConfig, max_steps=1000, per_device_train_batch_size=8)
    trainer = trainer_of(SPOTreeTrainer, demo_reward, folder, difficulty="history", **{**settings, **QUIET, **saves})
    rng, steps, half_written = random.Random(0), [], 0
    for number in range(int(kills)):
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            trainer.train(resume_from_checkpoint=last_checkpoint(folder) is not None)
            os._exit(0)
        atexit.register(stop, child)  # an error here must leave no training process behind
        wait_for_change(last_checkpoint, folder, child)  # at least one new save must be complete
        if number % 2:
            time.sleep(rng.uniform(0.0, 0.5))
        else:
            wait_for_change(newest, folder, child)
            time.sleep(rng.uniform(0.0, 0.02))
        stop(child)
        atexit.unregister(stop)
        half_written += not is_complete(newest(folder))
        checkpoint = last_checkpoint(folder)
        load_file(checkpoint / "model.safetensors")
        torch.load(checkpoint / "optimizer.pt", weights_only=True)
        ReplayBuffer(life=8, cap=32).load(checkpoint / "replay.safetensors")
        state = json.loads((checkpoint / "credit_state.json").read_text())
        assert state["parts"]["replay"]["file"] == "replay.safetensors" and state["parts"]["difficulty"]["beliefs"]
        steps.append(json.loads((checkpoint / "trainer_state.json").read_text())["global_step"])
    print_result(steps=steps, half_written=half_written)
