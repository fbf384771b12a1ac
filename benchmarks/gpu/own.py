"""What our loss adds to TRL's: an optimizer step of 4 × 128 tokens on a model without layers, both in turns."""

import contextlib
import statistics
from collections import Counter
from typing import Any

import torch
import trl
from machine import Machine, fixed_rows, make_ready, random_qwen3, step, trainer_for
from record import Recorder
from speed import SAME, TINY
from torch.utils._python_dispatch import TorchDispatchMode

from trl_credit import ALGORITHMS


WARM_UP = 2
NAMES = {
    "flash_attn": "flash_attn",
    "flash": "flash",
    "scaled_dot_product_efficient": "memory-efficient, with a mask or none",
    "efficient": "memory-efficient",
    "cudnn": "cuDNN",
    "overrideable": "overrideable",
    "math": "math",
    "bmm": "products",
}


class Calls(TorchDispatchMode):
    """Counts the calls of torch that make a tensor, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if not function.is_view:
            self.names[str(function)] += 1
        return function(*args, **(kwargs or {}))

    @property
    def attention(self) -> str:
        """The kinds of attention kernels among them, with their number of forward calls."""
        kernels: Counter[str] = Counter()
        for name, count in self.names.items():
            if "backward" not in name and ("attention" in name or "flash_attn" in name or "bmm" in name):
                kind = next((text for part, text in NAMES.items() if part in name), name)
                kernels[kind] += count
        if len(kernels) > 1:
            del kernels["products"]  # of other layers
        return ", ".join(f"{kind} × {count}" for kind, count in sorted(kernels.items())) or "none"


def own_milliseconds(machine: Machine, algo: str, *, logged: bool, repeats: int, recorder: Recorder) -> None:
    """A row of the table."""
    sizes = {**TINY, "num_hidden_layers": 0}
    shared = machine.settings(bf16=not machine.dry) | {"beta": 0.0, "learning_rate": 1e-6}
    shared |= {"max_completion_length": 128, "per_device_train_batch_size": 4, "num_generations": 4}
    with contextlib.ExitStack() as stack:
        trainers: list[Any] = []
        for pair in (ALGORITHMS[algo], (trl.GRPOConfig, trl.GRPOTrainer)):
            same = {name: getattr(trainers[0].args, name) for name in SAME} if trainers else {}
            model = random_qwen3(sizes, machine.device)
            trainers.append(stack.enter_context(trainer_for(pair, model, **shared, **same)))
            make_ready(trainers[-1])
            trainers[-1].state.max_steps = 10**6  # in the middle of a run
            trainers[-1].state.logging_steps = 1 if logged else 500
        inputs = fixed_rows(4, 128, sizes["vocab_size"], machine.device)
        inputs["old_per_token_logps"] = torch.full((4, 128), -4.0, device=machine.device)
        times: list[list[float]] = [[], []]
        for repeat in range(repeats + WARM_UP):
            for k in (0, 1) if repeat % 2 else (1, 0):
                start = machine.seconds()
                step(trainers[k], inputs)
                if repeat >= WARM_UP:
                    times[k].append(machine.seconds() - start)
        counts = []
        for trainer in trainers:
            with Calls() as calls:
                trainer.compute_loss(trainer.model_wrapped, dict(inputs))
            counts.append(str(calls.names.total()))
        own = statistics.median(a - b for a, b in zip(*times, strict=True)) * 1e3
        recorder.row(
            **{
                "algorithm": f"`{algo}`" + ", logging step" * logged,
                "ours (ms)": f"{statistics.median(times[0]) * 1e3:.2f}",
                "TRL (ms)": f"{statistics.median(times[1]) * 1e3:.2f}",
                "own (ms)": f"{own:+.2f}",
                "calls of torch in the loss": counts[0],
                "of TRL's": counts[1],
            }
        )
