"""Evaluates models: pass@k, best@k, avg@k and maj@k with 95 % intervals, into one table, a JSON file and a figure.

    python examples/evaluate.py                                # the embedded model on the embedded task, no GPU needed
    python examples/evaluate.py --models runs/s_trace/checkpoint-* --protocol demo
    python examples/evaluate.py --models Qwen/Qwen3-1.7B runs/s_trace --protocol s_trace --backend vllm

Without --sets it takes all sets of the protocol. Started again after an interruption, it goes on where it stopped.
Every response is kept in <output_dir>/samples, and --rescore judges them anew without a model. See docs/evaluation.md.
"""

if __name__ == "__main__":  # before torch and TRL are imported
    from trl_credit.startup import begin

    begin()

import argparse
import os
import sys
import warnings
from pathlib import Path

from datasets import disable_progress_bars
from transformers.utils import logging

from trl_credit.evaluation import PROTOCOLS, evaluate, rescore
from trl_credit.mistakes import OneLineParser, check_output_dir, disk_full, fail
from trl_credit.signals import StopSignals


def parse(argv: list[str]) -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", nargs="+", default=["demo"], help="folders or Hub names; 'demo' is the embedded model (default)")
    add("--revision", help="branch, tag or commit of models on the Hub")
    add("--trust_remote_code", action="store_true", help="run code that comes with a model")
    add("--protocol", nargs="+", help=f"one or more of {', '.join(PROTOCOLS)}, custom (default: demo demo_greedy)")
    add("--sets", nargs="+", help="sets by name, or files (default: all sets of the protocol)")
    add("--data_dir", help="folder with the sets as files, where there is no network")
    add("--prompt_style", default="boxed", help="prompt style of trl_credit.data (default: boxed)")
    add("--max_problems", type=int, help="the first so many problems of each set alone")
    add("--output_dir", help="default: <model>/evaluation for one local model, else ./evaluation")
    add("--overwrite", action="store_true", help="throw away samples that are there")
    add("--rescore", action="store_true", help="judge the samples in --output_dir anew; no model is loaded")
    add("--seed", type=int, default=0, help="of the sampling (default: 0)")
    add("--quiet", action="store_true", help="no progress bar")

    engine = parser.add_argument_group("engine")
    engine.add_argument("--backend", default="transformers", help="transformers (default) or vllm")
    engine.add_argument("--batch_size", type=int, default=64, help="responses at a time in transformers (default: 64)")
    engine.add_argument("--tensor_parallel_size", type=int, help="GPUs of one vLLM engine (default: 1)")
    engine.add_argument("--gpu_memory_utilization", type=float, help="share of a GPU's memory for vLLM (default: 0.9)")

    own = parser.add_argument_group("changes to the protocol; 'custom' wants the first three")
    own.add_argument("--samples", type=int, help="responses per problem")
    own.add_argument("--temperature", type=float, help="0 is greedy")
    own.add_argument("--max_new_tokens", type=int, help="tokens of a response")
    own.add_argument("--max_context", type=int, help="tokens of prompt and response together")
    own.add_argument("--top_p", type=float)
    own.add_argument("--top_k", type=int)
    own.add_argument("--metrics", nargs="+", help="pass@k, best@k, avg@k, maj@k")
    return parser.parse_args(argv)


def output_folder(args: argparse.Namespace) -> Path:
    if args.output_dir is not None:
        return Path(args.output_dir)
    one = Path(args.models[0])
    return one / "evaluation" if len(args.models) == 1 and one.is_dir() else Path("evaluation")


def run(args: argparse.Namespace) -> Path:
    folder = output_folder(args)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "this script is one process: start it with python, and use several GPUs by --backend vllm "
            "--tensor_parallel_size N"
        )
    check_output_dir(folder, name="--output_dir")
    if args.rescore:
        rescore(folder, metrics=args.metrics)
        return folder
    vllm_flags = ("tensor_parallel_size", "gpu_memory_utilization")
    engine_kwargs = {name: vars(args)[name] for name in vllm_flags if vars(args)[name] is not None}
    if engine_kwargs and args.backend != "vllm":
        raise ValueError(f"--{next(iter(engine_kwargs))} wants --backend vllm")
    own = ("samples", "temperature", "max_new_tokens", "max_context", "top_p", "top_k", "metrics")
    if args.protocol is None and args.models != ["demo"]:
        raise ValueError(f"--models wants a --protocol: one or more of {', '.join(PROTOCOLS)}, custom")
    evaluate(
        args.models,
        args.sets,
        protocols=args.protocol or ["demo", "demo_greedy"],
        output_dir=folder,
        data_dir=args.data_dir,
        prompt_style=args.prompt_style,
        backend=args.backend,
        revision=args.revision,
        trust_remote_code=args.trust_remote_code,
        max_problems=args.max_problems,
        seed=args.seed,
        batch_size=args.batch_size,
        overwrite=args.overwrite,
        changes={name: vars(args)[name] for name in own},
        engine_kwargs=engine_kwargs,
        progress=not args.quiet,
    )
    return folder


def main(argv: list[str]) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.disable_progress_bar()  # of loading; the evaluation has its own
    disable_progress_bars()
    warnings.filterwarnings("ignore", category=FutureWarning)
    with StopSignals() as stop:
        try:
            folder = run(parse(argv))
        except (ValueError, OSError, ImportError) as error:
            if disk_full(error):
                fail(
                    "disk full: the samples that were finished are whole; make room, and the same command goes on",
                    code=1,
                )
            fail(error, code=2)
        except KeyboardInterrupt:
            print(
                f"\ninterrupted ({stop.cause}): the samples so far are kept; go on with: {stop.command(argv)}",
                file=sys.stderr,
            )
            raise SystemExit(stop.code) from None
    print("\n" + (folder / "evaluation.md").read_text(encoding="utf-8"))
    print(f"table    {folder / 'evaluation.md'}\nscores   {folder / 'evaluation.json'}")
    print(f"figure   {folder / 'evaluation.png'}\nsamples  {folder / 'samples'}")


if __name__ == "__main__":
    main(sys.argv[1:])
