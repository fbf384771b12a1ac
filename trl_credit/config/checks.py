"""All checks of a configuration in their order: what is wrong is raised together, what TRL ignores is one warning."""

from collections.abc import Callable
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from accelerate.logging import get_logger

from ..support.errors import collected, did_you_mean, raise_together
from ..support.functions import imports_functions, resolve_function
from .knobs import inactive_options, knobs_of
from .rules import check_groups, combination_errors
from .trl_settings import BATCH_FIELDS, NONE_TOO, TRL_ACTS, TRL_VALUES


logger = get_logger(__name__)


def check_settings(config: Any, *, build: Callable[[], None]) -> None:
    """Checks a [`CreditConfig`], and warns of fields of TRL without effect.

    Args:
        config ([`CreditConfig`]):
            What its constructor was given.
        build (`Callable`):
            TRL's own checks, which fill in fields. Called if nothing is wrong so far.

    Raises:
        ValueError: a value is out of range, settings do not go together, or a knob has no effect. Several errors have a
            line each, without those that may follow from another one.
    """
    wrong, knobs = value_errors(config), knobs_of(type(config))
    errors = [*wrong.values()]
    if imports_functions():
        for name, function in config.custom_functions().items():
            with collected(errors, ValueError):
                resolve_function(function, what=name, known=knobs[name].values.names)
    if not wrong.keys() & {*BATCH_FIELDS}:
        config.fill_in_updates()
        with collected(errors, ValueError):
            check_groups(config)
    if not errors:
        with collected(errors, ValueError):
            build()
        config.reward_range, config.tree_branching = list(config.reward_range), list(config.tree_branching)
    errors += combination_errors(config, {*wrong, *BATCH_FIELDS} if errors else ())
    acts = {name: knob.acts for name, knob in knobs.items()}
    errors += map(ValueError, inactive_options(config, acts, wrong=wrong).values())
    raise_together(errors)
    if ignored := inactive_options(config, TRL_ACTS):
        logger.warning("settings that do nothing, as in TRL:\n%s", "\n".join(ignored.values()))


def value_errors(config: Any) -> dict[str, Exception]:
    """Checks every field by itself: our own knobs by their declarations, fields of TRL and transformers by a table.
    What TRL does not read, it does not check either.

    Returns:
        Field → a `ValueError` whose message names the field and what it may be.
    """
    own = {name: knob.values for name, knob in knobs_of(type(config)).items() if knob.values is not None}
    optional, idle = _optional_fields(type(config)) | {*NONE_TOO}, set(inactive_options(config, TRL_ACTS))
    errors: dict[str, Exception] = {}
    for name, allowed in (TRL_VALUES | own).items():
        value = getattr(config, name, None)
        if not hasattr(config, name) or name in idle or (value is None and name in optional) or allowed.holds(value):
            continue  # TRL versions differ in some fields
        wrong = next((x for x in value if x not in allowed.names), "") if isinstance(value, (list, tuple)) else value
        words = allowed.words + " or None" * (name in optional)
        errors[name] = ValueError(f"{name} must be {words}, got {value!r}{did_you_mean(wrong, allowed.names)}.")
    return errors


@cache
def _optional_fields(config_class: type) -> set[str]:
    return {name for name, hint in get_type_hints(config_class).items() if NoneType in get_args(hint)}
