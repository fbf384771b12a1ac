"""Trains on two processes with and without a rollout log, and with one that breaks; `test_two_processes.py` looks."""

import json
import sys
from pathlib import Path

import torch
from accelerate import PartialState

from trl_credit import STraceConfig, STraceTrainer
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward


def main(folder: str) -> None:
    for case, every in (("without", 0), ("whole", 1), ("broken", 1), ("full", 1)):
        output = Path(folder) / case
        args = STraceConfig(
            output_dir=str(output),
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            max_steps=4,
            logging_steps=1,
            per_device_train_batch_size=3,  # groups of 4 on rows of 2 · 2 · 3: the second lies on both processes
            steps_per_generation=2,
            gradient_accumulation_steps=1,
            num_generations=4,
            max_completion_length=40,
            learning_rate=1e-4,
            beta=0.01,
            log_credit=every,
        )
        trainer = STraceTrainer(demo_model_path(), demo_reward, args, train_dataset=demo_dataset(64))
        if case == "broken" and trainer.rank == 1:
            trainer.decode = None  # on one process alone
        if case == "full" and trainer.rank == 0:
            output.mkdir(parents=True, exist_ok=True)
            (output / "credit_log").write_text("in the way")
        trainer.train()
        parameters = sum(p.double().abs().sum().item() for p in trainer.model.parameters())
        result = {"case": case, "rank": trainer.rank, "parameters": parameters, "off": trainer._rollout_log.is_off}
        for rank in range(2):
            if rank == trainer.rank:
                print("RESULT " + json.dumps(result), flush=True)
            torch.distributed.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
    PartialState().destroy_process_group()
