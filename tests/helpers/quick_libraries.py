"""What other libraries do in hundreds of tiny trainings and need not do: a third of the time of one.

Nothing here changes what a training computes."""

import copy
import os
import sys
from functools import cache, wraps
from types import SimpleNamespace
from typing import Any

import torch
from accelerate.utils import imports, memory
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from trl_credit.demo import demo_model_path


LOADED_ONCE = {str(demo_model_path())}  # folders of models that no test writes to; the first load of each is real


def make_quick() -> None:
    sys.dont_write_bytecode = False  # pytest rewrites the modules of the tests, which takes seconds
    # for every `unwrap_model`, accelerate reads the files that describe DeepSpeed and PEFT again
    imports._is_package_available = cache(imports._is_package_available)
    # and it collects garbage at the start of every training
    memory.gc = SimpleNamespace(collect=lambda: None)
    # without a GPU, torch keeps every seed with the stack of its caller, for the day when a GPU is first used
    if not torch.cuda.is_available():
        torch.cuda.random._lazy_call = torch.xpu.random._lazy_call = lambda *args, **kwargs: None
    # transformers formats each configuration that it reads, for a log that is off
    PreTrainedConfig.__repr__ = object.__repr__
    # a test's files need not outlive a loss of power
    os.fsync = lambda handle: None
    for loader in (PreTrainedModel, _BaseAutoModelClass):
        loader.from_pretrained = classmethod(_once(loader.from_pretrained.__func__))


def _once(load: Any) -> Any:
    """`from_pretrained` that reads a folder of `LOADED_ONCE` once, and then returns copies."""
    loaded: dict[Any, PreTrainedModel] = {}

    @wraps(load)
    def wrapped(cls: type, path: Any, *args: Any, **kwargs: Any) -> Any:
        plain = all(isinstance(value, str | int | float | torch.dtype | None) for value in kwargs.values())
        if str(path) not in LOADED_ONCE or args or not plain:
            return load(cls, path, *args, **kwargs)
        key = (cls, str(path), *sorted(kwargs.items()))
        if key not in loaded:
            loaded[key] = load(cls, path, **kwargs)
        return copy.deepcopy(loaded[key])

    return wrapped
