"""Trains on two processes and prints what each of them holds; `test_two_processes.py` compares it."""

import json
import sys

import torch
from accelerate import PartialState

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.credit.selection import probability_mask
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward


def main(folder: str) -> None:
    args = CreditConfig(
        output_dir=folder,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        max_steps=2,
        logging_steps=1,
        per_device_train_batch_size=6,  # groups of 4: the second group lies on both processes
        num_generations=4,
        max_completion_length=40,
        learning_rate=1e-4,
        loss_type="dapo",
        baseline="optimal",
        difficulty="history",
        token_mask="probability",
        probability_threshold=0.5,
        importance="eligible",
        selector="random",
    )
    trainer = CreditTrainer(demo_model_path(), demo_reward, args, train_dataset=demo_dataset(64))
    batches, rewards = [], []
    generate, score = trainer._generate_and_score_completions, trainer._calculate_rewards
    trainer._generate_and_score_completions = lambda x: batches.append(generate(x)) or batches[-1]
    trainer._calculate_rewards = lambda *a: rewards.append(score(*a)) or rewards[-1]
    trainer.train()
    result = {
        "rank": trainer.accelerator.process_index,
        "belief": trainer.difficulty.state_dict(),
        "accuracies": [r.mean().item() for r in rewards],
        "kept": [
            probability_mask(b["old_per_token_logps"], threshold=0.5, mask_t=b["completion_mask"]).sum().item()
            for b in batches
        ],
        "num_items": [float(b["num_items_in_batch"]) for b in batches],
        "advantages": [b["advantages"].tolist() for b in batches],
        "rewards": [r[:, 0].tolist() for r in rewards],
        "parameters": sum(p.double().abs().sum().item() for p in trainer.model.parameters()),
        "metrics": [row["credit/trace_mass"] for row in trainer.state.log_history if "reward" in row],
    }
    for rank in range(2):
        if rank == result["rank"]:
            print("RESULT " + json.dumps(result), flush=True)
        torch.distributed.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
    PartialState().destroy_process_group()
