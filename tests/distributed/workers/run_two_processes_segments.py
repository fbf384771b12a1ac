"""Segment credit on two processes whose trees differ in size; prints what each holds. See `test_two_processes.py`."""

import json
import sys

import torch
from accelerate import PartialState

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward, demo_settings


TREE = {"rollouts": "tree", "tree_branching": [3, 2], "replay_iterations": 2, "difficulty": "history"}
CASES = {
    # groups of 4 in batches of 6: the second group lies on both processes
    "chain": {"rollouts": "chain", "rollouts_per_state": 3, "token_mask": "probability", "whiten_advantages": "batch"},
    # the same, averaged over prompts
    "prompts": {"token_mask": "probability", "prompt_average": True},
    # so the first process grows two trees and the second one
    "tree": {**TREE, "token_mask": "probability", "prompt_average": True},
    "paths": {**TREE, "tree_rows": "paths", "beta": 0.01, "whiten_advantages": "microbatch"},
    # one tree in all: the second process has nothing to generate
    "idle": {**TREE, "per_device_train_batch_size": 4, "num_generations": 8, "rollout_batch_size": 3},
    # and one in which nothing can be learnt
    "nothing": {**TREE, "weight_decay": 0.1},
}


def constant(completions, **kwargs):
    return [0.0] * len(completions)


def run(case: str, folder: str) -> dict:
    sizes = {"per_device_train_batch_size": 6, "num_generations": 4, "max_steps": 3, "logging_steps": 1}
    settings = demo_settings(CreditConfig, **{**sizes, **CASES[case]})
    args = CreditConfig(
        output_dir=f"{folder}/{case}",
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        loss_type="dapo",
        **settings,
    )
    reward = constant if case == "nothing" else demo_reward
    trainer = CreditTrainer(demo_model_path(), reward, args, train_dataset=demo_dataset(64))
    before = sum(p.double().abs().sum().item() for p in trainer.model.parameters())
    batches, rewards, collectives = [], [], 0
    generate, score = trainer._generate_and_score_completions, trainer._calculate_rewards
    trainer._generate_and_score_completions = lambda x: batches.append(generate(x)) or batches[-1]
    trainer._calculate_rewards = lambda *a: rewards.append(score(*a)) or rewards[-1]
    gather, reduce = trainer.accelerator.gather, trainer.accelerator.reduce

    def counted(call):
        def inner(*a, **k):
            nonlocal collectives
            collectives += 1
            return call(*a, **k)

        return inner

    trainer.accelerator.gather, trainer.accelerator.reduce = counted(gather), counted(reduce)
    trainer.train()
    masks = [b["completion_mask"] * b.get("tool_mask", 1) for b in batches]
    return {
        "case": case,
        "rank": trainer.accelerator.process_index,
        "collectives": collectives,
        "rewards": [r[:, 0].tolist() for r in rewards],
        "num_items": [float(b["num_items_in_batch"]) for b in batches],
        "tokens": [int(m.sum()) for m in masks],
        "kept": [b.get("policy_mask", m).sum(1).tolist() for b, m in zip(batches, masks, strict=True)],
        "row_weight": [b["row_weight"].tolist() for b in batches if "row_weight" in b],
        "real_rows": [int((m.sum(1) > 0).sum()) for m in masks],
        "rows": [b["completion_ids"][m.sum(1) > 0].tolist() for b, m in zip(batches, masks, strict=True)],
        "buffer": None if trainer.forest is None else len(trainer.forest.buffer),
        "belief": None if trainer.difficulty is None else trainer.difficulty.state_dict(),
        "before": before,
        "parameters": sum(p.double().abs().sum().item() for p in trainer.model.parameters()),
        "log": [row for row in trainer.state.log_history if "reward" in row],
    }


if __name__ == "__main__":
    for name in CASES:
        result = run(name, sys.argv[1])
        for rank in range(2):
            if rank == result["rank"]:
                print("RESULT " + json.dumps(result), flush=True)
            torch.distributed.barrier()
    PartialState().destroy_process_group()
