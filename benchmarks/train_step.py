"""Optimizer steps of rows of unequal lengths against TRL's `GRPOTrainer`, alternating in one run: tokens, CPU time.

    python benchmarks/train_step.py [--cap 512] [--share 0.2] [--windows 1 4] [--beta 0.04] [--repeats 5]

A generation batch of `windows` optimizer steps, each of `micro_batches` micro-batches of `batch` rows, goes through
everything but generation: padding, the passes for π_old and the reference, rewards, losses, backward passes, clipping
and AdamW (of learning rate 0, so that both trainers keep the same weights). Lengths of responses are lognormal with σ =
0.8, cut at `cap`, which a `share` of them reaches; those of prompts are uniform between 8 and `prompt`. Both trainers
have the same rows and the same shuffle; the knobs are those of plain GRPO, so that gradients must agree.

Tokens are counted where the models are called. "real" are those without padding. Times are CPU time of this process;
the ratio is the median over pairs that followed each other.
"""

import argparse
import math
import random
import statistics
import tempfile
import time
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers.utils import logging

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_model_path


SIGMA = 0.8


def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [sum(ids[:7]) % 11 / 11 for ids in completion_ids]


def planned(trainer_class: type, rows: dict[tuple[int, ...], list[list[int]]]) -> type:
    """A trainer whose responses are `rows`, by the ids of their prompt and in their order."""

    class Planned(trainer_class):
        def _tokenize_prompts(self, prompts: list) -> Any:
            return [[int(x) for x in prompt.split()] for prompt in prompts], None, {}

        def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
            asked: dict[tuple[int, ...], int] = {}
            found = []
            for ids in map(tuple, prompt_ids):
                asked[ids] = asked.get(ids, -1) + 1
                found.append(rows[ids][asked[ids]])
            return found, None

    return Planned


class Case:
    """One trainer, ready to step through the same generation batch again and again."""

    def __init__(self, trainer: Any, prompts: list[str]) -> None:
        self.trainer, self.tokens, self.trained = trainer, 0, 0
        self.gradients: list[list[torch.Tensor]] = []
        trainer.create_optimizer()
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        self._rows = [{"prompt": prompt} for prompt in prompts for _ in range(trainer.args.num_generations)]
        for model in filter(None, (trainer.model, trainer.ref_model)):
            model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        n = kwargs["input_ids"].numel()
        self.tokens, self.trained = self.tokens + n, self.trained + n * torch.is_grad_enabled()

    def batch(self, seed: int) -> float:
        """CPU seconds of all optimizer steps of the generation batch."""
        trainer = self.trainer
        window, sync = trainer.args.gradient_accumulation_steps, trainer.accelerator.gradient_state._set_sync_gradients
        torch.manual_seed(seed)
        trainer._step, trainer._buffered_inputs, self.tokens, self.trained, self.gradients = 0, None, 0, 0, []
        trainer.model.train()
        start = time.process_time()
        for i in range(1, trainer.args.steps_per_generation + 1):
            sync(i % window == 0)
            trainer.training_step(trainer.model, self._rows, None)
            if i % window == 0:
                self.gradients.append([p.grad.clone() for p in trainer.model.parameters()])
                torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
                trainer.optimizer.step()
                trainer.optimizer.zero_grad()
        return time.process_time() - start


def ragged(args: argparse.Namespace, windows: int) -> tuple[dict[tuple[int, ...], list[list[int]]], int]:
    """Responses by prompt, and the tokens of all rows with their prompts."""
    draw = random.Random(0)
    z = statistics.NormalDist().inv_cdf(1 - args.share)
    count = windows * args.micro_batches * args.batch // args.group
    rows: dict[tuple[int, ...], list[list[int]]] = {}
    while len(rows) < count:
        prompt = tuple(draw.randrange(3, 18) for _ in range(draw.randint(8, args.prompt)))
        lengths = [
            max(1, int(args.cap * min(1.0, math.exp(SIGMA * (draw.gauss(0, 1) - z))))) for _ in range(args.group)
        ]
        rows[prompt] = [[draw.randrange(3, 18) for _ in range(n)] for n in lengths]
    return rows, sum(len(prompt) + len(ids) for prompt, group in rows.items() for ids in group)


def compare(args: argparse.Namespace, windows: int, folder: str) -> str:
    """A row of the table."""
    rows, real = ragged(args, windows)
    prompts = [" ".join(map(str, ids)) for ids in rows]
    settings = {
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "log_level": "error",
        "per_device_train_batch_size": args.batch,
        "gradient_accumulation_steps": args.micro_batches,
        "steps_per_generation": args.micro_batches * windows,
        "num_generations": args.group,
        "max_completion_length": args.cap,
        "beta": args.beta,
        "learning_rate": 0.0,
        "loss_type": "grpo",
    }
    cases = []
    for config_class, trainer_class in ((CreditConfig, CreditTrainer), (trl.GRPOConfig, trl.GRPOTrainer)):
        config = config_class(output_dir=f"{folder}/{trainer_class.__name__}-{windows}", **settings)
        data = Dataset.from_dict({"prompt": prompts})
        trainer = planned(trainer_class, rows)(args.model, reward, config, train_dataset=data)
        cases.append(Case(trainer, prompts))
    ours, theirs = cases
    seconds: dict[Case, list[float]] = {ours: [], theirs: []}
    difference = size = 0.0
    for repeat in range(args.repeats + 1):
        # who goes first changes, so that neither always finds the caches as the other left them
        for case in cases if repeat % 2 else cases[::-1]:
            spent = case.batch(seed=repeat)
            if repeat > 0:
                seconds[case].append(spent)
        for left, right in zip(ours.gradients, theirs.gradients, strict=True):
            difference = max(difference, *((x - y).abs().max().item() for x, y in zip(left, right, strict=True)))
            size = max(size, *(y.abs().max().item() for y in right))
    ratio = statistics.median(y / x for x, y in zip(seconds[ours], seconds[theirs], strict=True))
    passes = 1 + (windows > 1) + (args.beta != 0.0)
    tokens = [f"{case.tokens:,} ({case.tokens / (passes * real):.2f})" for case in (ours, theirs)]
    return (
        f"| {args.cap}, {args.share:.0%} | {windows} | {passes} | {tokens[0]} | {tokens[1]} | "
        f"{theirs.tokens / ours.tokens:.2f} | {ratio:.2f} | {difference:.1e} of {size:.1e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=demo_model_path())
    parser.add_argument("--cap", type=int, nargs="+", default=[512])
    parser.add_argument("--share", type=float, default=0.2, help="of the responses that reach the cap")
    parser.add_argument("--prompt", type=int, default=64, help="longest prompt")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--micro_batches", type=int, default=8, help="of an optimizer step")
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 4], help="optimizer steps of a generation batch")
    parser.add_argument("--beta", type=float, default=0.04)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    logging.disable_progress_bar()
    print(f"torch {torch.__version__}, trl {trl.__version__}, transformers {transformers.__version__}, ", end="")
    print(f"{torch.get_num_threads()} thread(s), {args.micro_batches} micro-batches of {args.batch} rows a step\n")
    print(
        "| cap, share at it | windows | passes | tokens ours (/ real) | tokens TRL (/ real) | tokens TRL / ours |",
        end="",
    )
    print(" CPU time TRL / ours | largest gradient difference |\n|---|---|---|---|---|---|---|---|")
    caps = args.cap
    for args.cap in caps:
        for windows in args.windows:
            with tempfile.TemporaryDirectory() as folder:
                print(compare(args, windows, folder), flush=True)


if __name__ == "__main__":
    main()
