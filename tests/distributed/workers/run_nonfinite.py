"""Four steps; in the second one, only the loss of the last process is not finite. See `test_layouts.py`."""

import json
import math
from pathlib import Path

import torch
from fsdp_on_cpus import check_sharded, shard_on_cpus
from worker import ON_CPU, logged, parity, run_main, trainer_of

from trl_credit import HADWTrainer


class Poisoned(HADWTrainer):
    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        last = self.accelerator.process_index == self.accelerator.num_processes - 1
        output = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if last and self.state.global_step == 1 and torch.is_grad_enabled():
            output[0].data.fill_(math.nan)
        return output


def main(folder: str) -> None:
    shard_on_cpus()
    sizes = {"max_steps": 4, "per_device_train_batch_size": 4, "max_completion_length": 40, "prompts": 32}
    rate = {"learning_rate": 1e-3, "lr_scheduler_type": "constant"}
    trainer = trainer_of(Poisoned, parity, folder, **ON_CPU, **sizes, **rate, temperature=1.5)
    trainer.train()
    check_sharded(trainer.model)
    trainer.save_model(folder)
    rank = trainer.accelerator.process_index
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(logged(trainer)))
    trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    run_main(main)
