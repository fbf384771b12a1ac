"""The flags of an evaluation: for `trl-credit eval` and `examples/evaluate.py`."""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets import disable_progress_bars
from transformers.utils import logging

from ..mistakes import OneLineParser, check_output_dir, disk_full, fail
from ..rewards.guard import RewardRaised
from ..signals import StopSignals
from .comparison import compare_models
from .protocols import PROTOCOLS
from .runner import evaluate, rescore
from .stored import is_evaluation


_VLLM = ("tensor_parallel_size", "gpu_memory_utilization")
_CHANGES = ("samples", "temperature", "max_new_tokens", "max_context", "top_p", "top_k", "metrics")
# flags that say how samples are made, with their defaults
_OF_SAMPLING = {
    **dict.fromkeys(("data_dir", "reward", "max_problems", *_VLLM, *_CHANGES[:-1])),
    **{"overwrite": False, "prompt_style": "boxed", "seed": 0, "backend": "transformers", "batch_size": 64},
}


def parse_evaluation(argv: list[str], *, description: str | None, prog: str | None = None) -> argparse.Namespace:
    """The flags.

    Raises:
        ValueError: an unknown flag, a value that cannot be, or several processes.
    """
    parser = OneLineParser(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "compared",
        nargs="*",
        metavar="MODEL",
        help="before all flags, in the place of --models: two or more are compared with the first, problem by "
        "problem, and may be folders of evaluations",
    )
    add("--models", nargs="+", help="folders or Hub names; 'demo' is the embedded model (default)")
    add("--revision", help="branch, tag or commit of models on the Hub")
    add("--trust_remote_code", action="store_true", help="run code that comes with a model")
    add("--protocol", nargs="+", help=f"one or more of {', '.join(PROTOCOLS)}, custom (default: demo demo_greedy)")
    add("--sets", nargs="+", help="sets by name, or files (default: all sets of the protocol)")
    add("--data_dir", help="folder with the sets as files, where there is no network")
    add("--prompt_style", default="boxed", help="as for training: a name, or text with {problem} (default: boxed)")
    add(
        "--reward", help="of a task of your own: file.py:function, package.module.function or a name; 1 is right, 0 not"
    )
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
    args = parser.parse_args(argv)
    if args.compared and args.models:
        raise ValueError("models stand either behind --models or before all flags, where they are compared: not both")
    if args.compared and args.rescore:
        raise ValueError("--rescore judges all samples in --output_dir and takes no models: leave them out")
    args.models = args.models or args.compared or ["demo"]
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "this script is one process: start it with python, and use several GPUs by --backend vllm "
            "--tensor_parallel_size N"
        )
    return args


def output_folder(args: argparse.Namespace) -> Path:
    """Where the results go.

    Raises:
        ValueError: it cannot be written to.
    """
    one = Path(args.models[0])
    beside = one / "evaluation" if len(args.models) == 1 and one.is_dir() else Path("evaluation")
    folder = beside if args.output_dir is None else Path(args.output_dir)
    check_output_dir(folder, name="--output_dir")
    return folder


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of [`evaluate`] beside models, sets and folder.

    Raises:
        ValueError: no protocol for a model, or a flag of another engine.
    """
    engine = {name: value for name in _VLLM if (value := getattr(args, name)) is not None}
    if engine and args.backend != "vllm":
        raise ValueError(f"--{next(iter(engine))} wants --backend vllm")
    if args.protocol is None and len(args.compared) < 2 and args.models != ["demo"]:
        raise ValueError(f"--models wants a --protocol: one or more of {', '.join(PROTOCOLS)}, custom")
    return {
        "protocols": args.protocol or (None if len(args.compared) > 1 else ["demo", "demo_greedy"]),
        "data_dir": args.data_dir,
        "prompt_style": args.prompt_style,
        "reward": args.reward,
        "backend": args.backend,
        "revision": args.revision,
        "trust_remote_code": args.trust_remote_code,
        "max_problems": args.max_problems,
        "seed": args.seed,
        "batch_size": args.batch_size,
        "overwrite": args.overwrite,
        "changes": {name: getattr(args, name) for name in _CHANGES},
        "engine_kwargs": engine,
        "progress": not args.quiet,
    }


@contextmanager
def evaluating(argv: list[str], stop: StopSignals) -> Iterator[None]:
    """Within it an evaluation runs, quietly: what is wrong is one line with exit code 2, or 1 for a full disk, and an
    interruption (130, 143) is told with the command that goes on."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.disable_progress_bar()  # of loading; the evaluation has its own
    disable_progress_bars()
    warnings.filterwarnings("ignore", category=FutureWarning)
    sys.path.append(os.getcwd())  # for --reward package.module.function
    try:
        yield
    except (ValueError, OSError, ImportError, RewardRaised) as error:
        if disk_full(error):
            fail("disk full: the samples that were finished are whole; make room, and the same command goes on", code=1)
        fail(str(error).removesuffix(" Nothing was trained on them."), code=2)
    except KeyboardInterrupt:
        print(
            f"\ninterrupted ({stop.cause}): the samples so far are kept; go on with: {stop.command(argv)}",
            file=sys.stderr,
        )
        raise SystemExit(stop.code) from None


def run_evaluation(args: argparse.Namespace) -> None:
    """Evaluates, judges anew or compares, as the flags say, and prints the tables.

    Raises:
        ValueError: wrong input, or samples that do not belong together.
        OSError: a model that cannot be loaded.
    """
    folder, several = output_folder(args), len(args.compared) > 1
    stored = several and (args.protocol is None or all(map(is_evaluation, args.models)))
    given = [flag for flag, default in _OF_SAMPLING.items() if stored and getattr(args, flag) != default]
    if given:
        why = "--protocol" if args.protocol is None else "model"
        raise ValueError(f"--{given[0]} wants a {why} to sample by: stored samples are compared as they are")
    if args.rescore:
        rescore(folder, metrics=args.metrics, reward=args.reward)
    elif several:
        compare_models(args.models, args.sets, output_dir=folder, metrics=args.metrics, **options_of(args))
    else:
        evaluate(args.models, args.sets, output_dir=folder, **options_of(args))
    if not stored:
        print_results(folder)
    if several:
        print("\n" + (folder / "differences.md").read_text(encoding="utf-8"))
        print(f"table    {folder / 'differences.md'}\nnumbers  {folder / 'differences.json'}")


def print_results(folder: Path) -> None:
    """The table, and where it is."""
    print("\n" + (folder / "evaluation.md").read_text(encoding="utf-8"))
    print(f"table    {folder / 'evaluation.md'}\nscores   {folder / 'evaluation.json'}")
    print(f"figure   {folder / 'evaluation.png'}\nsamples  {folder / 'samples'}")
