"""Optimizer steps against TRL's `GRPOTrainer` on the same rows, in turns in one run: tokens, FLOPs, CPU time, memory.

    python benchmarks/train_step.py [--cap 512] [--share 0.2] [--windows 1 4] [--beta 0.04] [--repeats 5]
    python benchmarks/train_step.py --shape 512/256 --group 8 --windows 1 --shared_prefix auto
    python benchmarks/train_step.py --segments
    python benchmarks/train_step.py --grid

A generation batch of `windows` optimizer steps, each of `micro_batches` micro-batches of `batch` rows, goes through
everything but generation: padding, the passes for π_old and the reference, rewards, losses, backward passes, clipping
and AdamW (of learning rate 0, so that both trainers keep the same weights). Both trainers have the same rows and the
same shuffle; the knobs are those of plain GRPO, so that gradients must agree.

`--cap`: ragged rows. Lengths of responses are lognormal with σ = 0.8, cut at `cap`, which a `share` of them reaches;
those of prompts are uniform between 8 and `prompt`. `--shape 512/256`: prompts of 512 and responses of 256 tokens, all
of them, and a group in each optimizer step. `--segments`: a chain, whose rows are compared with those as TRL pads them,
and a tree 6-6-6 packed against a row per node, in both cases ours against ours: TRL has neither. `--grid`: all of it.
The model is a small random one (`--hidden_size`, `--layers`, `--vocabulary`), or `--model`: a folder, a name, or demo.

Tokens are counted where the models are called, padding included. "real" are those without it, "unique" those with the
prompt of a group once, over all passes. FLOPs are those of `torch.utils.flop_counter`, with attention on CPUs and
products in place, which it does not know; gradient checkpointing is off. Times are CPU time of this process; the ratio
is the median over pairs that followed each other. Peak memory is what torch's tensors take at most in the first
optimizer step beyond what was there, by torch's profiler. Collectives are calls of accelerate's gather, reduce and
gather_object.
"""

import argparse
import math
import random
import statistics
import tempfile
from collections.abc import Iterator

import torch
import transformers
import trl
from segment_steps import segment_rows
from stepping import Compared, Rows, compare, make_case, ours, random_model
from transformers.utils import logging

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.demo import demo_model_path


SIGMA = 0.8
GROUPS, SHAPES, WINDOWS = (8, 16), ("128/128", "512/256", "512/512", "2048/512", "256/2048"), (1, 4)
HEAD = [
    "rows",
    "group",
    "windows",
    "passes",
    "real tokens",
    "unique",
    "tokens ours (/ real)",
    "TRL (/ real)",
    "FLOPs TRL / ours",
    "CPU time TRL / ours",
    "peak MB ours",
    "TRL",
    "collectives ours",
    "TRL",
    "largest gradient difference",
]


