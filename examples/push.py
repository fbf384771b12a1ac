"""Pushes a trained model to the Hub, for the first time or again after a push that failed.

    python examples/push.py runs/s_trace --repo_id me/s-trace --private

Sends the model, its tokenizer, card, plots, recipe and evaluation in one commit; checkpoints, logs and
`training_args.bin` stay on disk. Log in before by `hf auth login`, or set HF_TOKEN.
"""

import argparse
import os
import sys

from trl_credit.hub import PushError, PushInterrupted, push


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what training left: weights, config, tokenizer, README.md")
    parser.add_argument("--repo_id", required=True, help="user/name, or the name alone")
    parser.add_argument("--private", action="store_true", help="make it private; refuse a repository that is public")
    parser.add_argument("--revision", help="branch, made if it is not there")
    parser.add_argument("--commit_message", default="End of training")
    args = parser.parse_args(argv)
    try:
        url = push(
            args.folder,
            args.repo_id,
            private=args.private or None,
            revision=args.revision,
            commit_message=args.commit_message,
            script=sys.argv[0],
        )
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except PushError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except PushInterrupted as stop:
        print(f"\n{stop}", file=sys.stderr, flush=True)  # below the bars of the upload
        os._exit(130)  # threads of the client would keep this process until the Hub answers
    print(f"pushed  {url}")


if __name__ == "__main__":
    main(sys.argv[1:])
