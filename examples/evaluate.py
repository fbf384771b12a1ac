"""Evaluates models: pass@k, best@k, avg@k and maj@k with 95 % intervals, into one table, a JSON file and a figure.

    python examples/evaluate.py                                # the embedded model on the embedded task, no GPU needed
    python examples/evaluate.py --models runs/s_trace/checkpoint-* --protocol demo
    python examples/evaluate.py --models Qwen/Qwen3-1.7B runs/s_trace --protocol s_trace --backend vllm
    python examples/evaluate.py runs/grpo runs/s_trace --protocol s_trace        # and is the difference real?

Without --sets it takes all sets of the protocol. Started again after an interruption, it goes on where it stopped.
Every response is kept in <output_dir>/samples, and --rescore judges them anew without a model. See docs/evaluation.md.
`trl-credit eval` does the same.
"""

if __name__ == "__main__":  # before torch and TRL are imported
    from trl_credit.startup import begin

    begin()

import sys

from trl_credit.evaluation.command_line import evaluating, parse_evaluation, run_evaluation
from trl_credit.signals import StopSignals


def main(argv: list[str]) -> None:
    with StopSignals() as stop, evaluating(argv, stop):
        run_evaluation(parse_evaluation(argv, description=__doc__))


if __name__ == "__main__":
    main(sys.argv[1:])
