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
  trl-credit eval runs/a runs/b --protocol s_trace   and is the difference real? Interval, p-value, samples needed
  trl-credit eval runs/a runs/b                      the same from the samples that are there

Without --sets it takes all sets of the protocol. Started again after an interruption, it goes on where it stopped.
"""


def main(argv: list[str]) -> int:
    """The exit code."""
    begin()
    from ..evaluation.command_line import evaluating, parse_evaluation, run_evaluation

    with StopSignals(PROGRAM) as stop, evaluating(argv, stop):
        run_evaluation(parse_evaluation(argv, description=DESCRIPTION, prog=" ".join(PROGRAM)))
    return 0
