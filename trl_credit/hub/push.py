"""Pushes a folder to the Hub in one commit, so that a failure costs only the push.

The model's folder is only read. The commit holds the model, its tokenizer, the card, plots, recipe and evaluation.
`training_args.bin` is not pushed, because it holds `hub_token` in plain text; neither are checkpoints, logs, and
samples of evaluation sets.
"""

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_session
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


@dataclass(frozen=True)
class Repository:
    """A repository on the Hub. It need not exist yet.

    Attributes:
        repo_id: `user/name`, or `name` for the token's own user.
        private: `True` makes a new repository private and refuses an existing one that is public. `None`: the account's
            default.
        revision: Branch, created if it does not exist.
        token, endpoint: Default to the token of `hf auth login` or HF_TOKEN, and to HF_ENDPOINT.
        repo_type: `"dataset"` or `"space"` instead of a model.
    """

    repo_id: str
    private: bool | None = None
    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    repo_type: str | None = None

    def open(self, *, hint: str = "Nothing was trained; without --push_to_hub no Hub is needed") -> str:
        """Creates the repository if it does not exist, and returns its full id. Before training it finds errors early.

        `hint` is the end of the message of an error.

        Raises:
            ValueError: a bad `repo_id`.
            PushError: the Hub could not be reached or refused, or the repository is public with `private=True`.
        """
        with _errors_explained(self, hint):
            return self._opened(HfApi(endpoint=self.endpoint, token=self.token))

    def commit(
        self,
        folder: str | Path,
        files: list[str],
        *,
        message: str,
        retry: str,
        replaced: tuple[str, ...] = REPLACED,
    ) -> str:
        """Pushes `files` of a folder in one commit, and returns its URL. Raises what [`push`] does.

        Args:
            message, retry (`str`):
                First line of the commit, and the command that tries again.
            replaced (`tuple` of `str`):
                Patterns of files in the repository that the commit deletes if it does not replace them.
        """
        api = HfApi(endpoint=self.endpoint, token=self.token)

        def send() -> str:
            repo_id = self._opened(api)
            if self.revision is not None:
                api.create_branch(repo_id, branch=self.revision, exist_ok=True)
            branch = {"repo_id": repo_id, "repo_type": self.repo_type, "revision": self.revision}
            # files of an earlier push would be loaded too: one whole file of weights beside the shards of new ones
            # (list_repo_files would wait for ever for a Hub that falls silent)
            existing = [file.rfilename for file in api.repo_info(**branch, timeout=IDLE_TIMEOUT).siblings or []]
            operations = [CommitOperationAdd(name, Path(folder) / name) for name in files]
            for name in existing:
                # the star of fnmatch also matches folders, and files in those are the user's
                is_ours = any(name.count("/") == x.count("/") and fnmatch(name, x) for x in replaced)
                if is_ours and name not in files:
                    operations.append(CommitOperationDelete(name))
            return api.create_commit(operations=operations, commit_message=message, **branch).commit_url

        with interruptible(folder, retry), _errors_explained(self, f"{folder} is complete. To try again: {retry}"):
            return in_thread(send)[1].result()  # so that Ctrl-C ends the wait before the Hub answers

    def retry_command(self, folder: str | Path, *, with_rollouts: bool = False) -> str:
        """The command that pushes again to the same `endpoint`, quoted for a shell. It holds no token."""
        words = ["trl-credit", "push", str(folder), "--repo_id", self.repo_id]
        words += ["--private"] * bool(self.private) + (["--revision", self.revision] if self.revision else [])
        words += ["--with_rollouts"] * with_rollouts
        return (f"HF_ENDPOINT={shlex.quote(self.endpoint)} " if self.endpoint else "") + shlex.join(words)

    def _opened(self, api: HfApi) -> str:
        sdk = "static" if self.repo_type == "space" else None
        repo_id = api.create_repo(
            self.repo_id, private=self.private, exist_ok=True, repo_type=self.repo_type, space_sdk=sdk
        ).repo_id
        # an existing repository keeps its visibility
        if self.private and not api.repo_info(repo_id, repo_type=self.repo_type, timeout=IDLE_TIMEOUT).private:
            fix = "choose another name, make it private on the Hub, or leave out --private (--hub_private_repo)"
            raise PushError(f"{repo_id} exists and is public: {fix}.")
        return repo_id


def push(folder: str | Path, repo: Repository, *, commit_message: str = "End of training") -> str:
    """Pushes the model in `folder` in one commit and returns the commit's URL. A second push changes nothing.

    `folder` holds `config.json` or `adapter_config.json`, and safetensors.

    Raises:
        ValueError: no complete model in `folder`, a bad `repo_id`, or a file that holds a token. Nothing was sent.
        PushError: the Hub could not be reached or refused, the repository is public with `private=True`, or a file was
            removed during the push. The repository has all of a push or nothing.
        OSError: a file was removed before anything was sent.
        PushInterrupted: Ctrl-C.
    """
    files = publishable(folder)
    refuse_tokens(Path(folder), files, repo.token)
    return repo.commit(folder, files, message=commit_message, retry=repo.retry_command(folder))


@contextlib.contextmanager
def interruptible(folder: str | Path, retry: str) -> Iterator[None]:
    """Context manager in which Ctrl-C raises `PushInterrupted` with the command that pushes later."""
    try:
        yield
    except KeyboardInterrupt:
        raise PushInterrupted(f"interrupted: {folder} is complete. To push it later: {retry}") from None


@contextlib.contextmanager
def _errors_explained(repo: Repository, hint: str) -> Iterator[None]:
    """Turns every error of the Hub's client into one `PushError`, and limits the wait for a silent Hub."""
    validate_repo_id(repo.repo_id)
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
        reason = REASONS.get(status, f"it failed at {repo.endpoint or constants.ENDPOINT}")
        raise PushError(f"{repo.repo_id} on the Hub: {reason} ({one_line(cause)[:300]}). {hint}") from error
    finally:
        session.timeout = before
