"""Pushes a folder to the Hub in one commit, so that a failure costs only the push; also during a run and at its end.

The model's folder is only read. The commit holds the model, its tokenizer, the card, plots, recipe and evaluation.
`training_args.bin` is not pushed, because it holds `hub_token` in plain text; neither are checkpoints, logs, and
samples of evaluation sets.
"""

import contextlib
import logging
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_session
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import validate_repo_id
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy

from ..support.errors import one_line
from ..support.signals import in_thread, wait
from .files import publishable, refuse_tokens


logger = logging.getLogger(__name__)

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
        self, folder: str | Path, files: list[str], *, message: str, retry: str, replaced: tuple[str, ...] = REPLACED
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
            # the star of fnmatch also matches folders, and files in those are the user's
            ours = {name for name in existing for x in replaced if name.count("/") == x.count("/") and fnmatch(name, x)}
            operations += [CommitOperationDelete(name) for name in existing if name in ours and name not in files]
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
        kind = {"repo_type": self.repo_type, "space_sdk": "static" if self.repo_type == "space" else None}
        repo_id = api.create_repo(self.repo_id, private=self.private, exist_ok=True, **kind).repo_id
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


class PushCallback(TrainerCallback):
    """Pushes the model of every checkpoint in the background, one push at a time, and the whole result at the end.

    A push that fails during training is a warning, and the next checkpoint is pushed again; a checkpoint that is saved
    during a push is left out. Checkpoints themselves, with their optimizer, stay on disk.

    Args:
        repo ([`Repository`]):
            Where to.
        every_save (`bool`, *optional*, defaults to `True`):
            Whether checkpoints are pushed, or only the result.
    """

    def __init__(self, repo: Repository, *, every_save: bool = True) -> None:
        self.repo, self.every_save = repo, every_save
        self._ended = threading.Event()  # set while no checkpoint is being pushed
        self._ended.set()

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> "PushCallback | None":
        """Takes `push_to_hub` and the `hub_` flags over from the trainer, and opens the repository. `None` if
        `push_to_hub` is not set.

        Call it before the trainer is built. The trainer would push `training_args.bin` with the token in it, hide
        failures during training, and fill a public repository in spite of `hub_private_repo`.

        Raises:
            ValueError: a `hub_strategy` that pushes optimizers, or a bad name.
            PushError: the Hub could not be reached or refused, or the repository is public with
                `hub_private_repo=True`.
        """
        if not args.push_to_hub:
            return None
        if args.hub_strategy not in (HubStrategy.END, HubStrategy.EVERY_SAVE):
            what = f"hub_strategy={args.hub_strategy.value!r} would push optimizers"
            raise ValueError(f"{what}: set --hub_strategy every_save for the model of each checkpoint, or end")
        args.push_to_hub = False
        name = args.hub_model_id or Path(args.output_dir).absolute().name
        repo = Repository(name, private=args.hub_private_repo, revision=args.hub_revision, token=args.hub_token)
        if args.process_index == 0:
            repo = replace(repo, repo_id=repo.open())
        args.hub_model_id = repo.repo_id
        return cls(repo, every_save=args.hub_strategy == HubStrategy.EVERY_SAVE)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: object) -> None:
        if not self.every_save or not state.is_world_process_zero or self.is_pushing:
            return
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self._ended.clear()
        # a daemon, so that a run that is stopped does not wait for the Hub
        threading.Thread(target=self._push_checkpoint, args=(folder, state.global_step), daemon=True).start()

    def finish(self, folder: str | Path) -> str:
        """Pushes the result after the last push of a checkpoint. On the main process. Raises what [`push`] does."""
        with interruptible(folder, self.repo.retry_command(folder)):
            self.wait()
        return push(folder, self.repo)

    @property
    def is_pushing(self) -> bool:
        """Whether a checkpoint is being pushed. Python waits for such a push at its exit: see [`without_waiting`]."""
        return not self._ended.is_set()

    def wait(self) -> None:
        """Waits until no checkpoint is being pushed."""
        wait(self._ended)

    def _push_checkpoint(self, folder: Path, step: int) -> None:
        try:
            push(folder, self.repo, commit_message=f"Step {step}")
        except (PushError, ValueError, OSError) as error:  # save_total_limit may have removed the checkpoint
            logger.warning("training goes on, but step %d is not on the Hub: %s", step, error)
        finally:
            self._ended.set()


@contextlib.contextmanager
def without_waiting(pusher: PushCallback | None) -> Iterator[None]:
    """Lets a script that exits early (`SystemExit`) end during a push. Python would wait for the push's threads."""
    try:
        yield
    except SystemExit as end:
        if pusher is not None and pusher.is_pushing:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
        raise
