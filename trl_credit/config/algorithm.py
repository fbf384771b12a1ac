"""Anyone's algorithm: a credit function, or an object whose named parts the trainer calls.

The fields of an object that is a dataclass are its settings. They become fields of the configuration, so flags, YAML
files, sweeps, card and identity have them as they have every other knob.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, partial
from typing import Any, get_args, get_origin, get_type_hints

from ..support.functions import declared, imports_functions, known_function, name_of, resolve_function
from .knobs import as_knob, default_of


NEEDS = ("logps", "columns", "teacher", "hidden", "entropy_gradient")
_PARTS = ("statistics", "metrics", "state_dict", "load_state_dict", "by_row")
_FLAGS = ("carries_loss", "replaces_kl", "replaces_correction", "needs_drift")


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """An algorithm as the trainer calls it.

    Attributes:
        credit: `f(config, tokens) -> Credit`.
        name: As the configuration names it, for messages; `None` for a built-in function, which is not checked.
        source: The function, or the class of the object.
        statistics: `f(config, batch) -> (N, T)`, once per generation batch, with the rows of all processes; its rows
            come back as `tokens.statistics_t`. `None` without.
        metrics: `f(config, tokens, credit) -> {name: (B, T) or (B,)}`, averaged over loss tokens or rows; `None`
            without.
        state_dict: `f() -> dict` of JSON types, which checkpoints keep; `None` without.
        load_state_dict: `f(state)`.
        needs: Some of `NEEDS`, what costs something and is there only if it is asked for: `BatchTokens.logp_t`, by a
            forward pass for π_old ("logps"); `BatchTokens.columns`, gathered from all processes ("columns");
            `teacher_logp_t` of `Tokens` and `BatchTokens`, by a pass of `teacher` ("teacher"); `Tokens.hidden_t`, the
            last layer's states ("hidden"); `Tokens.entropy_t` with a graph ("entropy_gradient").
        carries_loss: A is minus a loss and may have a graph; W is then `None` or 0.
        replaces_kl: That loss contains β, and TRL's KL term is left out.
        replaces_correction: It weighs by `sampling_logp_t` itself, and TRL's correction for the engine is left out.
        needs_drift: It changes nothing while the policy is still the one that sampled. A run with one update per
            generation batch says so once.
        by_row: Whether the credit of a row is known not to depend on the rows beside it (`True`), is meant to
            (`False`), or is compared in the first micro-batches (`None`). Only with `True` `length_sort` sorts rows.
    """

    credit: Callable[..., Any]
    name: str | None = None
    source: Any = None
    statistics: Callable[..., Any] | None = None
    metrics: Callable[..., Mapping[str, Any]] | None = None
    state_dict: Callable[[], dict[str, Any]] | None = None
    load_state_dict: Callable[[dict[str, Any]], None] | None = None
    needs: frozenset[str] = frozenset()
    carries_loss: bool = False
    replaces_kl: bool = False
    replaces_correction: bool = False
    needs_drift: bool = False
    by_row: bool | None = None


def algorithm_of(part: Any, config: Any, *, name: str | None = None) -> Algorithm:
    """A credit function with what its attributes declare, or an object with its parts. A class is called with the
    fields of the configuration that are its settings.

    Args:
        part (`Callable`, `type` or object):
            A function (`batch_statistics` and the attributes of [`Algorithm`] are read from it, also through a partial
            or a decorator), a class with a method `credit`, or an instance of one.
        config ([`CreditConfig`]):
            The configuration of the run.
        name (`str`, *optional*):
            For messages.

    Raises:
        ValueError: `needs` names what is unknown, or one of the parts for a state is missing.
    """
    source = type(part) if is_algorithm(part) and not inspect.isclass(part) else part
    own = {f.name: getattr(config, f.name) for f in settings_of(part) if hasattr(config, f.name)}
    for setting in own if source is not part else ():
        check_once(part, setting, own[setting])
    if inspect.isclass(part):
        tuples = {f.name for f in settings_of(part) if isinstance(default_of(f), tuple)}  # lists in YAML
        part = part(**{name: tuple(x) if name in tuples and isinstance(x, list) else x for name, x in own.items()})
    read = partial(declared, part)
    parts, needs = {what: read(what) for what in _PARTS}, read("needs")
    if parts["statistics"] is None and (of_batch := read("batch_statistics")) is not None:  # of a function
        parts["statistics"], needs = of_batch, ("logps",) if needs is None else needs
    needs = {needs} if isinstance(needs, str) else {*(needs or ())}
    if unknown := needs.difference(NEEDS):
        raise ValueError(f"credit={name!r} needs {min(unknown)!r}: choose among {', '.join(NEEDS)}.")
    if (parts["state_dict"] is None) != (parts["load_state_dict"] is None):
        raise ValueError(f"credit={name!r} has one of state_dict and load_state_dict: a resume needs both.")
    parts |= {what: bool(read(what)) for what in _FLAGS} | {"needs": frozenset(needs)}
    return Algorithm(credit=part.credit if is_algorithm(part) else part, name=name, source=source, **parts)


def is_algorithm(value: Any) -> bool:
    """Whether a value is an object, or a class, with a method `credit`; not a function."""
    return callable(getattr(value, "credit", None)) and not isinstance(value, str)


def settings_of(algorithm: Any) -> tuple[Field, ...]:
    """The fields that are the settings of an object or class: those of its constructor without a leading underscore.

    Raises:
        ValueError: one has no default.
    """
    settings = tuple(f for f in fields_of(algorithm) if f.init and not f.name.startswith("_"))
    if without := [setting.name for setting in settings if default_of(setting) is MISSING]:
        label = getattr(algorithm, "__name__", type(algorithm).__name__)
        raise ValueError(f"credit={label}: its setting {without[0]!r} has no default: give it one.")
    return settings


def fields_of(algorithm: Any) -> tuple[Field, ...]:
    """All fields of an object or class, none if it is no dataclass."""
    return fields(algorithm) if is_dataclass(algorithm) else ()


def class_of(credit: Any) -> type | None:
    """The class of an algorithm that a configuration's `credit` names or holds; `None` for a function, and for a name
    that was not looked up yet."""
    if isinstance(credit, str):
        credit = known_function(credit)
    if not is_algorithm(credit):
        return None
    return credit if inspect.isclass(credit) else type(credit)


def take_settings(config: Any) -> None:
    """Takes over the settings of an object in `credit`, if that is one, and names its class.

    An object with more attributes than the fields of its class, such as a module, is kept as it is, with its settings.
    """
    if not is_algorithm(algorithm := config.credit) or inspect.isclass(algorithm):
        return
    is_kept = not getattr(algorithm, "__dict__", {}).keys() <= {f.name for f in fields_of(algorithm)}
    for setting in settings_of(algorithm):
        setattr(config, setting.name, getattr(algorithm, setting.name))
    config.credit = name_of(algorithm if is_kept else type(algorithm))


def with_settings_of(credit: Any, config_class: type, keywords: Mapping[str, Any] | None = None) -> type:
    """The configuration class with the settings of the algorithm that `credit` names or holds; the class as it is for
    a function, the name of an object, `None`, and a name that cannot be looked up, which the checks of a configuration
    report.

    Raises:
        ValueError: a setting cannot be a field, or one of an object has another value among the `keywords` too.
    """
    if isinstance(credit, str) and imports_functions():
        with suppress(ValueError):
            credit = resolve_function(credit, what="credit", known=())
            credit = credit if inspect.isclass(credit) else None
    if (algorithm := class_of(credit)) is None:
        return config_class
    for name in () if credit is algorithm else [f.name for f in settings_of(credit)]:
        check_once(credit, name, (keywords or {}).get(name, getattr(credit, name)))
    return with_settings(config_class, algorithm)


def check_once(algorithm: Any, name: str, beside: Any) -> None:
    """Raises `ValueError` if an object has another value of a setting than the configuration."""
    if beside != (value := getattr(algorithm, name)):
        what = f"credit={type(algorithm).__name__}(…) has {name}={value!r}, and the configuration {name}={beside!r}"
        raise ValueError(f"{what}: set it once.")


@cache
def with_settings(config_class: type, algorithm: type) -> type:
    """The configuration class with the settings of an algorithm as fields, under its own name.

    Raises:
        ValueError: a setting has no default, or the name of a field that the class has already.
    """
    settings = settings_of(algorithm)
    if not settings or any(vars(base).get("settings_of") is algorithm for base in config_class.__mro__):
        return config_class
    hints, label = get_type_hints(algorithm), algorithm.__name__
    known = {*dir(config_class), *(f.name for f in fields(config_class))}
    for setting in settings:
        if setting.name in known:
            raise ValueError(f"credit={label}: {config_class.__name__} has {setting.name!r} too: rename the setting.")
    namespace = {name: getattr(config_class, name) for name in ("__module__", "__qualname__", "__doc__")}
    namespace |= {setting.name: as_knob(setting, hints[setting.name], of=algorithm) for setting in settings}
    annotations = {setting.name: _as_list(hints[setting.name]) for setting in settings}  # flags know lists alone
    namespace |= {"__annotations__": annotations, "settings_of": algorithm, "plain_class": config_class}
    return dataclass(type(config_class.__name__, (config_class,), namespace))


def _as_list(hint: Any) -> Any:
    return list[get_args(hint)[0]] if get_origin(hint) is tuple else list[str] if hint in (list, tuple) else hint


def settings_from(algorithm: type) -> Callable[[type], type]:
    """Decorates a configuration class of a preset: its fields are also those of the preset's algorithm."""

    def decorated(config_class: type) -> type:
        extended = with_settings(config_class, algorithm)
        extended.plain_class = None  # the module has this one
        return extended

    return decorated
