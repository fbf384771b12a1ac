"""Four steps, in the second of which the loss of the last process alone is not finite. See `test_layouts.py`."""

import json
import math
import sys
from pathlib import Path

import torch
from accelerate import PartialState
from fsdp_on_cpus import check_sharded, shard_on_cpus

from trl_credit import HADWConfig, HADWTrainer
from trl_credit.demo import demo_dataset, demo_model_path


class Poisoned(HADWTrainer):
    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        last = self.accelerator.process_index == self.accelerator.num_processes - 1
        output = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if last and self.state.global_step == 1 and torch.is_grad_enabled():
            output[0].data.fill_(math.nan)
        return output


def either_way(completions: list[str], **kwargs) -> list[float]:
    """Of the task's own reward a small batch may have nothing but zeros."""
    return [float(sum(map(ord, text)) % 2) for text in completions]


def main(folder: str) -> None:
    torch.set_num_threads(1)
    shard_on_cpus()
    args = HADWConfig(
        output_dir=folder,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        max_steps=4,
        logging_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=40,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        temperature=1.5,
    )
    trainer = Poisoned(demo_model_path(), either_way, args, train_dataset=demo_dataset(32))
    trainer.train()
    check_sharded(trainer.model)
    trainer.save_model(folder)
    rank = trainer.accelerator.process_index
    log = [row for row in trainer.state.log_history if "reward" in row]
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(log))
    trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(sys.argv[1])
    PartialState().destroy_process_group()
