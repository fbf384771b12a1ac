"""Trains three steps with the evaluation callback, on any number of processes; test_evaluation_callback.py compares."""

from worker import check_sharded, print_result, shard_on_cpus, trainer_of

from trl_credit import CreditTrainer
from trl_credit.demo import demo_reward
from trl_credit.lab.evaluation import EvaluationCallback


def main(folder: str) -> None:
    shard_on_cpus()
    sizes = {"max_steps": 3, "per_device_train_batch_size": 8, "max_completion_length": 40}
    # no update on any layout, so that only the evaluation could differ
    trainer = trainer_of(CreditTrainer, demo_reward, folder, use_cpu=True, learning_rate=0.0, **sizes)
    # 7 problems: one process of two evaluates one of them a second time
    callback = EvaluationCallback(trainer, protocol="demo", every_n_steps=2, max_problems=7, batch_size=20)
    trainer.add_callback(callback)
    trainer.train()
    check_sharded(trainer.model)
    rows = [{k: v for k, v in row.items() if k.startswith("eval_")} for row in trainer.state.log_history]
    print_result(logged=[row for row in rows if row])
