"""Segment credit on two processes whose trees differ in size. See `test_two_processes.py`."""

from worker import QUIET, kept, kept_batches, logged, print_result, run_main, size_of, trainer_of

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_reward, demo_settings


# the processes have different numbers of responses to score, so one needs more parts than the other
CHAIN = {"rollouts": "chain", "rollouts_per_state": 3, "rollout_batch_size": 6}
TREE = {"rollouts": "tree", "tree_branching": [3, 2], "replay_iterations": 2, "difficulty": "history"}
CASES = {
    # groups of 4 in batches of 6: the second group lies on both processes
    "chain": {**CHAIN, "token_mask": "probability", "whiten_advantages": "batch"},
    # the same, averaged over prompts
    "prompts": {"token_mask": "probability", "prompt_average": True},
    # the first process grows two trees, the second one
    "tree": {**TREE, "token_mask": "probability", "prompt_average": True},
    "paths": {**TREE, "tree_rows": "paths", "beta": 0.01, "whiten_advantages": "microbatch"},
    # one tree in total: the second process has nothing to generate
    "idle": {**TREE, "per_device_train_batch_size": 4, "num_generations": 8, "rollout_batch_size": 3},
    # no reward differs, so there is nothing to learn
    "nothing": {**TREE, "weight_decay": 0.1},
}


def constant(completions, **kwargs):
    return [0.0] * len(completions)


def run(case: str, folder: str) -> None:
    settings = demo_settings(CreditConfig, **{**QUIET, "per_device_train_batch_size": 6, "max_steps": 3, **CASES[case]})
    reward = constant if case == "nothing" else demo_reward
    trainer = trainer_of(CreditTrainer, reward, f"{folder}/{case}", loss_type="dapo", **settings)
    before = size_of(trainer.model)
    batches, rewards = kept_batches(trainer)
    gathered, reduced = (kept(trainer.accelerator, name) for name in ("gather", "reduce"))
    trainer.train()
    masks = [b["completion_mask"] * b.get("tool_mask", 1) for b in batches]
    print_result(
        case=case,
        collectives=len(gathered) + len(reduced),
        rewards=[r[:, 0].tolist() for r in rewards],
        num_items=[float(b["num_items_in_batch"]) for b in batches],
        tokens=[int(m.sum()) for m in masks],
        kept=[b.get("policy_mask", m).sum(1).tolist() for b, m in zip(batches, masks, strict=True)],
        row_weight=[b["row_weight"].tolist() for b in batches if "row_weight" in b],
        real_rows=[int((m.sum(1) > 0).sum()) for m in masks],
        buffer=None if trainer.forest is None else len(trainer.forest.buffer),
        belief=None if trainer.difficulty is None else trainer.difficulty.state_dict(),
        before=before,
        parameters=size_of(trainer.model),
        log=logged(trainer),
    )


def main(folder: str) -> None:
    for case in CASES:
        run(case, folder)


if __name__ == "__main__":
    run_main(main)
