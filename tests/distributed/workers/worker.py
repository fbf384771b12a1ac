"""Shared by the worker scripts: settings of a short run, and results that a test reads from standard output."""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from accelerate import PartialState

from trl_credit.demo import demo_dataset, demo_model_path


QUIET = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1, "num_generations": 4}
ON_CPU = {"use_cpu": True, "bf16": False}


def trainer_of(trainer_class: Any, reward: Callable, folder: object, *, prompts: int = 64, **settings: Any) -> Any:
    """A trainer of the embedded model with settings of a short run; `callbacks` go to the trainer."""
    callbacks = settings.pop("callbacks", None)
    args = trainer_class.config_class(str(folder), **{**QUIET, **settings})
    data = demo_dataset(prompts)
    return trainer_class(demo_model_path(), reward, args, train_dataset=data, callbacks=callbacks)


def run_main(main: Callable[..., None]) -> None:
    """Calls `main` with the arguments of the command line."""
    torch.set_num_threads(1)
    main(*sys.argv[1:])
    PartialState().destroy_process_group()


def print_result(**result: Any) -> None:
    """Prints one line per process, by rank: lines that are written at the same time may mix."""
    state = PartialState()
    for rank in range(state.num_processes):
        if rank == state.process_index:
            print("RESULT " + json.dumps({"rank": rank, **result}), flush=True)
        state.wait_for_everyone()


def size_of(model: torch.nn.Module) -> float:
    """Sum of the absolute values of all parameters."""
    return sum(p.double().abs().sum().item() for p in model.parameters())


def logged(trainer: Any) -> list[dict]:
    return [row for row in trainer.state.log_history if "reward" in row]


def kept(owner: Any, name: str) -> list[Any]:
    """A list that grows with what a method returns."""
    found, method = [], getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: found.append(method(*args, **kwargs)) or found[-1])
    return found


def kept_batches(trainer: Any) -> tuple[list[dict], list[torch.Tensor]]:
    """Lists that grow with every generation batch and with its rewards (N, functions)."""
    rewards, make = [], trainer.make_batch

    def noted(inputs: list[dict]) -> Any:
        made = make(inputs)
        rewards.append(made.batch.rewards_per_func)
        return made

    trainer.make_batch = noted
    return kept(trainer, "_generate_and_score_completions"), rewards


def parity(completions: list[str], **kwargs: Any) -> list[float]:
    """A reward with signal: a small batch may have only zeros for the task's own reward."""
    return [float(sum(map(ord, text)) % 2) for text in completions]
