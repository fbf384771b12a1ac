"""Pushing a folder to the Hub so that a failure costs nothing but the push.

The folder is only read. What is pushed are the model, its tokenizer, the card, plots, recipe and evaluation, in one
commit: `training_args.bin` stays at home because it holds `hub_token` in plain text, and so do checkpoints, logs, and
samples of evaluation sets.
"""

import contextlib
import json
import shlex
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_session
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import validate_repo_id

from ..signals import wait
from .files import publishable, refuse_secrets


IDLE_TIMEOUT = 120.0  # seconds without a byte; a commit of many files may take the Hub a minute
REPLACED = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "adapter_config.json", "recipe.yaml"),
    *("reward_curve.png", "credit_plot.png", "evaluation/evaluation.*"),
)
REASONS = {
    401: "the Hub does not accept the token: run `hf auth login` or set HF_TOKEN",
    402: "the account has no room or no plan for this",
    403: "the token may not write there: take one with write access to it",
    404: "there is no such repository or branch, or the token may not see it",
    409: "the repository was being changed by somebody else",
    413: "a file is too large",
    429: "too many requests: wait some minutes",
    507: "the account has no room left",
}


class PushError(RuntimeError):
    """A push that did not come to its end. The message has the reason and the command that tries again."""


class PushInterrupted(KeyboardInterrupt):
    """A Ctrl-C during a push. The message is one line with the command that pushes later.

    Threads of the client may go on waiting for the Hub, and a process waits for them at its end: leave by `os._exit`.
    """


def push(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    commit_message: str = "End of training",
    endpoint: str | None = None,
    script: str | None = None,
) -> str:
    """Pushes the model in `folder` in one commit and returns the commit's URL. Doing so again changes nothing.

    Args:
        folder (`str` or `Path`):
            With `config.json` or `adapter_config.json`, and safetensors.
        repo_id (`str`):
            `user/name`, or `name` for the token's own user. Made if it is not there.
        private (`bool`, *optional*):
            `True` makes a new repository private and refuses an existing one that is public. `None`: as the
            account's settings say.
        revision (`str`, *optional*):
            Branch, made if it is not there.
        token, endpoint (`str`, *optional*):
            Default to the token of `hf auth login` or HF_TOKEN, and to HF_ENDPOINT.
        commit_message (`str`, *optional*):
            First line of the commit.
        script (`str`, *optional*):
            Path of a `push.py` in the command that tries again. `None`: `trl-credit push`.

    Raises:
        ValueError: no whole model in `folder`, a bad `repo_id`, a public repository with `private=True`, or a file
            that holds the token. Nothing was sent.
        PushError: the Hub could not be reached or said no, or a file was taken away meanwhile. The repository has
            all of a push or nothing.
        OSError: a file was taken away before anything was sent.
        PushInterrupted: Ctrl-C.
    """
    command = retry_command(folder, repo_id, private=private, revision=revision, endpoint=endpoint, script=script)
    stop = threading.Event()
    try:
        files = publishable(folder)
        validate_repo_id(repo_id)
        refuse_secrets(Path(folder), files, token)
        api = HfApi(endpoint=endpoint, token=token)
        send = partial(_send, api, Path(folder), files, repo_id, private, revision, commit_message, stop)
        with _explained(repo_id, api.endpoint, hint=f"{folder} is complete. To try again: {command}"):
            return _interruptible(send)
    except KeyboardInterrupt:
        stop.set()
        raise interrupted(folder, command) from None


def interrupted(folder: str | Path, command: str) -> PushInterrupted:
    """The error of a Ctrl-C, with the command that pushes later."""
    return PushInterrupted(f"interrupted: {folder} is complete. To push it later: {command}")


def _interruptible(work: Callable[[], str]) -> str:
    """What `work` returns, from a thread, so that Ctrl-C ends the wait at once and not when the Hub answers."""
    outcome: Future[str] = Future()
    ended = threading.Event()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # to be raised where it is waited for
            outcome.set_exception(error)
        ended.set()

    threading.Thread(target=run, name="push", daemon=True).start()
    wait(ended)
    return outcome.result()


