"""Three steps of several algorithms on however many processes it is started with; saves parameters and logs.

Responses are drawn from a distribution of their own, by a hash of the prefix and of how often it was asked for: the
same on every layout of processes, of different lengths, and quick. Everything else is real.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
from accelerate import PartialState
from fsdp_on_cpus import check_sharded, shard_on_cpus

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_dataset, demo_model_path
from trl_credit.rollouts.tree import Continuation


OWN = Path(__file__).resolve().parents[2] / "data" / "own_functions.py"
MASK = {"token_mask": "probability", "probability_threshold": 0.9, "loss_type": "dapo"}
CASES = {
    "grpo": {"loss_type": "grpo", "beta": 0.05},
    "ha_dw": {"difficulty": "history", "importance": "eligible", "loss_type": "dapo"},
    "shared": {"loss_type": "dapo", "scale_rewards": "none", "shared_prefix": "on"},
    "opo": {"baseline": "optimal", "loss_type": "dr_grpo", "scale_rewards": "none"},
    "mask": {**MASK, "beta": 0.05},
    "chain": {**MASK, "rollouts": "chain", "rollouts_per_state": 2, "cutpoint_interval": 2},
    "tree": {
        "rollouts": "tree",
        "tree_branching": [3, 2],
        "tree_segment_length": 3,
        "replay_iterations": 2,
        "difficulty": "history",
        "loss_type": "dapo",
    },
    "own": {
        "credit": f"{OWN}:later_is_less",
        "token_mask": f"{OWN}:same_mask",
        "segmentation": f"{OWN}:every_third",
        "importance": "eligible",
        "rollouts": "chain",
        "rollouts_per_state": 2,
        "loss_type": "dapo",
    },
}


def draw(prefix: list[int], occurrence: int, length: int) -> list[int]:
    """Token ids from 3 up; the end token (1) with chance ⅛ at each."""
    ids: list[int] = []
    while len(ids) < length and (not ids or ids[-1] != 1):
        state = json.dumps([prefix, ids, occurrence]).encode()
        number = int.from_bytes(hashlib.blake2b(state, digest_size=4).digest(), "little")
        ids.append(1 if number % 8 == 0 else 3 + number // 8 % 15)
    return ids


def vowels(prompts: list[str], completions: list[str], **kwargs) -> list[float]:
    """Share of odd digits among the first five characters; nothing to learn where the prompt ends in an even one."""
    return [
        0.0 if int(p[-2]) % 2 == 0 else sum(c in "13579" for c in t[:5]) / 5
        for p, t in zip(prompts, completions, strict=True)
    ]


class Scripted(CreditTrainer):
    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        if self._planned is not None:
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        return self.answers(prompt_ids, self.max_completion_length), None

    def _continue_once(self, prefixes, *, n, budgets, **others):

        return [
            Continuation(draw(p, i, budget), None)
            for p, budget in zip(prefixes, budgets, strict=True)
            for i in range(n)
        ]

    def answers(self, prompt_ids, length):
        asked: dict[tuple, int] = {}
        found = []
        for ids in prompt_ids:
            key = tuple(ids)
            asked[key] = asked.get(key, -1) + 1
            found.append(draw(list(ids), asked[key], length))
        return found


def run(case: str, folder: Path, per_device: int, accumulation: int) -> None:
    args = CreditConfig(
        output_dir=str(folder / case),
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        optim="sgd",  # whose steps are proportional to gradients: Adam would blow rounding up
        learning_rate=0.2,
        lr_scheduler_type="constant",
        max_steps=3,
        logging_steps=1,
        per_device_train_batch_size=per_device,
        gradient_accumulation_steps=accumulation,
        num_generations=4,
        max_completion_length=12,
        seed=0,
        **CASES[case],
    )
    trainer = Scripted(demo_model_path(), vowels, args, train_dataset=demo_dataset(64))
    idle = []
    make = trainer._generate_and_score_completions

    def watched(inputs):
        output = make(inputs)
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        advantages = output["advantages"]
        advantages = advantages if advantages.dim() == 2 else advantages.unsqueeze(1)
        idle.append(not bool(((advantages * mask) != 0).any()))
        return output

    trainer._generate_and_score_completions = watched
    trainer.train()
    check_sharded(trainer.model)
    trainer.save_model(str(folder / case))
    result = {
        "rank": trainer.accelerator.process_index,
        "idle": idle,
        "log": [row for row in trainer.state.log_history if "reward" in row],
    }
    (folder / case / f"rank{result['rank']}.json").write_text(json.dumps(result))
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.free_memory()


if __name__ == "__main__":
    torch.set_num_threads(1)
    shard_on_cpus()
    target, size, steps, *names = sys.argv[1:]
    for name in names or CASES:
        run(name, Path(target), int(size), int(steps))
    PartialState().destroy_process_group()
