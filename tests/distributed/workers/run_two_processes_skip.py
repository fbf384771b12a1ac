"""Trains on two processes with all passes and without useless ones; `test_two_processes.py` compares."""

import torch
from transformers import TrainerCallback
from worker import print_result, run_main, size_of, trainer_of

from trl_credit import CreditTrainer


class Steps(TrainerCallback):
    """Counts passes with a gradient, and sums parameters, in every step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.passes, self.parameters = model, [0], []
        model.register_forward_pre_hook(self.see)

    def see(self, *args: object) -> None:
        self.passes[-1] += torch.is_grad_enabled()

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        self.passes.append(0)
        self.parameters.append(size_of(self.model))


def main(folder: str) -> None:
    for skip in ("off", "auto"):
        calls = []

        def reward(completions, calls=calls, **kwargs):
            """Batches in turn have a signal everywhere, nowhere, in the rows of one process, in one group."""
            found = [sum((i + 1) * ord(c) for i, c in enumerate(text)) % 97 / 97 for text in completions]
            own = torch.distributed.get_rank()
            counted = ((8, 8), (0, 0), (0, 8), (4, 0))[len(calls) % 4][own]
            calls.append(1)
            return [x if i < counted else 0.5 for i, x in enumerate(found)]

        sizes = {"max_steps": 8, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
        sizes |= {"steps_per_generation": 4, "max_completion_length": 16, "learning_rate": 1e-3, "weight_decay": 0.1}
        knobs = {"length_sort": "off", "skip_zero_advantage": skip}
        trainer = trainer_of(CreditTrainer, reward, f"{folder}/{skip}", **sizes, **knobs)
        steps = Steps(trainer.accelerator.unwrap_model(trainer.model))
        trainer.add_callback(steps)
        trainer.train()
        rows = [row for row in trainer.state.log_history if "credit/skipped_updates" in row]
        shares = [row.get("credit/skipped_micro_batches") for row in rows]
        print_result(skip=skip, passes=steps.passes[:8], parameters=steps.parameters, shares=shares)


if __name__ == "__main__":
    run_main(main)
