"""What a script does before it imports torch and TRL, whose import takes seconds and prints noise."""

import os
import signal
import sys
import warnings

from .signals import end_at_once


# transformers 5.23, for names that TRL still uses
_OLD_NAME = r"`\w*gradient_checkpointing\w*` is deprecated and will be removed in v6"


def begin() -> None:
    """The first call of a script: quiets the imports, and makes Ctrl-C during them end with one line."""
    quiet_start()
    signal.signal(signal.SIGINT, end_at_once)


def quiet_start() -> None:
    """Hides the warnings of transformers about deprecated names that TRL uses, on which no user can act."""
    warnings.filterwarnings("ignore", message=_OLD_NAME, category=FutureWarning)


def prepare_process(*, imports: bool = True) -> None:
    """For the commands that load a model: quiets libraries, and makes modules of the current folder importable if the
    user names a function (`imports`). Else a stranger's folder there could stand for a package that is missing."""
    from transformers.utils.logging import disable_progress_bar

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    disable_progress_bar()  # the bar of loading; training and evaluation have their own
    if imports:
        sys.path.append(os.getcwd())  # for --reward package.module.function
