"""Three steps of several algorithms on however many processes it is started with; saves parameters and logs.

Responses are not the model's: each is a hash of its prefix and of the number of earlier requests for it. So they are
the same on every layout of processes, differ in length, and are quick to make. Everything else is real.
"""

import hashlib
import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model_state_dict
from run_nonfinite import Poisoned
from safetensors.torch import save_file
from worker import ON_CPU, check_sharded, kept, logged, shard_on_cpus, trainer_of

from trl_credit import CreditTrainer
from trl_credit.demo import demo_model_path
from trl_credit.rollouts.tree import Continuation


OWN = Path(__file__).resolve().parents[2] / "data" / "own_functions.py"
MASK = {"token_mask": "probability", "probability_threshold": 0.9, "loss_type": "dapo"}
TREE = {"rollouts": "tree", "tree_branching": [3, 2], "tree_segment_length": 3, "replay_iterations": 2}
FUNCTIONS = {"credit": "later_is_less", "token_mask": "same_mask", "segmentation": "every_third"}
FUNCTIONS = {knob: f"{OWN}:{name}" for knob, name in FUNCTIONS.items()}
TEACHER = {"credit": "trl_credit.presets.opd.OPD", "teacher_prompt": "{answer};{prompt}", "loss_type": "dapo"}
# not 0 at the start, so that it differs from what lies below; the same on every process
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
CASES = {
    "grpo": {"loss_type": "grpo", "beta": 0.05},
    "ha_dw": {"difficulty": "history", "importance": "eligible", "loss_type": "dapo"},
    "shared": {"loss_type": "dapo", "scale_rewards": "none", "shared_prefix": "on"},
    "opo": {"baseline": "optimal", "loss_type": "dr_grpo"},
    "mask": {**MASK, "beta": 0.05},
    "bound": {"td_upper_bound": True, "loss_type": "dapo", "temperature": 1.3},
    "chain": {**MASK, "rollouts": "chain", "rollouts_per_state": 2, "cutpoint_interval": 2},
    "tree": {**TREE, "difficulty": "history", "loss_type": "dapo"},
    "own": {**FUNCTIONS, "importance": "eligible", "rollouts": "chain", "rollouts_per_state": 2, "loss_type": "dapo"},
    # a moving average, a second model, and what lies below an adapter
    "average": {**TEACHER, "teacher": "policy", "teacher_sync_steps": 1, "teacher_update_rate": 0.5},
    "model": {**TEACHER, "teacher": demo_model_path()},
    "adapter": {**TEACHER, "teacher": "reference", "peft_config": LORA},
    "nonfinite": {"difficulty": "history", "max_steps": 4},  # the second micro-batch, on the last process
}


def draw(prefix: list[int], occurrence: int, length: int) -> list[int]:
    """Token ids from 3 up; each is the end token (1) with probability ⅛."""
    ids: list[int] = []
    while len(ids) < length and (not ids or ids[-1] != 1):
        state = json.dumps([prefix, ids, occurrence]).encode()
        number = int.from_bytes(hashlib.blake2b(state, digest_size=4).digest(), "little")
        ids.append(1 if number % 8 == 0 else 3 + number // 8 % 15)
    return ids


def vowels(prompts: list[str], completions: list[str], **kwargs) -> list[float]:
    """Share of odd digits among the first five characters; 0 where the prompt ends in an even digit."""
    shares = [sum(c in "13579" for c in text[:5]) / 5 for text in completions]
    return [share * (int(prompt[-2]) % 2) for prompt, share in zip(prompts, shares, strict=True)]


def continue_once(prefixes, *, n, budgets, **others):
    pairs = zip(prefixes, budgets, strict=True)
    return [Continuation(draw(p, i, budget), None) for p, budget in pairs for i in range(n)]


def scripted(trainer_class, model=None, *, is_ragged=True):
    """A trainer class whose responses follow from their prompts; `model` replaces the given one. If they are ragged,
    most are short, and some reach the limit."""

    class Scripted(trainer_class):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **(kwargs if model is None else kwargs | {"model": model}))
            if hasattr(self, "engine"):
                self.engine._continue_once = continue_once

        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            seen, sampled = {}, []
            for ids in map(tuple, prompt_ids):
                seen[ids] = seen.get(ids, -1) + 1
                is_long = not is_ragged or (sum(ids) + seen[ids]) % 3 == 0
                sampled.append(draw(list(ids), seen[ids], self.max_completion_length if is_long else 2 + sum(ids) % 5))
            return sampled, None

    return Scripted


Scripted = scripted(CreditTrainer, is_ragged=False)


class PoisonedScript(Poisoned, Scripted):
    """Scripted responses, and a loss that is once not finite."""


def is_idle(batch: dict) -> bool:
    """Whether no token has an advantage."""
    mask, advantages = batch["completion_mask"] * batch.get("tool_mask", 1), batch["advantages"]
    return not bool(((advantages.view(len(mask), -1) * mask) != 0).any())


def run(case: str, folder: Path, per_device: int, accumulation: int) -> None:
    # steps of SGD are proportional to gradients: Adam would amplify rounding
    sgd = {"optim": "sgd", "learning_rate": 0.2, "lr_scheduler_type": "constant", "seed": 0}
    sizes = {"per_device_train_batch_size": per_device, "gradient_accumulation_steps": accumulation}
    sizes |= {"max_steps": 3, "max_completion_length": 12, **CASES[case]}
    kind = PoisonedScript if case == "nonfinite" else Scripted
    torch.manual_seed(0)  # of the adapter
    trainer = trainer_of(kind, vowels, folder / case, **ON_CPU, **sgd, **sizes)
    if case == "adapter" and trainer.processes.count == 1:
        save_file(get_peft_model_state_dict(trainer.model), folder / case / "started.safetensors")
    batches = kept(trainer, "_generate_and_score_completions")
    trainer.train()
    check_sharded(trainer.model)
    trainer.save_model(str(folder / case))
    result = {"idle": [is_idle(batch) for batch in batches], "log": logged(trainer)}
    (folder / case / f"rank{trainer.processes.rank}.json").write_text(json.dumps(result))
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.free_memory()


def main(folder: str, per_device: str, accumulation: str) -> None:
    shard_on_cpus()
    for case in CASES:
        run(case, Path(folder), int(per_device), int(accumulation))
