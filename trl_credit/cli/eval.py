"""Evaluates models: pass@k, best@k, avg@k and maj@k with 95 % intervals, as a table, a JSON file and a figure.

  trl-credit eval                                    the embedded model on the embedded task, no GPU needed
  trl-credit eval --models Qwen/Qwen3-1.7B --protocol s_trace --backend vllm      by the protocol of a paper
  trl-credit eval runs/a                             a run as it was trained, on problems that it did not train on
  trl-credit eval runs/a runs/b --protocol s_trace   is the difference real? Interval, p-value, problems needed
  trl-credit eval a/evaluation b/evaluation          the same from stored samples: no model is loaded

The same command resumes an interrupted evaluation.
"""

import os
import sys
import warnings
from argparse import Namespace
from pathlib import Path

from ..settings.parser import OneLineParser
from ..support.errors import check_data_dir, check_output_dir, disk_full, fail
from ..support.files import inside
from ..support.signals import StopSignals
from ..support.startup import begin, prepare_process


PROGRAM = ["trl-credit", "eval"]  # `examples/evaluate.py` has the same flags
_CHANGES = ("samples", "temperature", "max_new_tokens", "max_context", "top_p", "top_k", "metrics")
# arguments of `evaluate` that are flags of the same name; those of the task replace what a run says
_TASK = ("sets", "prompt_style", "reward", "data_dir", "max_problems", "trust_remote_code")
_OPTIONS = ("revision", "seed", "backend", "batch_size", "overwrite")
_SCORES = {"scores": "evaluation.json", "figure": "evaluation.png", "samples": "samples"}
_ENGINE = ("tensor_parallel_size", "gpu_memory_utilization")
# flags that act on stored samples too
_OF_STORED = ("compared", "models", "protocol", "sets", "output_dir", "rescore", "quiet", "trust_run", "metrics")


def main(argv: list[str]) -> None:
    """Runs an evaluation. If it fails it ends in one line, with exit code 2 for wrong input and
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


def _parse(argv: list[str]) -> Namespace:
    """Parses the flags, and checks that they fit together. `sampling` are those that are set and act on sampling."""
    from ..lab.evaluation import PROTOCOLS

    parser = OneLineParser(prog=" ".join(PROGRAM), description=__doc__)
    add = parser.add_argument
    add("compared", nargs="*", metavar="MODEL", help="runs, models or evaluations, each compared with the first")
    add("--models", nargs="+", help="folders or Hub names; 'demo' is the embedded model (default)")
    add("--revision", help="branch, tag or commit of models on the Hub")
    add("--trust_remote_code", action="store_true", help="run code that comes with a model")
    add("--trust_run", action="store_true", help="import the reward function that the folder of a run names")
    add("--protocol", nargs="+", help=f"of {', '.join(PROTOCOLS)}, custom (default: as trained)")
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

    add = parser.add_argument_group("changes (--protocol custom needs the first three)").add_argument
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
    if args.backend != "vllm" and (engine := [name for name in _ENGINE if getattr(args, name) is not None]):
        raise ValueError(f"--{engine[0]} needs --backend vllm")
    args.sampling = [name for name, x in vars(args).items() if name not in _OF_STORED and x != parser.get_default(name)]
    return args


def _run(args: Namespace) -> None:
    """Judges stored samples again, compares them, or samples from models: by a protocol, else as they were trained."""
    from ..lab.evaluation import PROTOCOLS, compare_models, evaluate, is_evaluation, plan_as_trained, rescore

    prepare_process(imports=bool(args.reward or args.trust_run))
    check_data_dir(args.data_dir)  # before a model is loaded
    models, compares = args.models or args.compared or ["demo"], len(args.compared) > 1
    is_folder = len(models) == 1 and Path(models[0]).is_dir()
    folder = Path(args.output_dir or (inside(models[0], "evaluation") if is_folder else "evaluation"))
    check_output_dir(folder, name="--output_dir")
    if args.rescore:
        rescore(folder, metrics=args.metrics, reward=args.reward, trust_run=args.trust_run)
        _print_table(folder, "evaluation.md", **_SCORES)
        return
    sampled = [model for model in models if not (compares and is_evaluation(model))]
    if not sampled and args.sampling:
        raise ValueError(f"--{args.sampling[0]} needs a model to sample with: the compared samples are stored ones")
    if args.protocol is None and models == ["demo"]:
        args.protocol = ["demo", "demo_greedy"]
    if args.protocol is None and args.models:
        raise ValueError(f"--models needs a --protocol: one or more of {', '.join(PROTOCOLS)}, custom")
    task = {name: getattr(args, name) for name in _TASK}
    task["changes"] = {name: getattr(args, name) for name in _CHANGES}
    engine = {name: value for name in _ENGINE if (value := getattr(args, name)) is not None}
    options = {name: getattr(args, name) for name in _OPTIONS} | task
    options |= {"protocols": args.protocol, "progress": not args.quiet, "engine_kwargs": engine}
    if sampled and args.protocol is None:
        as_trained, description = plan_as_trained(sampled, trust_run=args.trust_run, **task)
        print(description)
        options |= as_trained
    options["prompt_style"] = options["prompt_style"] or "boxed"
    if compares:
        compare_models(models, output_dir=folder, metrics=args.metrics, **options)
        _print_table(folder, "differences.md", numbers="differences.json")
    else:
        evaluate(models, output_dir=folder, **options)
    if sampled:
        _print_table(folder, "evaluation.md", **_SCORES)


def _print_table(folder: Path, name: str, **files: str) -> None:
    """Prints a table, and where it and the files beside it are."""
    from ..lab.tables import for_terminal

    print("\n" + for_terminal((folder / name).read_text(encoding="utf-8")))
    for kind, file in {"table": name, **files}.items():
        print(f"{kind:<9}{folder / file}")
