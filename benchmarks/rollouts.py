"""What segment credit costs: tokens generated and trained per prompt, and time by phase, for GRPO, chain, VinePPO and
tree (its rows as nodes, paths and packed) on the embedded model, in turns within one run.

    python benchmarks/rollouts.py [--rounds 3] [--steps 4] [--branching 6 6 6] [--segment_length 6]

Every tree is trained whole, without replay and without a mask, so that the figures are those of the method and not of
what was drawn. `forward` counts the tokens of all training rows, `padded` those that the model was given, `unique` the
prompt and the sampled tokens that get credit or stand before some that do, each once: no method can do with fewer. The
last column is forward / unique: 3.1 to 5.0 for the released code's tree (a row per node with its whole prefix, which is
what `nodes` trains).
"""

import argparse
import platform
import tempfile
from collections import defaultdict

import torch
import transformers
import trl
from transformers.utils import logging

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward, demo_settings


class Counter:
    """Tokens in the forward passes of a trainer's losses, and the least that would do."""

    def __init__(self, trainer: CreditTrainer) -> None:
        self.forward = self.padded = self.unique = 0
        self._loss, self._group = trainer.compute_loss, trainer.num_generations
        self._is_tree = trainer.forest is not None
        trainer.compute_loss = self.compute_loss
        if self._is_tree:
            self._new_rows = trainer.forest._new_rows
            trainer.forest._new_rows = self.new_rows

    def compute_loss(self, model, inputs, **kwargs):
        def count(_, args, inputs):
            self.padded += inputs["input_ids"].numel()

        handle = model.register_forward_pre_hook(count, with_kwargs=True)
        loss = self._loss(model, inputs, **kwargs)
        handle.remove()
        has_credit = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).any(1)
        prompts, completions = inputs["prompt_mask"].sum(1), inputs["completion_mask"].sum(1)
        self.forward += int(((prompts + completions) * has_credit).sum())
        if not self._is_tree:
            self.unique += int(completions.sum()) + int(prompts.sum()) / self._group
        return loss

    def new_rows(self, trees):
        for tree in trees:
            needed = {id(n): n for node in tree.root.walk() if node.advantage for n in node.path()}
            self.unique += sum(len(n.segment.ids) for n in needed.values()) + len(tree.prompt_ids) * bool(needed)
        return self._new_rows(trees)


def run(settings: dict, steps: int, seed: int) -> dict[str, float]:
    group = settings["num_generations"]
    prompts = 4
    with tempfile.TemporaryDirectory() as folder:
        args = CreditConfig(
            output_dir=folder,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            log_level="error",
            loss_type="dapo",
            **demo_settings(
                CreditConfig,
                max_steps=steps,
                logging_steps=1,
                seed=seed,
                per_device_train_batch_size=min(group, 32),
                gradient_accumulation_steps=prompts * group // min(group, 32),
                **settings,
            ),
        )
        trainer = CreditTrainer(demo_model_path(), demo_reward, args, train_dataset=demo_dataset(seed=seed))
        trainer.remove_callback(transformers.PrinterCallback)
        counter = Counter(trainer)
        trainer.train()
    log = [row for row in trainer.state.log_history if "reward" in row]
    own = 0.0 if args.rollouts == "tree" else sum(row["completions/mean_length"] * group * prompts for row in log)
    amounts = {
        "generated": own + sum(row.get("credit/rollout_tokens", 0.0) for row in log),
        "forward": counter.forward,
        "padded": counter.padded,
        "unique": counter.unique,
        "step": sum(row["step_time"] for row in log) * prompts,
    }
    if args.rollouts == "tree":
        nodes, inner, depth = 1, 0, len(args.tree_branching)
        for count in args.tree_branching[:-1]:
            nodes *= count
            inner += nodes
        leaves = nodes * args.tree_branching[-1]
        last = sum(row["completions/mean_length"] for row in log) / len(log) - (depth - 1) * args.tree_segment_length
        amounts["formula"] = (inner * args.tree_segment_length + leaves * last) * steps * prompts
    for phase in ("rollouts", "train"):
        amounts[phase] = sum(row.get(f"credit/seconds/{phase}", 0.0) for row in log) * prompts
    return {name: value / (steps * prompts) for name, value in amounts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--branching", type=int, nargs="+", default=[6, 6, 6])
    parser.add_argument("--segment_length", type=int, default=6)
    args = parser.parse_args()
    logging.disable_progress_bar()

    nodes = 0
    for count in reversed(args.branching):
        nodes = (nodes + 1) * count
    tree = {"rollouts": "tree", "tree_branching": args.branching, "tree_segment_length": args.segment_length}
    methods = {
        "GRPO": {"num_generations": 8},
        "chain": {"num_generations": 8, "rollouts": "chain"},
        "chain, V(s_0) of the group": {"num_generations": 8, "rollouts": "chain", "initial_value": "group"},
        "VinePPO": {"num_generations": 8, "rollouts": "chain", "segmentation": "steps"},
        "tree, nodes": {**tree, "num_generations": 32 * -(-nodes // 32)},
        "tree, paths": {**tree, "num_generations": 32 * -(-nodes // 32), "tree_rows": "paths"},
        "tree, packed in 2": {**tree, "num_generations": 2, "tree_rows": "packed"},
        "tree, packed in 4": {**tree, "num_generations": 4, "tree_rows": "packed"},
    }
    amounts: dict[str, list[dict[str, float]]] = defaultdict(list)
    for seed in range(args.rounds):
        for name, settings in methods.items():
            amounts[name].append(run(settings, args.steps, seed))
    print(f"torch {torch.__version__}, trl {trl.__version__}, transformers {transformers.__version__}, ", end="")
    print(f"{torch.get_num_threads()} threads, {platform.machine()}; {args.rounds} rounds of {args.steps} steps\n")
    print("| per prompt | generated | of the formula | forward | padded | unique | seconds a step | forward / unique |")
    print("|---" * 8 + "|")
    for name, rounds in amounts.items():
        mean = {key: sum(r[key] for r in rounds) / len(rounds) for key in rounds[0]}
        formula = f"{mean['generated'] / mean['formula']:.3f}" if "formula" in mean else ""
        print(
            f"| {name} | {mean['generated']:,.0f} | {formula} | {mean['forward']:,.0f} | {mean['padded']:,.0f} | "
            f"{mean['unique']:,.0f} | {mean['step']:.3f} | {mean['forward'] / mean['unique']:.2f} |"
        )


if __name__ == "__main__":
    main()
