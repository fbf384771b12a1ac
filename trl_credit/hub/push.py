"""Pushes a folder to the Hub in one commit, so that a failure costs only the push.

The model's folder is only read. The commit holds the model, its tokenizer, the card, plots, recipe and evaluation.
`training_args.bin` is not pushed, because it holds `hub_token` in plain text; neither are checkpoints, logs, and
samples of evaluation sets.
"""

import contextlib
import shlex
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from fnmatch import fnmatch
from json import JSONDecodeError
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_session
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import validate_repo_id

from ..support.signals import wait
from .files import publishable, refuse_secrets


T = TypeVar("T")
IDLE_TIMEOUT = 120.0  # seconds without a byte; a commit of many files may take the Hub a minute
REPLACED = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "adapter_config.json", "recipe.yaml"),
    *("reward_curve.png", "credit_plot.png", "evaluation/evaluation.*"),
)
REASONS = {
    401: "the Hub does not accept the token: run `hf auth login` or set HF_TOKEN",
    403: "the token may not write there: take one with write access to it",
    404: "there is no such repository or branch, or the token may not see it",
    429: "too many requests: wait some minutes",
}


class PushError(RuntimeError):
    """A push that failed. The message has the reason and the command that tries again."""


class PushInterrupted(KeyboardInterrupt):
    """Ctrl-C during a push. The message is one line with the command that pushes later.

    Threads of the client may still wait for the Hub, and Python waits for them at its exit: leave by `os._exit`.
    """


class PublicRepoError(ValueError):
    """The existing repository is public, and a private one was asked for."""


def push(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    commit_message: str = "End of training",
    endpoint: str | None = None,
) -> str:
    """Pushes the model in `folder` in one commit and returns the commit's URL. A second push changes nothing.

    Args:
        folder (`str` or `Path`):
            Folder with `config.json` or `adapter_config.json`, and safetensors.
        repo_id (`str`):
            `user/name`, or `name` for the token's own user. Created if it does not exist.
        private (`bool`, *optional*):
            `True` makes a new repository private and refuses an existing one that is public. `None`: the account's
            default.
        revision (`str`, *optional*):
            Branch, created if it does not exist.
        token, endpoint (`str`, *optional*):
            Default to the token of `hf auth login` or HF_TOKEN, and to HF_ENDPOINT.
        commit_message (`str`, *optional*):
            First line of the commit.

    Raises:
        ValueError: no complete model in `folder`, a bad `repo_id`, a public repository with `private=True`, or a file
            that holds a secret. Nothing was sent.
        PushError: the Hub could not be reached or refused, or a file was removed during the push. The repository has
            all of a push or nothing.
        OSError: a file was removed before anything was sent.
        PushInterrupted: Ctrl-C.
    """
    options = {"private": private, "revision": revision, "token": token, "endpoint": endpoint}
    return push_parts(folder, repo_id, message=commit_message, **options)[0]


class Part(NamedTuple):
    """What goes to one repository. `replaced`: patterns of the files there that a commit may delete."""

    root: Path
    files: list[str]
    repo_id: str
    repo_type: str | None = None
    replaced: tuple[str, ...] = REPLACED
    revision: str | None = None


class Beside(NamedTuple):
    """What goes to repositories beside that of the model. `parts` makes it before anything is sent, and `write_cards`
    is called with the model's full id once all repositories are open."""

    parts: Callable[[], list[Part]]
    write_cards: Callable[[str], None]


