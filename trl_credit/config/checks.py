"""All checks of a configuration in their order: what is wrong is raised together, what TRL ignores is one warning."""

from collections.abc import Callable
from typing import Any

from accelerate.logging import get_logger

from ..support.errors import collected, raise_together
from ..support.functions import imports_functions, resolve_function
from .knobs import inactive_options, knobs_of
from .rules import combination_errors, value_errors
from .segments import RELEASED_CODE
from .trl_settings import BATCH_FIELDS, TRL_ACTS, check_deepspeed, check_groups


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
    with collected(errors, ValueError):
        check_deepspeed(config.deepspeed)
    if not errors:
        with collected(errors, ValueError):
            build()
        config.reward_range, config.tree_branching = list(config.reward_range), list(config.tree_branching)
    errors += combination_errors(config, {*wrong, *BATCH_FIELDS} if errors else ())
    acts = {name: knob.acts for name, knob in knobs.items()}
    errors += map(ValueError, inactive_options(config, acts, released_code=RELEASED_CODE, wrong=wrong).values())
    raise_together(errors)
    if ignored := inactive_options(config, TRL_ACTS):
        logger.warning("settings that do nothing, as in TRL:\n%s", "\n".join(ignored.values()))
