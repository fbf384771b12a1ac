"""The flags of a push: for `trl-credit push` and `examples/push.py`."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..mistakes import OneLineParser, fail
from .push import PushError, PushInterrupted


def parse_push(argv: list[str], *, description: str | None, prog: str | None = None) -> argparse.Namespace:
    """The flags. Raises a `ValueError` for what they cannot be."""
    parser = OneLineParser(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what training left: weights, config, tokenizer, README.md")
    parser.add_argument("--repo_id", required=True, help="user/name, or the name alone")
    parser.add_argument("--private", action="store_true", help="make it private; refuse a repository that is public")
    parser.add_argument("--revision", help="branch, made if it is not there")
    parser.add_argument("--commit_message", default="End of training")
    return parser.parse_args(argv)


@contextmanager
def pushing() -> Iterator[None]:
    """Within it a push is made: what goes wrong is one line, with exit code 2 where nothing was sent, 1 where the Hub
    could not be reached or said no, and 130 after Ctrl-C."""
    try:
        yield
    except PushError as error:
        fail(error, code=1)
    except (ValueError, OSError) as error:
        fail(error, code=2)
    except PushInterrupted as stop:
        print(f"\n{stop}", file=sys.stderr, flush=True)  # below the bars of the upload
        os._exit(130)  # threads of the client would keep this process until the Hub answers
