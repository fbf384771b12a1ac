"""The embedded agent on one process or two, with the same scripted responses. See `test_two_processes.py`."""

import hashlib
import random

import trl
from worker import ON_CPU, QUIET, kept, logged, print_result, size_of

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import TASKS, StepCalculator, agent_dataset, agent_reward, demo_settings
from trl_credit.loss.batch import unpadded
from trl_credit.rollouts.policy import Continuation


TASK = TASKS["demo_agent"]
PLAY = {"rollouts": "chain", "segmentation": "turns", "rollouts_per_state": 2}
# groups of 4 in batches of 12: on two processes the second group lies on both
CASES = {
    "to_go": {"returns": "to_go", "step_gamma": 0.5},
    "response": {"returns": "to_go", "step_baseline": "response"},
    "difference": {"returns": "difference"},
    "state_groups": {"returns": "state_groups"},
    "chain": {"returns": "to_go", **PLAY},
}


def said(ids: list[int], number: int) -> str:
    """A turn that follows from what came before: calls, wrong calls, two calls, or an answer."""
    rng = random.Random(hashlib.sha256(f"{ids} {number}".encode()).hexdigest())
    call = f"<call>calc op={rng.choice('+-*')} x={rng.randrange(10)}</call>"
    return rng.choice([f"K{call}<eos>", f"K{call}<eos>", f"{call}{call}<eos>", f"{rng.randrange(10)}<eos>"])


def scripted(trainer: CreditTrainer) -> None:
    """Replaces the engine: what it says depends on the tokens before it, and on a number in its group or state."""
    tokenizer, tool = trainer.processing_class, trainer.processing_class.convert_tokens_to_ids("<tool>")

    def turn(ids: list[int], number: int) -> list[int]:
        return tokenizer(said(list(ids), number))["input_ids"]

    def engine(self, prompt_ids, *args, **kwargs):
        first = self.processes.rank * len(prompt_ids)
        is_begin = self.engine.sampling is not None and all(tool not in ids for ids in prompt_ids)
        return [turn(ids, (first + i) % 4 if is_begin else 0) for i, ids in enumerate(prompt_ids)], None

    def continue_once(prefixes, *, n, **kwargs):
        return [Continuation(turn(ids, k), None) for ids in prefixes for k in range(n)]

    trl.GRPOTrainer._generate_single_turn = engine
    trainer.engine._continue_once = continue_once


def run(case: str, rows: int, folder: str) -> None:
    settings = {"per_device_train_batch_size": rows, "max_steps": 2, "max_completion_length": 200, "log_credit": 0}
    settings |= {**QUIET, "optim": "sgd", "learning_rate": 0.01, "shuffle_dataset": False, **CASES[case]}
    args = CreditConfig(f"{folder}/{case}", **ON_CPU, **demo_settings(CreditConfig, task=TASK, **settings))
    data = agent_dataset(16)
    trainer = CreditTrainer(TASK.model_path, agent_reward, args, train_dataset=data, environment_factory=StepCalculator)
    scripted(trainer)
    batches, gathered = kept(trainer, "make_batch"), kept(trainer.accelerator, "gather")
    trainer.train()
    result = {"rewards": [m.batch.rewards_per_func.tolist() for m in batches], "collectives": len(gathered)}
    result |= {"advantages": [unpadded(m.advantages, m.batch.written_t) for m in batches], "log": logged(trainer)}
    print_result(part="agent", case=case, parameters=size_of(trainer.model), **result)


def main(rows: str, folder: str) -> None:
    for case in CASES:
        run(case, int(rows), folder)
