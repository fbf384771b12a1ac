"""`trl-credit push`: what `examples/push.py` does, by the same function."""

from ..startup import quiet_start


DESCRIPTION = """\
Pushes a trained model to the Hub, for the first time or again after a push that failed.

  trl-credit push runs/s_trace --repo_id me/s-trace --private

Sends the model, its tokenizer, card, plots, recipe and evaluation in one commit; checkpoints, logs and
`training_args.bin` stay on disk. Log in before by `hf auth login`, or set HF_TOKEN.
"""


def main(argv: list[str]) -> int:
    """The exit code."""
    quiet_start()
    from ..hub import push
    from ..hub.command_line import parse_push, pushing

    with pushing():
        args = parse_push(argv, description=DESCRIPTION, prog="trl-credit push")
        url = push(
            args.folder,
            args.repo_id,
            private=args.private or None,
            revision=args.revision,
            commit_message=args.commit_message,
        )
    print(f"pushed  {url}")
    return 0
