"""Trains three steps with the evaluation callback, on any number of processes; test_evaluation_callback.py compares."""

import json
import sys

import torch
from accelerate import PartialState
from fsdp_on_cpus import check_sharded, shard_on_cpus

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.evaluation import EvaluationCallback


def main(folder: str) -> None:
    shard_on_cpus()
    args = CreditConfig(
        output_dir=folder,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        max_steps=3,
        logging_steps=1,
        # an update of 0 on every layout, so that what differs is the evaluation alone
        learning_rate=0.0,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=40,
    )
    trainer = CreditTrainer(demo_model_path(), demo_reward, args, train_dataset=demo_dataset(64))
    # 7 problems: one process of two does one of them a second time
    callback = EvaluationCallback(trainer, protocol="demo", every_n_steps=2, max_problems=7, batch_size=20)
    trainer.add_callback(callback)
    trainer.train()
    check_sharded(trainer.model)
    logged = [{k: v for k, v in row.items() if k.startswith("eval_")} for row in trainer.state.log_history]
    result = {"rank": trainer.accelerator.process_index, "logged": [row for row in logged if row]}
    for rank in range(trainer.accelerator.num_processes):
        if rank == result["rank"]:
            print("RESULT " + json.dumps(result), flush=True)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
    PartialState().destroy_process_group()
