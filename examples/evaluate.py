"""Evaluates models: pass@k, best@k, avg@k and maj@k with 95 % intervals, in one table, a JSON file and a figure.

    python examples/evaluate.py                                # the embedded model on the embedded task, no GPU needed
    python examples/evaluate.py --models runs/s_trace/checkpoint-* --protocol demo
    python examples/evaluate.py --models Qwen/Qwen3-1.7B runs/s_trace --protocol s_trace --backend vllm
    python examples/evaluate.py runs/grpo runs/s_trace                           # as trained; is the difference real?

Without --sets it evaluates all sets of the protocol. Without --protocol, runs are evaluated on problems of their data
that they did not train on. An interrupted evaluation resumes when it is started again.
Every response is kept in <output_dir>/samples, and --rescore judges them again without a model. See docs/evaluation.md.
`trl-credit eval` does the same.
"""

import sys

from trl_credit.cli import eval as command


def main(argv: list[str]) -> None:
    command.main(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
