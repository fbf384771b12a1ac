"""Windows in which the loss of the last process may be not finite in one micro-batch. See `test_layouts.py`."""

import json
import math
from pathlib import Path

import torch
from transformers import TrainerCallback
from worker import ON_CPU, kept, parity, trainer_of

from trl_credit import HADWTrainer


# of windows of four: micro-batches of a generation batch, prompts, and the poisoned micro-batch, counted from 0
WINDOWS = {
    "clean": (4, 16, None),
    "first": (4, 16, 4),
    "middle": (4, 16, 6),
    "last": (4, 16, 7),
    "cut": (3, 12, None),  # the end of the epoch cuts the second window after 2 of 4
    "first_of_cut": (3, 12, 4),
}


class Poisoned:
    """A mixin of a trainer."""

    poisoned: int | None = 1

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        output = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        last = self.accelerator.process_index == self.accelerator.num_processes - 1
        if last and self._step == self.poisoned and torch.is_grad_enabled():
            output[0].data.fill_(math.nan)
        return output


class PoisonedHADW(Poisoned, HADWTrainer):
    pass


class Weights(TrainerCallback):
    """Copies of this process's parts of all weights, after each update."""

    def __init__(self) -> None:
        self.updates: list[torch.Tensor] = []

    def on_step_end(self, args, state, control, model, **kwargs) -> None:
        self.updates.append(local(model))


def local(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([getattr(p, "ds_tensor", p).detach().flatten() for p in model.parameters()])


def run_window(folder: str, generation: int, prompts: int, poisoned: int | None) -> dict:
    weights = Weights()
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "max_completion_length": 16}
    sizes |= {"steps_per_generation": generation, "prompts": prompts, "max_steps": 2, "learning_rate": 1e-3}
    trainer = trainer_of(PoisonedHADW, parity, folder, **ON_CPU, **sizes, temperature=1.5, callbacks=[weights])
    trainer.poisoned = poisoned
    accelerator, compute = trainer.accelerator, trainer._compute_loss
    gathered, reduced = kept(accelerator, "gather"), kept(accelerator, "reduce")
    counts, ends, error = [], [], None

    def counted(*args):
        before = len(gathered) + len(reduced)
        ends.append(accelerator.sync_gradients)
        try:
            return compute(*args)
        finally:
            counts.append(len(gathered) + len(reduced) - before)

    trainer._compute_loss = counted
    try:
        trainer.train()
    except FloatingPointError as raised:
        error = str(raised)
    return {
        "collectives": [count - min(counts) for count in counts],
        "ends": ends,
        "error": error,
        "updates": len(weights.updates),
        "moved": len(weights.updates) > 1 and not torch.equal(*weights.updates[:2]),
        "as_before": torch.equal(weights.updates[-1], local(trainer.model)),
    }


def main(folder: str) -> None:
    log = {case: run_window(f"{folder}/{case}", *sizes) for case, sizes in WINDOWS.items()}
    rank = torch.distributed.get_rank()
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(log))
    torch.distributed.barrier()
