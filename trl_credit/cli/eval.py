"""`trl-credit eval`, and `examples/evaluate.py` with the same flags."""

import os
import sys
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

from ..settings.parser import OneLineParser
from ..support.errors import check_data_dir, check_output_dir, disk_full, fail
from ..support.files import inside
from ..support.signals import StopSignals
from ..support.startup import begin, prepare_process


PROGRAM = ["trl-credit", "eval"]
_HELP = """\
Evaluates models: pass@k, best@k, avg@k and maj@k with 95 % intervals, as a table, a JSON file and a figure.

  trl-credit eval                                    the embedded model on the embedded task, no GPU needed
  trl-credit eval --models Qwen/Qwen3-1.7B runs/s_trace --protocol s_trace --backend vllm
  trl-credit eval --models runs/mine --sets mine.jsonl --reward mine.py:is_right --protocol custom \\
      --samples 8 --temperature 1 --max_new_tokens 1024    a custom task
  trl-credit eval runs/s_trace                       a run, on problems of its data that it did not train on
  trl-credit eval runs/a runs/b                      is the difference real? Interval, p-value, samples needed
  trl-credit eval runs/a runs/b --protocol s_trace   the same, by the protocol of a paper

Without --protocol, a run of `trl-credit train` is evaluated with the settings that it was trained with. The problems
are the test split of its data set, or rows that none of the runs has seen. Without --sets, all sets of the protocol are
evaluated. Stored samples are used again. The same command resumes an interrupted evaluation.
"""
_ENGINE = ("tensor_parallel_size", "gpu_memory_utilization")
_CHANGES = ("samples", "temperature", "max_new_tokens", "max_context", "top_p", "top_k", "metrics")
# flags that say what is evaluated; the others are arguments of `evaluate`
_OURS = ("compared", "models", "protocol", "sets", "output_dir", "rescore", "quiet", "trust_run")
_OF_STORED = (*_OURS, "metrics", "revision", "trust_remote_code")  # all that act on stored samples


def main(argv: list[str]) -> int:
    """Runs an evaluation; returns the exit code. If it fails it ends in one line, with exit code 2 for wrong input and
    1 for a full disk. After an interruption (130, 143) the line names the command that resumes."""
    begin()
    from datasets import disable_progress_bars

    from ..lab import evaluation  # noqa: F401  # a signal during the import must not raise, see `end_at_once`
    from ..support.functions import FunctionRaised

    disable_progress_bars()
    warnings.filterwarnings("ignore", category=FutureWarning)
    with StopSignals(PROGRAM) as stop:
        try:
            _run(_parse(argv))
        except (ValueError, OSError, ImportError, FunctionRaised) as error:
            if disk_full(error):
                fail("disk full: finished samples are kept; make room, and the same command resumes", code=1)
            fail(str(error).removesuffix(" Nothing was trained on them."), code=2)
        except KeyboardInterrupt:
            kept = f"the samples so far are kept; go on with: {stop.command(argv)}"
            print(f"\ninterrupted ({stop.cause}): {kept}", file=sys.stderr)
            raise SystemExit(stop.code) from None
    return 0