def _send(
    api: HfApi,
    folder: Path,
    files: list[str],
    repo_id: str,
    private: bool | None,
    revision: str | None,
    message: str,
    stop: threading.Event,
) -> str:
    opened = _open(api, repo_id, private)
    if revision is not None:
        api.create_branch(opened, branch=revision, exist_ok=True)
    # what an earlier push left would stay in force: one whole file of weights beside the shards of new ones
    there = api.list_repo_files(opened, revision=revision)
    stale = [name for name in there if name not in files and _is_ours(name)]
    if gone := [name for name in files if not (folder / name).is_file()]:
        raise PushError(f"{repo_id} was not pushed: {gone[0]} of {folder} was taken away meanwhile")
    additions = [CommitOperationAdd(name, folder / name) for name in files]
    api.preupload_lfs_files(opened, additions, revision=revision, free_memory=False)
    if stop.is_set():  # nobody waits for it any more, and nobody would know of the commit
        raise PushError(f"{repo_id} was not pushed: interrupted")
    operations = [*additions, *(CommitOperationDelete(name) for name in stale)]
    return api.create_commit(opened, operations, commit_message=message, revision=revision).commit_url


def open_repo(
    repo_id: str, *, private: bool | None = None, token: str | None = None, endpoint: str | None = None
) -> str:
    """Makes the repository if it is not there, and returns its full id. Called before training, it fails early.

    Raises:
        ValueError: a bad `repo_id`, or a public repository although `private=True`.
        PushError: the Hub could not be reached or said no.
    """
    validate_repo_id(repo_id)
    api = HfApi(endpoint=endpoint, token=token)
    with _explained(repo_id, api.endpoint, hint="Nothing was trained; without --push_to_hub no Hub is needed"):
        return _open(api, repo_id, private)


class PublicRepoError(ValueError):
    """What was to be private would have become public."""


def _open(api: HfApi, repo_id: str, private: bool | None) -> str:
    opened = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    # an existing repository keeps its visibility, whatever was asked for
    if private and not api.model_info(opened, timeout=IDLE_TIMEOUT).private:
        raise PublicRepoError(
            f"{opened} is there already and public, and it was to be private: choose another name, make it private in "
            "its settings on the Hub, or leave out --private (--hub_private_repo)."
        )
    return opened


def _is_ours(name: str) -> bool:
    # the star of fnmatch takes folders in, and those are the user's
    return any(name.count("/") == kind.count("/") and fnmatch(name, kind) for kind in REPLACED)


def retry_command(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
    script: str | None = None,
) -> str:
    """The one command that pushes again, quoted for a shell, to `endpoint` if it is given. It holds no token."""
    words = ["trl-credit", "push"] if script is None else ["python", script]
    words += [str(folder), "--repo_id", repo_id]
    words += ["--private"] * bool(private) + (["--revision", revision] if revision else [])
    return (f"HF_ENDPOINT={shlex.quote(endpoint)} " if endpoint else "") + shlex.join(words)


@contextlib.contextmanager
def _explained(repo_id: str, endpoint: str, *, hint: str) -> Iterator[None]:
    """Turns what a client of the Hub raises into one `PushError`, and gives up on a Hub that falls silent."""
    session = get_session()
    before, session.timeout = session.timeout, IDLE_TIMEOUT  # by default the client waits for ever
    try:
        yield
    except (PublicRepoError, PushError):
        raise
    # the client lets what it was told by servers, sockets and its threads through as all of these
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        raise PushError(f"{repo_id} on the Hub: {_reason(error, endpoint)}. {hint}") from error
    finally:
        session.timeout = before


def _reason(error: BaseException, endpoint: str) -> str:
    if isinstance(error, RuntimeError) and error.__cause__ is not None:  # from a thread of the upload
        return _reason(error.__cause__, endpoint)
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        said = " ".join((error.server_message or "").split())[:200]
        return REASONS.get(status, f"the Hub answered {status}") + (f" ({said})" if said else "")
    if isinstance(error, json.JSONDecodeError):
        return f"{endpoint} gave an answer that is not the Hub's"
    text = " ".join(str(error).split())[:300] or type(error).__name__
    return f"no answer from {endpoint} ({text})" if isinstance(error, (HTTPError, ConnectionError)) else text
