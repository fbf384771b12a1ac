"""Pushes a trained model to the Hub, for the first time or again after a push that failed.

  trl-credit push runs/s_trace --repo_id me/s-trace --private

Sends the model, its tokenizer, card, plots, recipe and evaluation in one commit. Checkpoints, logs and
`training_args.bin` stay on disk. --with_rollouts also sends the rollout log. It becomes a data set (REPO_ID-rollouts)
with the texts of your data, and a static Space (REPO_ID-credit) with its page. Log in first with `hf auth login`, or
set HF_TOKEN.
"""

import os
import sys
from pathlib import Path

from ..settings.parser import OneLineParser
from ..support.adapters import adapter_base
from ..support.errors import fail
from ..support.startup import quiet_start


def main(argv: list[str]) -> None:
    """Pushes as the flags say.

    Raises:
        SystemExit: 2 if nothing was sent, 1 if the Hub could not be reached or refused. After Ctrl-C the process ends
            with exit code 130.
    """
    quiet_start()
    from ..hub import PushError, PushInterrupted, Repository, push
    from ..lab.viewer import build_page
    from ..lab.viewer.on_hub import push_with_rollouts
    from ..lab.viewer.runs import read_run

    parser = OneLineParser(prog="trl-credit push", description=__doc__)
    parser.add_argument("folder", help="folder that training wrote: weights, config, tokenizer, README.md")
    parser.add_argument("--repo_id", required=True, help="user/name, or only the name")
    parser.add_argument("--private", action="store_true", help="make it private; refuse a repository that is public")
    parser.add_argument("--revision", help="branch, created if it does not exist")
    parser.add_argument("--commit_message", default="End of training", help="first line of the commit")
    parser.add_argument("--with_rollouts", action="store_true", help="also push the rollout log and its page")
    try:
        flags = parser.parse_args(argv)
        folder, message = flags.folder, flags.commit_message
        repo = Repository(flags.repo_id, private=flags.private or None, revision=flags.revision)
        adapter_base(folder, says="it is pushed alone, and whoever loads it needs that model", needed=False)
        if flags.with_rollouts:
            shards, note = read_run(folder)
            page = build_page(shards, title=Path(folder).resolve().name, note=note)
            urls = push_with_rollouts(folder, repo, page=page, commit_message=message)
        else:
            urls = [push(folder, repo, commit_message=message)]
    except PushError as error:
        fail(error, code=1)
    except (ValueError, OSError) as error:
        fail(error, code=2)
    except PushInterrupted as interrupt:
        print(f"\n{interrupt}", file=sys.stderr, flush=True)  # below the progress bars of the upload
        os._exit(130)  # threads of the client would keep this process until the Hub answers
    for url in urls:
        print(f"pushed  {url}")
