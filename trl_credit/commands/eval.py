"""`trl-credit eval`: what `examples/evaluate.py` does, by the same functions."""

from ..signals import StopSignals
from ..startup import begin


PROGRAM = ["trl-credit", "eval"]
DESCRIPTION = """\
pass@k, best@k, avg@k and maj@k of models with 95 % intervals, into one table, a JSON file and a figure.

  trl-credit eval                                    the embedded model on the embedded task, no GPU needed
  trl-credit eval --models Qwen/Qwen3-1.7B runs/s_trace --protocol s_trace --backend vllm
  trl-credit eval --models runs/mine --sets mine.jsonl --reward mine.py:is_right --protocol custom \\
      --samples 8 --temperature 1 --max_new_tokens 1024    a task of your own

Without --sets it takes all sets of the protocol. Started again after an interruption, it goes on where it stopped.
"""


def main(argv: list[str]) -> int:
    """The exit code."""
    begin()
    from ..evaluation import evaluate, rescore
    from ..evaluation.command_line import evaluating, options_of, output_folder, parse_evaluation, print_results

    with StopSignals(PROGRAM) as stop, evaluating(argv, stop):
        args = parse_evaluation(argv, description=DESCRIPTION, prog=" ".join(PROGRAM))
        folder = output_folder(args)
        if args.rescore:
            rescore(folder, metrics=args.metrics, reward=args.reward)
        else:
            evaluate(args.models, args.sets, output_dir=folder, **options_of(args))
    print_results(folder)
    return 0
