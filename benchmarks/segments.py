"""What segment methods cost beside their sampling, by counts and processor time.

    python benchmarks/segments.py

Prefixes that transformers reads once or n times, in turns. The states of a chain by running digests against whole
prefixes as keys, in turns; what rows of trees take when they are sent, and the longest of packed rows; and, by
training on the embedded model, the tokens of passes for π_old.
"""

import pickle
import random
import tempfile
import time

import torch
import transformers
from stepping import random_model
from transformers.utils import logging

from trl_credit import CreditConfig, CreditTrainer, SPOTreeConfig
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward, demo_settings
from trl_credit.rollouts.chain import plan_requests
from trl_credit.rollouts.policy import Continuation
from trl_credit.rollouts.tree import Node, Tree, assign_tree_credit, packed_rows, training_rows


def by_whole_prefixes(boundaries: torch.Tensor, groups: list[int], completion_ids: list[list[int]]) -> int:
    """Number of different prefixes."""
    return len({(groups[row], tuple(completion_ids[row][:b])) for row, b in boundaries.nonzero().tolist()})


def seconds(call) -> tuple[float, int]:
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def states(rows: int, width: int, share: float) -> str:
    torch.manual_seed(0)
    ids, boundaries = torch.randint(0, 150_000, (rows, width)), torch.rand(rows, width) < share
    for x in (ids, boundaries):  # groups of 8 share the first quarter
        x.view(-1, 8, width)[:, 1:, : width // 4] = x.view(-1, 8, width)[:, :1, : width // 4]
    groups, written = [row // 8 for row in range(rows)], ids.tolist()
    old, new = [], []
    for _ in range(2):
        old.append(seconds(lambda: by_whole_prefixes(boundaries, groups, written)))
        new.append(seconds(lambda: len(plan_requests(boundaries, groups=groups, completion_ids=written)[0])))
    assert {count for _, count in old + new} == {new[0][1]}
    return f"{rows} × {width} | {int(boundaries.sum()):,} | {min(old)[0]:.4f} | {min(new)[0]:.4f}"


def tree(branching: list[int], length: int, prompt: int) -> Tree:
    rng = random.Random(0)
    grown = Tree({}, [rng.randrange(150_000) for _ in range(prompt)])
    for level, count in enumerate(branching):
        for parent in [node for node in grown.root.walk() if node.depth == level]:
            for _ in range(count):
                ids = [rng.randrange(150_000) for _ in range(length)]
                parent.children.append(
                    Node(parent, Continuation(ids, None), level + 1, value=float(rng.random() < 0.5))
                )
    assign_tree_credit([grown], SPOTreeConfig())
    return grown


def passes(form: str) -> str:
    """Per batch of 64 rows from trees 6-6-6 of four prompts, over four of them."""
    with tempfile.TemporaryDirectory() as folder:
        trees = {"rollouts": "tree", "tree_branching": [6, 6, 6], "tree_segment_length": 6, "tree_rows": form}
        sizes = {
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 8,
            "num_generations": 16,
            "max_steps": 4,
        }
        sizes |= {"max_steps": 4, "replay_iterations": 8, "replay_cap": 32}
        settings = demo_settings(CreditConfig, seed=0, **sizes, **trees)
        quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "log_level": "error"}
        args = CreditConfig(output_dir=folder, loss_type="dapo", **quiet, **settings)
        trainer = CreditTrainer(demo_model_path(), demo_reward, args, train_dataset=demo_dataset(seed=0))
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.results.writes_at_end = False
        tokens, measure = [], trainer.engine.behavior_logps

        def counted(output):
            tokens.append(output["prompt_ids"].numel() + output["completion_ids"].numel())
            return measure(output)

        trainer.engine.behavior_logps = counted
        trainer.train()
    return f"{form} | {sum(tokens) / 4:,.0f} | {len(tokens) / 4:.0f}"


def prefills(length: int, *, n: int, budget: int) -> str:
    """Four prefixes, each continued `n` times by a random model of 4 layers of width 256: read once, or `n` times."""
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(folder, hidden=256, layers=4, vocabulary=4096)
        quiet = {"report_to": "none", "disable_tqdm": True, "log_level": "error", "use_cpu": True, "bf16": False}
        args = CreditConfig(folder, rollouts="chain", rollouts_per_state=n, loss_type="dapo", **quiet)
        trainer = CreditTrainer(model, demo_reward, args, train_dataset=demo_dataset(seed=0))
        draw = random.Random(0)
        prefixes = [[draw.randrange(3, 4096) for _ in range(length)] for _ in range(4)]
        tokens: list[int] = []
        trainer.model.register_forward_pre_hook(
            lambda module, args, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
        )
        measured: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
        for once in (True, False) * 3:
            trainer.engine.prefills_once = once
            tokens.clear()
            torch.manual_seed(0)
            took, _ = seconds(lambda: trainer.engine.continue_prefixes(prefixes, n=n, budgets=[budget] * 4))
            measured[once].append((took, sum(tokens)))
    (once_s, once_n), (each_s, each_n) = (min(measured[once]) for once in (True, False))
    return f"{length} | {n} | {budget} | {each_n:,} | {once_n:,} | {each_s / once_s:.2f}"


def main() -> None:
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    print("| prefix | continuations | tokens of each | forward, read n times | once | CPU time n times / once |")
    print("|---" * 6 + "|")
    for shape in ((64, 32), (256, 32), (1024, 32)):
        print(f"| {prefills(shape[0], n=9, budget=shape[1])} |", flush=True)
    print()
    print("| rows × tokens | boundaries | whole prefixes (s) | digests (s) |\n|---|---|---|---|")
    for shape in ((8, 64, 0.1), (64, 1024, 0.05), (64, 4096, 0.084), (64, 4096, 0.2)):
        print(f"| {states(*shape)} |")
    print("\n| rows of a tree 6-6-6 of 600 tokens | number | longest | mean | pickled (bytes a token) |")
    print("|---" * 5 + "|")
    grown = tree([6, 6, 6], 600, 200)
    forms = {form: training_rows(grown, form=form) for form in ("nodes", "paths")}
    forms |= {f"packed in {n}": packed_rows(grown, max_rows=n) for n in (8, 16, 32)}
    for name, rows in forms.items():
        lengths = [len(row.prompt_ids) + len(row.completion_ids) for row in rows]
        sent = len(pickle.dumps(rows)) / sum(lengths)
        print(f"| {name} | {len(rows)} | {max(lengths):,} | {sum(lengths) / len(rows):,.0f} | {sent:.1f} |")
    print("\n| rows | tokens for π_old a batch | passes |\n|---|---|---|")
    for form in ("nodes", "paths", "packed"):
        print(f"| {passes(form)} |")


if __name__ == "__main__":
    main()
