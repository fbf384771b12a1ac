"""Starts a worker, and what workers share: settings of a short run, and results that a test reads from standard
output."""

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from trl_credit.demo import demo_dataset, demo_model_path


QUIET = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1, "num_generations": 4}
ON_CPU = {"use_cpu": True, "bf16": False}


def trainer_of(trainer_class: Any, reward: Callable, folder: object, *, prompts: int = 64, **settings: Any) -> Any:
    """A trainer of the embedded model with settings of a short run; `callbacks` and `peft_config` go to the trainer."""
    others = {name: settings.pop(name, None) for name in ("callbacks", "peft_config")}
    args = trainer_class.config_class(str(folder), **{**QUIET, **settings})
    data = demo_dataset(prompts)
    return trainer_class(demo_model_path(), reward, args, train_dataset=data, **others)


def print_result(**result: Any) -> None:
    """Prints one line per process, by rank: lines that are written at the same time may mix."""
    state = PartialState(cpu=True)  # without it, a process of torchrun takes itself for the only one
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
    results, method = [], getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: results.append(method(*args, **kwargs)) or results[-1])
    return results


class Watch(TrainerCallback):
    """Keeps the shape of every forward pass, and gradients, parameters and passes with a gradient of every step."""

    def __init__(self, trainer) -> None:
        self.model = trainer.model
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.parameters: list[dict[str, torch.Tensor]] = []
        self.shapes: list[tuple[bool, tuple[int, ...]]] = []
        self.passes = [0]
        reference = getattr(trainer, "ref_model", None)
        for model in [self.model, *([] if reference is None else [reference])]:
            model.register_forward_pre_hook(self.see, with_kwargs=True)
        trainer.add_callback(self)

    def see(self, module, args, kwargs) -> None:
        self.shapes.append((torch.is_grad_enabled(), tuple(kwargs["input_ids"].shape)))
        self.passes[-1] += torch.is_grad_enabled()

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        named = self.model.named_parameters()
        self.gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})

    def on_step_end(self, args, state, control, **kwargs):
        self.passes.append(0)
        self.parameters.append({name: p.detach().clone() for name, p in self.model.named_parameters()})

    def tokens(self, *, trained: bool) -> int:
        return sum(shape[0] * shape[1] for grad, shape in self.shapes if grad == trained)


def parity(completions: list[str], **kwargs: Any) -> list[float]:
    """A reward with signal: a small batch may have only zeros for the task's own reward."""
    return [float(sum(map(ord, text)) % 2) for text in completions]


def shard_on_cpus() -> None:
    """Makes accelerate shard on CPU processes that are configured for FSDP2, as it does on accelerators alone."""
    original = AcceleratorState.__init__

    def init(self, *args, fsdp_plugin=None, **kwargs):
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        plugin = fsdp_plugin or vars(self).get("fsdp_plugin")  # each call takes over the type of PartialState again
        if plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, plugin

    AcceleratorState.__init__ = init


def check_sharded(model: torch.nn.Module) -> None:
    """Fails if FSDP was configured and a parameter is not sharded."""
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        for module in model.modules():
            if isinstance(module, FSDPModule):  # a pass without a backward one leaves the root's gathered
                module.reshard()
        assert all(isinstance(p, DTensor) for p in model.parameters())


if __name__ == "__main__":  # the name of a worker, and the arguments of its `main`
    torch.set_num_threads(1)
    importlib.import_module(sys.argv[1].removesuffix(".py")).main(*sys.argv[2:])
    PartialState().destroy_process_group()
