"""Trains on two processes and prints what each of them holds; `test_two_processes.py` compares it."""

from worker import kept_batches, logged, print_result, run_main, size_of, trainer_of

from trl_credit import CreditTrainer
from trl_credit.credit.selection import probability_mask
from trl_credit.demo import demo_reward


def main(folder: str) -> None:
    # groups of 4: the second group lies on both processes
    sizes = {"max_steps": 2, "per_device_train_batch_size": 6, "max_completion_length": 40, "learning_rate": 1e-4}
    mask = {"token_mask": "probability", "probability_threshold": 0.5, "loss_type": "dapo"}
    credit = {"baseline": "optimal", "difficulty": "history", "importance": "eligible", "selector": "random"}
    trainer = trainer_of(CreditTrainer, demo_reward, folder, **sizes, **mask, **credit)
    batches, rewards = kept_batches(trainer)
    trainer.train()
    print_result(
        belief=trainer.difficulty.state_dict(),
        accuracies=[r.mean().item() for r in rewards],
        kept=[
            probability_mask(b["old_per_token_logps"], threshold=0.5, mask_t=b["completion_mask"]).sum().item()
            for b in batches
        ],
        num_items=[float(b["num_items_in_batch"]) for b in batches],
        advantages=[b["advantages"].tolist() for b in batches],
        rewards=[r[:, 0].tolist() for r in rewards],
        parameters=size_of(trainer.model),
        metrics=[row["credit/trace_mass"] for row in logged(trainer)],
    )


if __name__ == "__main__":
    run_main(main)