def _parse(argv: list[str]) -> Namespace:
    """Parses the flags. `stored_only` says that models are compared from stored samples, `as_trained` that they are
    sampled from without a protocol.

    Raises:
        ValueError: an unknown flag, an invalid value or pair of flags, several processes, or damaged samples.
        OSError: a model that does not exist.
    """
    from ..lab.evaluation import PROTOCOLS, has_stored
    from ..lab.evaluation.runs import read_training
    from ..lab.evaluation.sample_store import is_evaluation

    names = f"{', '.join(PROTOCOLS)}, custom"
    parser = OneLineParser(prog=" ".join(PROGRAM), description=_HELP)
    add = parser.add_argument
    compared = "runs, models or folders of evaluations, before all flags; each is compared with the first, by problem"
    add("compared", nargs="*", metavar="MODEL", help=compared)
    add("--models", nargs="+", help="folders or Hub names; 'demo' is the embedded model (default)")
    add("--revision", help="branch, tag or commit of models on the Hub")
    add("--trust_remote_code", action="store_true", help="run code that comes with a model")
    add("--trust_run", action="store_true", help="import the reward function that the folder of a run names")
    add("--protocol", nargs="+", help=f"of {names} (default: as trained; demo demo_greedy for the embedded model)")
    add("--sets", nargs="+", help="sets by name, or files (default: all sets of the protocol)")
    add("--data_dir", help="folder with the sets as files, for machines without a network")
    add("--prompt_style", help="a name as for training, or text with {problem} (default: that of the run, else boxed)")
    add("--reward", help="of a custom task: file.py:function, package.module.function or a name; 1 is right, 0 wrong")
    add("--max_problems", type=int, help="the first of each set, or a random draw from a run's own data (default: 256)")
    add("--output_dir", help="default: <model>/evaluation for one local model, else ./evaluation")
    add("--overwrite", action="store_true", help="delete existing samples")
    add("--rescore", action="store_true", help="judge the samples in --output_dir again, without a model")
    add("--seed", type=int, default=0, help="seed of the sampling (default: 0)")
    add("--quiet", action="store_true", help="no progress bar")

    add = parser.add_argument_group("engine").add_argument
    add("--backend", default="transformers", help="transformers (default) or vllm")
    add("--batch_size", type=int, default=64, help="responses at a time with transformers (default: 64)")
    add("--tensor_parallel_size", type=int, help="GPUs of the vLLM engine (default: 1)")
    add("--gpu_memory_utilization", type=float, help="share of a GPU's memory for vLLM (default: 0.9)")

    changes = "changes to the protocol, or to the decoding of the run (--protocol custom needs the first three)"
    add = parser.add_argument_group(changes).add_argument
    add("--samples", type=int, help="responses per problem")
    add("--temperature", type=float, help="0 is greedy")
    add("--max_new_tokens", type=int, help="maximum tokens of a response")
    add("--max_context", type=int, help="maximum tokens of prompt and response together")
    add("--top_p", type=float, help="nucleus sampling")
    add("--top_k", type=int, help="sample from the k most likely tokens")
    add("--metrics", nargs="+", help="such as pass@8, best@8, avg@8, maj@8")
    args = parser.parse_args(argv)
    if args.compared and args.models:
        raise ValueError("give models either with --models, or before all flags to compare them: not both")
    if args.compared and args.rescore:
        raise ValueError("--rescore judges all samples in --output_dir and takes no models: leave them out")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("an evaluation is one process: use --backend vllm --tensor_parallel_size N for several GPUs")
    args.models = args.models or args.compared or ["demo"]
    several = len(args.compared) > 1
    of_sampling = [name for name, x in vars(args).items() if name not in _OF_STORED and x != parser.get_default(name)]
    stored_only = several and all(map(is_evaluation, args.models))
    if args.protocol is None and several and not stored_only:
        is_run = any(map(read_training, args.models))  # which says how to sample
        # a flag of sampling stands for the evaluation that it belongs to, which goes on where it was
        is_stored = not of_sampling and has_stored(args.models, _output_folder(args), args.revision)
        stored_only = not is_run or is_stored
    if stored_only and of_sampling:
        missing = "--protocol" if args.protocol is None else "model"
        raise ValueError(f"--{of_sampling[0]} needs a {missing} to sample with: the compared samples are stored ones")
    args.stored_only = stored_only
    args.as_trained = not stored_only and args.protocol is None and args.compared not in ([], ["demo"])
    return args


def _run(args: Namespace) -> None:
    """Evaluates, judges again or compares, and prints the tables.

    Raises:
        ValueError: invalid input, or samples that do not belong together.
        OSError: a model that cannot be loaded.
    """
    from ..lab.evaluation import compare_models, evaluate, rescore

    prepare_process(imports=bool(args.reward or args.trust_run))
    check_data_dir(args.data_dir)  # before a model is loaded
    folder = _output_folder(args)
    if args.rescore:
        rescore(folder, metrics=args.metrics, reward=args.reward, trust_run=args.trust_run)
    elif len(args.compared) > 1:
        compare_models(args.models, output_dir=folder, metrics=args.metrics, **_options(args))
    else:
        evaluate(args.models, output_dir=folder, **_options(args))
    if len(args.compared) > 1:
        _print_table(folder / "differences.md", numbers="differences.json")
    if not args.stored_only:
        _print_table(folder / "evaluation.md", scores="evaluation.json", figure="evaluation.png", samples="samples")


def _output_folder(args: Namespace) -> Path:
    model = Path(args.models[0])
    default = inside(model, "evaluation") if len(args.models) == 1 and model.is_dir() else Path("evaluation")
    folder = default if args.output_dir is None else Path(args.output_dir)
    check_output_dir(folder, name="--output_dir")
    return folder


def _options(args: Namespace) -> dict[str, Any]:
    """The keyword arguments of `evaluate` except for the folder."""
    from ..lab.evaluation import PROTOCOLS, plan_as_trained

    engine = {name: value for name in _ENGINE if (value := getattr(args, name)) is not None}
    if engine and args.backend != "vllm":
        raise ValueError(f"--{next(iter(engine))} needs --backend vllm")
    protocols = args.protocol
    if protocols is None and not args.stored_only and not args.as_trained:
        if args.models != ["demo"]:
            raise ValueError(f"--models needs a --protocol: one or more of {', '.join(PROTOCOLS)}, custom")
        protocols = ["demo", "demo_greedy"]
    others = (*_OURS, *_CHANGES, *_ENGINE, "stored_only", "as_trained")
    options = {
        **{name: value for name, value in vars(args).items() if name not in others},
        "sets": args.sets,
        "protocols": protocols,
        "prompt_style": args.prompt_style or "boxed",
        "changes": {name: getattr(args, name) for name in _CHANGES},
        "engine_kwargs": engine,
        "progress": not args.quiet,
    }
    if args.as_trained:
        names = ("sets", "prompt_style", "reward", "data_dir", "max_problems", "trust_remote_code", "trust_run")
        said = {name: getattr(args, name) for name in names}
        plan = plan_as_trained(args.models, changes=options["changes"], **said)
        print(f"problems  {plan.problems}\nsampling  {plan.sampling}")
        options |= plan.options
    return options


def _print_table(table: Path, **files: str) -> None:
    """Prints a table and the files beside it."""
    print("\n" + table.read_text(encoding="utf-8"))
    for name, file in {"table": table.name, **files}.items():
        print(f"{name:<9}{table.parent / file}")
