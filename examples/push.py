"""Pushes a trained model to the Hub, also again after a failed push.

    python examples/push.py runs/s_trace --repo_id me/s-trace --private

Sends the model, its tokenizer, card, plots, recipe and evaluation in one commit; checkpoints, logs and
`training_args.bin` stay on disk. Log in first with `hf auth login`, or set HF_TOKEN. `trl-credit push` does the same.
"""

import sys

from trl_credit.cli import push


def main(argv: list[str]) -> None:
    push.main(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
