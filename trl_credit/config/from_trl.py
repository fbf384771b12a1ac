"""What a preset changes of TRL's defaults, and what was set in a configuration of TRL."""

import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from typing import Any

from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.utils.logging import get_verbosity
from trl import GRPOConfig

from .knobs import defaults, is_active
from .trl_settings import TRL_ACTS


_BEST_BY_LOSS = ("reduce_lr_on_plateau", "greedy")  # schedulers that watch a metric
# what TRL and transformers put into a field that was left out; a configuration keeps no record of which were given
_FILLED_IN: dict[str, Callable[[GRPOConfig], Any]] = {
    "accelerator_config": lambda args: AcceleratorConfig(),
    # transformers 5.24 renamed these two and keeps the old names, which TRL sets, equal to them
    "activation_checkpointing": lambda args: args.gradient_checkpointing,
    "activation_checkpointing_kwargs": lambda args: args.gradient_checkpointing_kwargs,
    "bf16": lambda args: not args.fp16,
    "dataloader_pin_memory": lambda args: not args.use_cpu,
    "debug": lambda args: [],
    "disable_tqdm": lambda args: get_verbosity() > logging.WARNING,
    "do_eval": lambda args: args.eval_strategy != "no",
    "eval_steps": lambda args: args.logging_steps if args.eval_strategy == "steps" else None,
    "generation_batch_size": lambda args: args.generation_batch_size,  # `steps_per_generation` says the same
    "greater_is_better": lambda args: args.metric_for_best_model and not args.metric_for_best_model.endswith("loss"),
    "metric_for_best_model": lambda args: (
        "loss" if args.load_best_model_at_end or args.lr_scheduler_type in _BEST_BY_LOSS else None
    ),
    "pad_to_multiple_of": lambda args: None,
    "report_to": lambda args: [],
    "steps_per_generation": lambda args: args.gradient_accumulation_steps,
    "torch_compile_backend": lambda args: "inductor" if args.torch_compile else None,
}


def changed_defaults(config_class: type) -> dict[str, tuple[Any, Any]]:
    """Field of TRL → (TRL's default, the default of a subclass of [`CreditConfig`]), where the two differ."""
    theirs, ours = defaults(GRPOConfig), defaults(config_class)
    if ours["importance"] == "sequence":
        ours["importance_sampling_level"] = "sequence"  # set by `__post_init__`
    if (updates := config_class.updates_per_batch) > 1:  # both are filled in, for gradient_accumulation_steps=1
        theirs["steps_per_generation"], ours["steps_per_generation"] = 1, updates
    return {name: (default, ours[name]) for name, default in theirs.items() if ours[name] != default}


def settings_of_preset(args: Any) -> dict[str, tuple[Any, Any]]:
    """The part of `changed_defaults` that has an effect in a [`CreditConfig`] and still has the value of its class."""
    changed, window = changed_defaults(type(args)), args.gradient_accumulation_steps
    if "steps_per_generation" in changed:
        changed["steps_per_generation"] = tuple(window * steps for steps in changed["steps_per_generation"])
    return {
        name: (theirs, ours)
        for name, (theirs, ours) in changed.items()
        if getattr(args, name) == ours and is_active(args, TRL_ACTS.get(name, ()))
    }


def settings_of_trl(args: GRPOConfig) -> dict[str, Any]:
    """The fields that were set in a configuration of TRL, with copies of their values.

    A field counts as set if its value is neither TRL's default nor what TRL computes from other fields. A field that
    was set to such a value cannot be told from one that was left out. If a subclass of TRL's `GRPOConfig` has another
    default for a field of TRL, that field counts as set.
    """
    default = defaults(type(args)) | defaults(GRPOConfig)
    found = {}
    for f in fields(args):
        if not f.init:
            continue
        value = getattr(args, f.name)
        is_default = f.name in default and value == default[f.name]
        if not is_default and not (f.name in _FILLED_IN and value == _FILLED_IN[f.name](args)):
            found[f.name] = deepcopy(value)
    return found