def push_parts(
    folder: str | Path,
    repo_id: str,
    *,
    message: str,
    beside: Beside | None = None,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> list[str]:
    """Pushes the model as [`push`] does, and what is `beside` it, each in one commit. Returns the commits' URLs."""
    root, stop = Path(folder), threading.Event()
    where = {"private": private, "revision": revision, "endpoint": endpoint}
    command = retry_command(folder, repo_id, **where, with_rollouts=beside is not None)

    def send() -> list[str]:
        opened = [_open(api, part.repo_id, private, repo_type=part.repo_type) for part in parts]
        if beside is not None:
            beside.write_cards(opened[0])
        return [_commit(api, part._replace(repo_id=name)) for part, name in zip(parts, opened, strict=True)]

    def _commit(api: HfApi, part: Part) -> str:
        there: dict[str, Any] = {"repo_id": part.repo_id, "repo_type": part.repo_type, "revision": part.revision}
        if part.revision is not None:
            api.create_branch(part.repo_id, branch=part.revision, exist_ok=True)
        # files of an earlier push would be loaded too: one whole file of weights beside the shards of new ones
        # (list_repo_files would wait for ever for a Hub that falls silent)
        existing = [file.rfilename for file in api.repo_info(**there, timeout=IDLE_TIMEOUT).siblings or []]
        stale = [name for name in existing if name not in part.files and _is_ours(name, part.replaced)]
        if gone := [name for name in part.files if not (part.root / name).is_file()]:
            raise PushError(f"{part.repo_id} was not pushed: {gone[0]} of {part.root} was removed during the push")
        additions = [CommitOperationAdd(name, part.root / name) for name in part.files]
        api.preupload_lfs_files(additions=additions, **there, free_memory=False)
        if stop.is_set():  # after Ctrl-C nobody would learn of the commit
            raise PushError(f"{part.repo_id} was not pushed: interrupted")
        operations = [*additions, *map(CommitOperationDelete, stale)]
        return api.create_commit(operations=operations, commit_message=message, **there).commit_url

    try:
        parts = [Part(root, publishable(root), repo_id, revision=revision)]
        validate_repo_id(repo_id)
        refuse_secrets(root, parts[0].files, token)
        if beside is not None:
            parts += beside.parts()
        api = HfApi(endpoint=endpoint, token=token)
        with _explained(repo_id, api.endpoint, hint=f"{folder} is complete. To try again: {command}"):
            return _in_thread(send)
    except KeyboardInterrupt:
        stop.set()
        raise interrupted(folder, command) from None


def interrupted(folder: str | Path, command: str) -> PushInterrupted:
    """The error of a Ctrl-C, with the command that pushes later."""
    return PushInterrupted(f"interrupted: {folder} is complete. To push it later: {command}")


def open_repo(
    repo_id: str, *, private: bool | None = None, token: str | None = None, endpoint: str | None = None
) -> str:
    """Creates the repository if it does not exist, and returns its full id. Before training it finds errors early.

    Raises:
        ValueError: a bad `repo_id`, or a public repository with `private=True`.
        PushError: the Hub could not be reached or refused.
    """
    validate_repo_id(repo_id)
    api = HfApi(endpoint=endpoint, token=token)
    with _explained(repo_id, api.endpoint, hint="Nothing was trained; without --push_to_hub no Hub is needed"):
        return _open(api, repo_id, private)


def retry_command(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
    with_rollouts: bool = False,
) -> str:
    """The command that pushes again to the same `endpoint`, quoted for a shell. It holds no token."""
    words = ["trl-credit", "push", str(folder), "--repo_id", repo_id]
    words += ["--private"] * bool(private) + (["--revision", revision] if revision else [])
    words += ["--with_rollouts"] * with_rollouts
    return (f"HF_ENDPOINT={shlex.quote(endpoint)} " if endpoint else "") + shlex.join(words)


def _in_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a thread and returns its result, so that Ctrl-C ends the wait before the Hub answers."""
    outcome: Future[T] = Future()
    ended = threading.Event()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised again in the waiting thread
            outcome.set_exception(error)
        ended.set()

    threading.Thread(target=run, name="push", daemon=True).start()
    wait(ended)
    return outcome.result()


def _open(api: HfApi, repo_id: str, private: bool | None, *, repo_type: str | None = None) -> str:
    sdk = "static" if repo_type == "space" else None
    opened = api.create_repo(repo_id, private=private, exist_ok=True, repo_type=repo_type, space_sdk=sdk).repo_id
    # an existing repository keeps its visibility
    if private and not api.repo_info(opened, repo_type=repo_type, timeout=IDLE_TIMEOUT).private:
        fix = "choose another name, make it private on the Hub, or leave out --private (--hub_private_repo)"
        raise PublicRepoError(f"{opened} exists and is public: {fix}.")
    return opened


def _is_ours(name: str, kinds: tuple[str, ...]) -> bool:
    # the star of fnmatch also matches folders, and files in those are the user's
    return any(name.count("/") == kind.count("/") and fnmatch(name, kind) for kind in kinds)


@contextlib.contextmanager
def _explained(repo_id: str, endpoint: str, *, hint: str) -> Iterator[None]:
    """Turns every error of the Hub's client into one `PushError`, and limits the wait for a silent Hub."""
    session = get_session()
    before, session.timeout = session.timeout, IDLE_TIMEOUT  # the client's default is to wait for ever
    try:
        yield
    except (PublicRepoError, PushError):
        raise
    # servers, sockets and threads of the client raise all of these
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        raise PushError(f"{repo_id} on the Hub: {_reason(error, endpoint)}. {hint}") from error
    finally:
        session.timeout = before


def _reason(error: BaseException, endpoint: str) -> str:
    if isinstance(error, RuntimeError) and error.__cause__ is not None:  # from a thread of the upload
        return _reason(error.__cause__, endpoint)
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        message = " ".join((error.server_message or "").split())[:200]
        return REASONS.get(status, f"the Hub answered {status}") + (f" ({message})" if message else "")
    text = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, (HTTPError, ConnectionError, JSONDecodeError)):
        return f"no valid answer from {endpoint} ({text})"
    return text
