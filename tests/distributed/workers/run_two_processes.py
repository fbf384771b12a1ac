"""Trains on two processes and prints what each of them holds; `test_two_processes.py` compares it."""

import json
from pathlib import Path

import run_agent
import torch
from worker import QUIET, Watch, kept, logged, print_result, size_of, trainer_of

from trl_credit import CreditConfig, CreditTrainer, STraceTrainer
from trl_credit.demo import demo_reward, demo_settings
from trl_credit.loss.batch import loss_mask


MASK = {"token_mask": "probability"}
# the processes have different numbers of responses to score, so one needs more parts than the other
CHAIN = {"rollouts": "chain", "rollouts_per_state": 3, "rollout_batch_size": 6}
TREE = {"rollouts": "tree", "tree_branching": [3, 2], "replay_iterations": 2, "difficulty": "history"}
SEGMENTS = {"rollouts": "chain", "rollouts_per_state": 2, "segmentation": "fixed_length", "segment_length": 12}
TRACE = {"baseline": "optimal", "difficulty": "history", "importance": "eligible", "selector": "random"}
# groups of 4 in batches of 6: the second group lies on both processes
CASES = {
    "responses": {"trace": {**TRACE, **MASK, "probability_threshold": 0.5}},
    "segments": {
        "chain": {**CHAIN, **MASK, "whiten_advantages": "batch"},
        # the same, averaged over prompts
        "prompts": {**MASK, "prompt_average": True},
        # the first process grows two trees, the second one
        "tree": {**TREE, **MASK, "prompt_average": True},
        "paths": {**TREE, "tree_rows": "paths", "beta": 0.01, "whiten_advantages": "microbatch"},
        # one tree in total: the second process has nothing to generate
        "idle": {**TREE, "per_device_train_batch_size": 4, "num_generations": 8, "rollout_batch_size": 3},
        # no reward differs, so there is nothing to learn
        "nothing": {**TREE, "weight_decay": 0.1},
    },
    "groups": {
        "replace": {"groups": "replace"},
        "refill": {"groups": "refill"},
        "updates": {"groups": "refill", "num_iterations": 2, "beta": 0.1, "dull_kl": "drop"},
        "difficulty": {"groups": "refill", "prompt_sampler": "difficulty"},
        "chain": {"groups": "refill", **SEGMENTS},
        "advantage": {"groups": "refill", "group_signal": "advantage", **SEGMENTS},
        "tree": {"groups": "refill", "rollouts": "tree", "tree_branching": [3, 2]},
    },
}


def by_prompt(prompts: list[str], completions: list[str], **kwargs) -> list[float]:
    """Without signal for half of the prompts."""
    is_constant = [sum(map(ord, prompt)) % 2 == 0 for prompt in prompts]
    return [0.0 if x else sum(map(ord, text)) % 4 / 3 for x, text in zip(is_constant, completions, strict=True)]


def constant(completions: list[str], **kwargs) -> list[float]:
    return [0.0] * len(completions)


def run(part: str, case: str, folder: str) -> None:
    sizes = {"per_device_train_batch_size": 6, "max_steps": 4 if part == "groups" else 3}
    settings = demo_settings(CreditConfig, **{**QUIET, **sizes, **CASES[part][case]})
    reward = by_prompt if part == "groups" else constant if case == "nothing" else demo_reward
    trainer = trainer_of(CreditTrainer, reward, f"{folder}/{case}", loss_type="dapo", **settings)
    before = size_of(trainer.model)
    batches, sampled = kept(trainer, "_generate_and_score_completions"), kept(trainer, "make_batch")
    gathered, reduced = (kept(trainer.accelerator, name) for name in ("gather", "reduce"))
    trainer.train()
    masks = [loss_mask(b) for b in batches]
    decode = trainer.tokenizer.batch_decode
    parts = [(m.batch.prompt_ids, m.batch.completion_ids) for m in sampled]
    texts = [[decode(ids, skip_special_tokens=True) for ids in pair] for pair in parts]
    rates = Path(folder) / f"{case}-{trainer.processes.rank}.jsonl"  # as each process knows them
    for order in (part for part in trainer.stateful if part.name == "prompts"):
        order.write(rates)
    print_result(
        part=part,
        case=case,
        collectives=len(gathered) + len(reduced),
        rewards=[m.batch.rewards_per_func[:, 0].tolist() for m in sampled],
        advantages=[b["advantages"].tolist() for b in batches],
        num_items=[float(b["num_items_in_batch"]) for b in batches],
        tokens=[int(m.sum()) for m in masks],
        kept=[b.get("policy_mask", m).sum(1).tolist() for b, m in zip(batches, masks, strict=True)],
        row_weight=[b["row_weight"].tolist() for b in batches if "row_weight" in b],
        real_rows=[int((m.sum(1) > 0).sum()) for m in masks],
        examples=[m.examples and [x["prompt"] for x in m.examples] for m in sampled],
        prompts=[prompts for prompts, _ in texts],
        own=[by_prompt(*pair) for pair in texts],
        rates=[json.loads(line) for line in rates.read_text().splitlines()] if rates.exists() else None,
        buffer=None if trainer.forest is None else len(trainer.forest.buffer),
        belief=None if trainer.difficulty is None else trainer.difficulty.state_dict(),
        before=before,
        parameters=size_of(trainer.model),
        log=logged(trainer),
    )


def run_skipping(folder: str) -> None:
    for skip in ("off", "auto"):
        calls = []

        def reward(completions, calls=calls, **kwargs):
            """Batches in turn have a signal everywhere, nowhere, in the rows of one process, in one group."""
            scores = [sum((i + 1) * ord(c) for i, c in enumerate(text)) % 97 / 97 for text in completions]
            own = torch.distributed.get_rank()
            counted = ((8, 8), (0, 0), (0, 8), (4, 0))[len(calls) % 4][own]
            calls.append(1)
            return [x if i < counted else 0.5 for i, x in enumerate(scores)]

        sizes = {"max_steps": 8, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
        sizes |= {"steps_per_generation": 4, "max_completion_length": 16, "learning_rate": 1e-3, "weight_decay": 0.1}
        knobs = {"length_sort": "off", "skip_zero_advantage": skip}
        trainer = trainer_of(CreditTrainer, reward, f"{folder}/{skip}", **sizes, **knobs)
        watch = Watch(trainer)
        trainer.train()
        rows = [row for row in trainer.state.log_history if "credit/skipped_updates" in row]
        shares = [row.get("credit/skipped_micro_batches") for row in rows]
        parameters = [sum(p.double().abs().sum().item() for p in step.values()) for step in watch.parameters]
        print_result(part="skip", case=skip, passes=watch.passes[:8], parameters=parameters, shares=shares)


def run_logging(folder: str) -> None:
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
        print_result(part="log", case=case, parameters=size_of(trainer.model), off=trainer._rollout_log.is_off)


def main(folder: str) -> None:
    for part, cases in CASES.items():
        for case in cases:
            run(part, case, f"{folder}/{part}")
    run_skipping(folder)
    run_logging(folder)
    run_agent.main("6", folder)  # the last, since it replaces the engine
