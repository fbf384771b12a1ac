"""What a script does before it imports torch and TRL, which takes seconds and says what nobody can act on."""

import logging
import signal
import warnings

from .signals import end_at_once


_VLLM_VERSION = "TRL currently supports vLLM versions"
# transformers 5.23, of names that TRL still uses
_OLD_NAME = r"`\w*gradient_checkpointing\w*` is deprecated and will be removed in v6"
# by logger: what it says of a machine without a GPU, in every run
_NO_NEWS = {
    "DeepSpeed": "Setting accelerator to CPU. If you have GPU or other accelerator",
    "vllm.triton_utils.importing": "Triton is installed, but doesn't include CPU backend",
}


def begin() -> None:
    """The first call of a script: quiets the start, and makes Ctrl-C while libraries are imported one line."""
    quiet_start()
    signal.signal(signal.SIGINT, end_at_once)


def quiet_start() -> None:
    """Leaves out what libraries say of themselves when they are imported, by the exact words: of vLLM's version, five
    times, in runs without vLLM (see [`show_vllm_version`]), of names that TRL uses and transformers will drop, and of a
    machine that has no GPU. All else is shown."""
    warnings.filterwarnings("ignore", message=_VLLM_VERSION, category=UserWarning)
    warnings.filterwarnings("ignore", message=_OLD_NAME, category=FutureWarning)
    for name, words in _NO_NEWS.items():
        logging.getLogger(name).addFilter(lambda record, words=words: not record.getMessage().startswith(words))


def show_vllm_version() -> None:
    """For runs with vLLM: TRL's warning of a version that it does not know is shown again, once."""
    warnings.filterwarnings("once", message=_VLLM_VERSION, category=UserWarning)
