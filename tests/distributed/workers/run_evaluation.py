"""Trains three steps with the evaluation callback, on any number of processes; test_evaluation_callback.py compares."""

from fsdp_on_cpus import check_sharded, shard_on_cpus
from worker import QUIET, print_result, run_main

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.lab.evaluation import EvaluationCallback


def main(folder: str) -> None:
    shard_on_cpus()
    args = CreditConfig(
        folder,
        **QUIET,
        use_cpu=True,
        max_steps=3,
        learning_rate=0.0,  # no update on any layout, so that only the evaluation could differ
        per_device_train_batch_size=8,
        max_completion_length=40,
    )
    trainer = CreditTrainer(demo_model_path(), demo_reward, args, train_dataset=demo_dataset(64))
    # 7 problems: one process of two evaluates one of them a second time
    callback = EvaluationCallback(trainer, protocol="demo", every_n_steps=2, max_problems=7, batch_size=20)
    trainer.add_callback(callback)
    trainer.train()
    check_sharded(trainer.model)
    rows = [{k: v for k, v in row.items() if k.startswith("eval_")} for row in trainer.state.log_history]
    print_result(logged=[row for row in rows if row])


if __name__ == "__main__":
    run_main(main)