def ragged(args: argparse.Namespace, *, cap: int, group: int, windows: int, vocabulary: int) -> Rows:
    """Responses of unequal lengths, by prompt."""
    draw = random.Random(0)
    z = statistics.NormalDist().inv_cdf(1 - args.share)
    rows: Rows = {}
    while len(rows) < max(1, windows * args.micro_batches * args.batch // group):
        prompt = tuple(draw.randrange(3, vocabulary) for _ in range(draw.randint(8, args.prompt)))
        lengths = [max(1, int(cap * min(1.0, math.exp(SIGMA * (draw.gauss(0, 1) - z))))) for _ in range(group)]
        rows[prompt] = [[draw.randrange(3, vocabulary) for _ in range(n)] for n in lengths]
    return rows


def rectangular(shape: str, *, group: int, windows: int, vocabulary: int) -> Rows:
    """`windows` groups of prompts and responses of the lengths "prompt/response"."""
    draw = random.Random(0)
    prompt, response = map(int, shape.split("/"))
    return {
        tuple(draw.randrange(3, vocabulary) for _ in range(prompt)): [
            [draw.randrange(3, vocabulary) for _ in range(response)] for _ in range(group)
        ]
        for _ in range(windows)
    }


def step_row(args: argparse.Namespace, rows: Rows, *, windows: int, micro_batches: int, folder: str) -> Compared:
    """Plain GRPO on `rows` by both trainers."""
    shared = {
        "per_device_train_batch_size": args.batch,
        "gradient_accumulation_steps": micro_batches,
        "steps_per_generation": micro_batches * windows,
        "num_generations": len(next(iter(rows.values()))),
        "max_completion_length": max(len(ids) for group in rows.values() for ids in group),
        "beta": args.beta,
        "loss_type": "grpo",
    }
    own = ours(shared_prefix=args.shared_prefix)
    pairs = ((CreditConfig, CreditTrainer, own), (trl.GRPOConfig, trl.GRPOTrainer, {}))
    cases = [
        make_case(config, trainer, args.model, rows, output_dir=f"{folder}/{trainer.__name__}", **shared, **more)
        for config, trainer, more in pairs
    ]
    # in the grid, a batch of several optimizer steps is a repetition by itself
    return compare(*cases, repeats=max(1, args.repeats // windows) if args.grid else args.repeats)


def counts(rows: Rows) -> tuple[int, int]:
    """Tokens of all rows, and those with each prompt once."""
    responses = sum(len(ids) for group in rows.values() for ids in group)
    return sum(len(prompt) * len(group) for prompt, group in rows.items()) + responses, sum(map(len, rows)) + responses


def line(label: str, rows: Rows, compared: Compared, *, windows: int, beta: float) -> str:
    """A row of the table."""
    passes = 1 + (windows > 1) + (beta != 0.0)
    real, unique = (passes * n for n in counts(rows))
    left, right = compared.first, compared.second
    cells = [
        label,
        len(next(iter(rows.values()))),
        windows,
        passes,
        f"{real:,}",
        f"{unique:,}",
        *(f"{side.tokens:,} ({side.tokens / real:.2f})" for side in (left, right)),
        f"{right.flops / left.flops:.2f}",
        f"{compared.time:.2f}",
        *(f"{side.peak / 1e6:,.1f}" for side in (left, right)),
        left.collectives,
        right.collectives,
        f"{compared.difference:.1e} of {compared.size:.1e}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def lines(args: argparse.Namespace) -> Iterator[str]:
    """The table of what `args` asks for."""
    vocabulary = transformers.AutoConfig.from_pretrained(args.model).get_text_config().vocab_size
    yield f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|"
    for shape in args.shape:
        for group in args.group:
            for windows in args.windows:
                rows = rectangular(shape, group=group, windows=windows, vocabulary=vocabulary)
                if group % args.batch:
                    raise SystemExit(f"error: --batch {args.batch} must divide --group {group}, one of which is a step")
                with tempfile.TemporaryDirectory() as folder:
                    compared = step_row(args, rows, windows=windows, micro_batches=group // args.batch, folder=folder)
                yield line(shape, rows, compared, windows=windows, beta=args.beta)
    for cap in args.cap:
        for windows in args.windows:
            group = args.group[0]
            rows = ragged(args, cap=cap, group=group, windows=windows, vocabulary=vocabulary)
            with tempfile.TemporaryDirectory() as folder:
                compared = step_row(args, rows, windows=windows, micro_batches=args.micro_batches, folder=folder)
            yield line(f"ragged, {args.share:.0%} at {cap:,}", rows, compared, windows=windows, beta=args.beta)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: a small random one")
    parser.add_argument("--hidden_size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--cap", type=int, nargs="*", help="of ragged responses (default: 512)")
    parser.add_argument("--share", type=float, default=0.2, help="of the responses that reach the cap")
    parser.add_argument("--prompt", type=int, default=64, help="longest prompt of ragged rows")
    parser.add_argument("--shape", nargs="*", default=[], help="prompt/response, rows of one length")
    parser.add_argument("--group", type=int, nargs="+", default=[8])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--micro_batches", type=int, default=8, help="of an optimizer step with ragged rows")
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 4], help="optimizer steps of a generation batch")
    parser.add_argument("--beta", type=float, default=0.04)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--shared_prefix", default="auto", choices=["auto", "on", "off"], help="where we have that knob"
    )
    parser.add_argument("--segments", action="store_true", help="a chain and a tree 6-6-6, ours against ours")
    parser.add_argument("--grid", action="store_true", help="every row, two repeats each")
    args = parser.parse_args(argv)
    if args.grid:
        args.group, args.shape, args.windows, args.cap = list(GROUPS), list(SHAPES), list(WINDOWS), [512, 2048]
        args.segments, args.repeats = True, min(args.repeats, 2)
        args.beta = 0.0
    if args.cap is None:
        args.cap = [] if args.shape or args.segments else [512]
    return args


def main() -> None:
    args = parse()
    logging.disable_progress_bar()
    print(f"torch {torch.__version__}, trl {trl.__version__}, transformers {transformers.__version__}, ", end="")
    print(f"{torch.get_num_threads()} thread(s), micro-batches of {args.batch} rows, β = {args.beta}", end="")
    with tempfile.TemporaryDirectory() as folder:
        if args.model is None:
            sizes = {"hidden": args.hidden_size, "layers": args.layers, "vocabulary": args.vocabulary}
            args.model = random_model(folder, **sizes)
            print(", a random model: " + ", ".join(f"{name} {size}" for name, size in sizes.items()) + "\n")
        else:
            print(f", {args.model}\n")
            args.model = demo_model_path() if args.model == "demo" else args.model
        if args.shape or args.cap:
            for text in lines(args):
                print(text, flush=True)
        if args.segments:
            for text in segment_rows(args.model, repeats=args.repeats, shared_prefix=args.shared_prefix):
                print(text, flush=True)


if __name__ == "__main__":
    main()
