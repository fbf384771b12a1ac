"""Trains on two processes with and without a rollout log, and with one that breaks. See `test_two_processes.py`."""

from pathlib import Path

from worker import print_result, run_main, size_of, trainer_of

from trl_credit import STraceTrainer
from trl_credit.demo import demo_reward


def main(folder: str) -> None:
    for case, every in (("without", 0), ("whole", 1), ("broken", 1), ("full", 1)):
        output = Path(folder) / case
        # groups of 4 on rows of 2 · 2 · 3: the second lies on both processes
        sizes = {"max_steps": 4, "per_device_train_batch_size": 3, "steps_per_generation": 2}
        sizes |= {"gradient_accumulation_steps": 1, "max_completion_length": 40, "learning_rate": 1e-4}
        trainer = trainer_of(STraceTrainer, demo_reward, output, **sizes, beta=0.01, log_credit=every)
        if case == "broken" and trainer.processes.rank == 1:
            trainer.engine.decode = None  # on one process only
        if case == "full" and trainer.processes.rank == 0:
            output.mkdir(parents=True, exist_ok=True)
            (output / "credit_log").write_text("in the way")
        trainer.train()
        print_result(case=case, parameters=size_of(trainer.model), off=trainer._rollout_log.is_off)


if __name__ == "__main__":
    run_main(main)
