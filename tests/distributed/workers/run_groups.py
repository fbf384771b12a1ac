"""Groups with signal on two processes, one of which has more groups without it. See `test_two_processes.py`."""

import json
from pathlib import Path

from worker import QUIET, kept, kept_batches, logged, print_result, run_main, size_of, trainer_of

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_settings


CHAIN = {"rollouts": "chain", "rollouts_per_state": 2, "segmentation": "fixed_length", "segment_length": 12}
# groups of 4 in batches of 6: the second group lies on both processes
CASES = {
    "replace": {"groups": "replace"},
    "refill": {"groups": "refill"},
    "updates": {"groups": "refill", "num_iterations": 2, "beta": 0.1, "dull_kl": "drop"},
    "difficulty": {"groups": "refill", "prompt_sampler": "difficulty"},
    "chain": {"groups": "refill", **CHAIN},
    "advantage": {"groups": "refill", "group_signal": "advantage", **CHAIN},
    "tree": {"groups": "refill", "rollouts": "tree", "tree_branching": [3, 2]},
}


def by_prompt(prompts: list[str], completions: list[str], **kwargs) -> list[float]:
    """Without signal for half of the prompts."""
    dull = [sum(map(ord, prompt)) % 2 == 0 for prompt in prompts]
    return [0.0 if no else sum(map(ord, text)) % 4 / 3 for no, text in zip(dull, completions, strict=True)]


def run(case: str, folder: str) -> None:
    settings = demo_settings(CreditConfig, **{**QUIET, "per_device_train_batch_size": 6, "max_steps": 4, **CASES[case]})
    trainer = trainer_of(CreditTrainer, by_prompt, f"{folder}/{case}", loss_type="dapo", **settings)
    batches, _ = kept_batches(trainer)
    made = kept(trainer, "make_batch")
    gathered, reduced = (kept(trainer.accelerator, name) for name in ("gather", "reduce"))
    trainer.train()
    decode = trainer.tokenizer.batch_decode
    masks = [b["completion_mask"] * b.get("tool_mask", 1) for b in batches]
    rates = Path(folder) / f"{case}-{trainer.processes.rank}.jsonl"  # as each process knows them
    for order in (part for part in trainer.stateful if part.name == "prompts"):
        order.write(rates)
    print_result(
        case=case,
        collectives=len(gathered) + len(reduced),
        tokens=[int(m.sum()) for m in masks],
        rows=[len(m) for m in masks],
        num_items=[int(b["num_items_in_batch"]) for b in batches],
        rewards=[m.batch.rewards.tolist() for m in made],
        examples=[[x["prompt"] for x in m.examples] for m in made],
        prompts=[decode(m.batch.prompt_ids, skip_special_tokens=True) for m in made],
        own=[
            by_prompt(*(decode(x, skip_special_tokens=True) for x in (m.batch.prompt_ids, m.batch.completion_ids)))
            for m in made
        ],
        rates=[json.loads(line) for line in rates.read_text().splitlines()] if rates.exists() else None,
        parameters=size_of(trainer.model),
        log=logged(trainer),
    )


def main(folder: str) -> None:
    for case in CASES:
        run(case, folder)


if __name__ == "__main__":
    run_main(main)
