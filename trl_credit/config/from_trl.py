"""What a preset changes of TRL's defaults, and what was set in a configuration of TRL."""

import logging
import warnings
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields
from typing import Any

from trl import GRPOConfig

from .knobs import defaults, is_active
from .trl_settings import TRL_ACTS


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
    kept = [name for name, (_, ours) in changed.items() if getattr(args, name) == ours]
    return {name: changed[name] for name in kept if is_active(args, TRL_ACTS.get(name, ()))}


def settings_of_trl(args: GRPOConfig) -> dict[str, Any]:
    """The fields that were set in a configuration of TRL, with copies of their values.

    A field counts as set if its value is neither TRL's default nor what TRL computes from the other fields, which is
    found by leaving it out. A field that was set to such a value cannot be told from one that was left out. If a
    subclass of TRL's `GRPOConfig` has another default for a field of TRL, that field counts as set.
    """
    default = defaults(type(args)) | defaults(GRPOConfig)
    values = {f.name: getattr(args, f.name) for f in fields(args) if f.init}
    settings = {name: value for name, value in values.items() if name not in default or value != default[name]}
    settings.pop("generation_batch_size", None)  # `steps_per_generation` says the same, and TRL takes one of the two
    of_trl = {f.name for f in fields(GRPOConfig)}
    logging.disable(logging.WARNING)  # which were shown when `args` was made
    try:
        # first those with the default `None`: TRL fills in these more often than others
        for name in sorted(settings.keys() & of_trl, key=lambda name: (default.get(name) is not None, name)):
            others = {other: deepcopy(value) for other, value in settings.items() if other in of_trl - {name}}
            with suppress(ValueError), warnings.catch_warnings(action="ignore"):  # it cannot be left out
                if getattr(GRPOConfig(**others), name) == settings[name]:
                    del settings[name]
    finally:
        logging.disable(logging.NOTSET)
    return deepcopy(settings)
