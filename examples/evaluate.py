"""Evaluates models: pass@k, best@k, avg@k and maj@k with 95 % intervals, into one table, a JSON file and a figure.

    python examples/evaluate.py                                # the embedded model on the embedded task, no GPU needed
    python examples/evaluate.py --models runs/s_trace/checkpoint-* --protocol demo
    python examples/evaluate.py --models Qwen/Qwen3-1.7B runs/s_trace --protocol s_trace --backend vllm

Without --sets it takes all sets of the protocol. Started again after an interruption, it goes on where it stopped.
Every response is kept in <output_dir>/samples, and --rescore judges them anew without a model. See docs/evaluation.md.
`trl-credit eval` does the same.
"""

if __name__ == "__main__":  # before torch and TRL are imported
    from trl_credit.startup import begin

    begin()

import sys

from trl_credit.evaluation import evaluate, rescore
from trl_credit.evaluation.command_line import evaluating, options_of, output_folder, parse_evaluation, print_results
from trl_credit.signals import StopSignals


def main(argv: list[str]) -> None:
    with StopSignals() as stop, evaluating(argv, stop):
        args = parse_evaluation(argv, description=__doc__)
        folder = output_folder(args)
        if args.rescore:
            rescore(folder, metrics=args.metrics, reward=args.reward)
        else:
            evaluate(args.models, args.sets, output_dir=folder, **options_of(args))
    print_results(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
