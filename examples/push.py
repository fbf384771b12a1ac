"""Pushes a trained model to the Hub, for the first time or again after a push that failed.

    python examples/push.py runs/s_trace --repo_id me/s-trace --private

Sends the model, its tokenizer, card, plots, recipe and evaluation in one commit; checkpoints, logs and
`training_args.bin` stay on disk. Log in before by `hf auth login`, or set HF_TOKEN. `trl-credit push` does the same.
"""

import sys

from trl_credit.hub import push
from trl_credit.hub.command_line import parse_push, pushing


def main(argv: list[str]) -> None:
    with pushing():
        args = parse_push(argv, description=__doc__)
        url = push(
            args.folder,
            args.repo_id,
            private=args.private or None,
            revision=args.revision,
            commit_message=args.commit_message,
            script=sys.argv[0],
        )
    print(f"pushed  {url}")


if __name__ == "__main__":
    main(sys.argv[1:])
