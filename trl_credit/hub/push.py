"""Pushes a folder to the Hub in one commit, so that a failure costs only the push.

The model's folder is only read. The commit holds the model, its tokenizer, the card, plots, recipe and evaluation.
`training_args.bin` is not pushed, because it holds `hub_token` in plain text; neither are checkpoints, logs, and
samples of evaluation sets.
"""

import contextlib
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_session
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import validate_repo_id

from ..support.errors import one_line
from ..support.signals import in_thread
from .files import publishable, refuse_tokens


IDLE_TIMEOUT = 120.0  # seconds without a byte; a commit of many files may take the Hub a minute
REPLACED = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "adapter_config.json", "recipe.yaml"),
    *("reward_curve.png", "credit_plot.png", "evaluation/evaluation.*"),
)
REASONS = {
    401: "the Hub does not accept the token: run `hf auth login` or set HF_TOKEN",
    403: "the token may not write there: take one with write access to it",
    404: "there is no such repository or branch, or the token may not see it",
}


class PushError(RuntimeError):
    """A push that failed. The message has the reason and the command that tries again."""


class PushInterrupted(KeyboardInterrupt):
    """Ctrl-C during a push. The message is one line with the command that pushes later.

    Threads of the client may still wait for the Hub, and Python waits for them at its exit: leave by `os._exit`.
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
        ValueError: no complete model in `folder`, a bad `repo_id`, or a file that holds a token. Nothing was sent.
        PushError: the Hub could not be reached or refused, the repository is public with `private=True`, or a file was
            removed during the push. The repository has all of a push or nothing.
        OSError: a file was removed before anything was sent.
        PushInterrupted: Ctrl-C.
    """
    files = publishable(folder)
    refuse_tokens(Path(folder), files, token)
    command = retry_command(folder, repo_id, private=private, revision=revision, endpoint=endpoint)
    access = {"private": private, "revision": revision, "token": token, "endpoint": endpoint}
    return push_files(folder, files, repo_id, message=commit_message, command=command, **access)


def push_files(
    folder: str | Path,
    files: list[str],
    repo_id: str,
    *,
    message: str,
    command: str,
    repo_type: str | None = None,
    replaced: tuple[str, ...] = REPLACED,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Pushes `files` of a folder in one commit, and returns its URL. Raises what [`push`] does.

    Args:
        message, command (`str`):
            First line of the commit, and the command that tries again.
        repo_type (`str`, *optional*):
            `"dataset"` or `"space"` instead of a model.
        replaced (`tuple` of `str`):
            Patterns of files in the repository that the commit deletes if it does not replace them.
        private, revision, token, endpoint (*optional*):
            As for `push`.
    """
    validate_repo_id(repo_id)
    api = HfApi(endpoint=endpoint, token=token)

    def send() -> str:
        there: dict[str, Any] = {
            "repo_id": _open(api, repo_id, private, repo_type=repo_type),
            "repo_type": repo_type,
            "revision": revision,
        }
        if revision is not None:
            api.create_branch(there["repo_id"], branch=revision, exist_ok=True)
        # files of an earlier push would be loaded too: one whole file of weights beside the shards of new ones
        # (list_repo_files would wait for ever for a Hub that falls silent)
        existing = [file.rfilename for file in api.repo_info(**there, timeout=IDLE_TIMEOUT).siblings or []]
        operations = [CommitOperationAdd(name, Path(folder) / name) for name in files]
        operations += [CommitOperationDelete(x) for x in existing if x not in files and _is_ours(x, replaced)]
        return api.create_commit(operations=operations, commit_message=message, **there).commit_url

    with interruptible(folder, command):
        with _explained(repo_id, api.endpoint, hint=f"{folder} is complete. To try again: {command}"):
            return in_thread(send)[1].result()  # so that Ctrl-C ends the wait before the Hub answers


@contextlib.contextmanager
def interruptible(folder: str | Path, command: str) -> Iterator[None]:
    """Context manager in which Ctrl-C raises `PushInterrupted` with the command that pushes later."""
    try:
        yield
    except KeyboardInterrupt:
        raise PushInterrupted(f"interrupted: {folder} is complete. To push it later: {command}") from None


def open_repo(
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    repo_type: str | None = None,
    hint: str = "Nothing was trained; without --push_to_hub no Hub is needed",
) -> str:
    """Creates the repository if it does not exist, and returns its full id. Before training it finds errors early.

    `hint` is the end of the message of an error.

    Raises:
        ValueError: a bad `repo_id`.
        PushError: the Hub could not be reached or refused, or the repository is public with `private=True`.
    """
    validate_repo_id(repo_id)
    api = HfApi(endpoint=endpoint, token=token)
    with _explained(repo_id, api.endpoint, hint=hint):
        return _open(api, repo_id, private, repo_type=repo_type)


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


def _open(api: HfApi, repo_id: str, private: bool | None, *, repo_type: str | None = None) -> str:
    sdk = "static" if repo_type == "space" else None
    opened = api.create_repo(repo_id, private=private, exist_ok=True, repo_type=repo_type, space_sdk=sdk).repo_id
    # an existing repository keeps its visibility
    if private and not api.repo_info(opened, repo_type=repo_type, timeout=IDLE_TIMEOUT).private:
        fix = "choose another name, make it private on the Hub, or leave out --private (--hub_private_repo)"
        raise PushError(f"{opened} exists and is public: {fix}.")
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
    except PushError:
        raise
    # servers, sockets and threads of the client raise all of these
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        status = getattr(getattr(cause, "response", None), "status_code", None)
        reason = REASONS.get(status, f"it failed at {endpoint}")
        raise PushError(f"{repo_id} on the Hub: {reason} ({one_line(cause)[:300]}). {hint}") from error
    finally:
        session.timeout = before
