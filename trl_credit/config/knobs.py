"""How a knob is declared: its default, help, values, when it acts, and where it appears."""

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from enum import Enum
from functools import cache
from numbers import Real
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from ..support.functions import is_custom_function


class Values(NamedTuple):
    """A set of values that a field may have.

    Attributes:
        words: Describes the set in a message, such as "in [0, 1]".
        holds: Returns whether a value is in the set.
        names: All values of the set, if it is a list of choices.
        custom: Whether a custom function is accepted besides the choices.
    """

    words: str
    holds: Callable[[Any], bool]
    names: tuple[Any, ...] = ()
    custom: bool = False


RUN = "Run and checkpoints"  # the heading of knobs that change a run and not what it learns
# field → values: a condition on a configuration, which holds if all fields have one of their values
Condition = Mapping[str, Values]


def one_of(*names: Any, custom: bool = False) -> Values:
    """A list of choices; with `custom`, a custom function is accepted too."""
    words = f"one of {', '.join(map(repr, names))}" + ", package.module.function or file.py:function" * custom
    return Values(words, lambda x: x in names or (custom and is_custom_function(x)), names, custom)


def list_of(of: Values, words: str = "", *, least: int = 0) -> Values:
    """A list of at least `least` values of a set."""
    words = words or f"a list, each {of.words}"
    return Values(words, lambda x: isinstance(x, (list, tuple)) and len(x) >= least and all(map(of.holds, x)), of.names)


def anything_but(value: Any) -> Values:
    """Every value except one, usually the one that switches a feature off."""
    return Values(f"anything but {value!r}", lambda x: x != value)


def number(words: str, holds: Callable[[float], bool]) -> Values:
    """Numbers for which `holds` is true. A bool does not count as a number."""
    return Values(words, lambda x: isinstance(x, Real) and not isinstance(x, bool) and holds(x))


def whole(least: int) -> Values:
    """Whole numbers from `least` on."""
    return number(f"a whole number of at least {least}", lambda x: isinstance(x, int) and x >= least)


FLAG = Values("True or False", lambda x: isinstance(x, bool))
SHARE = number("in [0, 1]", lambda x: 0.0 <= x <= 1.0)
POSITIVE = number("positive and finite", lambda x: 0.0 < x < math.inf)
NOT_NEGATIVE = number("at least 0 and finite", lambda x: 0.0 <= x < math.inf)
FINITE = number("finite", math.isfinite)
NUMBERS = list_of(FINITE)
COUNT = whole(1)


def when(**settings: Any) -> Condition:
    """A condition from fields and their values: [`Values`], one value, or a tuple of values."""
    values = {name: x if isinstance(x, (Values, tuple)) else (x,) for name, x in settings.items()}
    return {name: x if isinstance(x, Values) else one_of(*x) for name, x in values.items()}


def unmet(config: Any, condition: Condition) -> Condition:
    """The part of a condition that does not hold for a configuration. A field that it lacks, as TRL's versions differ,
    is no part of it."""
    present = [name for name in condition if hasattr(config, name)]
    return {name: condition[name] for name in present if not condition[name].holds(getattr(config, name))}


def in_words(condition: Condition) -> str:
    """How to meet a condition: "rollouts='chain' and log_credit to a whole number of at least 1"."""
    return " and ".join(
        f"{name}={' or '.join(map(repr, values.names))}" if values.names else f"{name} to {values.words}"
        for name, values in condition.items()
    )


def values_of(config: Any, names: Iterable[str]) -> str:
    """The current values of some fields: "rollouts='none' and token_mask='none'"."""
    values = {name: getattr(config, name) for name in names}
    return " and ".join(f"{name}={(x.value if isinstance(x, Enum) else x)!r}" for name, x in values.items())


class Knob(NamedTuple):
    """The declaration of one of our own fields: see [`knob`]."""

    values: Values | None
    acts: tuple[Condition, ...]
    heading: str
    changes_loss: bool


# beside the fields and not in their metadata, since TRL's parser hands all of a field's metadata to argparse
_DECLARED: dict[Field, Knob] = {}
_ENTRY = re.compile(r"^    (\w+) \(.*\):(.*(?:\n {8}.*|\n(?=\n? {8}))*)", re.MULTILINE)


def knob(
    default: Any,
    values: Values | None = None,
    *,
    acts: Condition | tuple[Condition, ...] = (),
    heading: str = "Credit",
    changes_loss: bool = True,
) -> Any:
    """A dataclass field with everything that the package knows of it, except its text. That stands in the docstring of
    its class, from which `--help` and `docs/knobs.md` are made, see [`entries_of`].

    Args:
        default:
            Its default.
        values ([`Values`], *optional*):
            The values it may have; `None` too if its annotation says so. A bool must be `True` or `False`.
        acts (condition or tuple of conditions, *optional*):
            The knob has an effect if one of these conditions holds. Otherwise setting it is refused. Empty: always.
        heading (`str`, *optional*, defaults to `"Credit"`):
            Its heading in `--help` and in `docs/knobs.md`.
        changes_loss (`bool`, *optional*, defaults to `True`):
            Whether it changes what is learned. If so, it is part of a run's identity, and the model card lists it where
            it has an effect.
    """
    values = FLAG if isinstance(default, bool) else values
    declared = field(default_factory=default.copy) if isinstance(default, list) else field(default=default)
    _DECLARED[declared] = Knob(values, acts if isinstance(acts, tuple) else (acts,), heading, changes_loss)
    return declared


def entries_of(documented_class: type) -> dict[str, str]:
    """Name → text of the entries under "Parameters:" or "Args:" in a docstring, each on one line and without links."""
    text = re.sub(r"^Args:$", "Parameters:", inspect.getdoc(documented_class) or "", flags=re.MULTILINE)
    entries = _ENTRY.findall(text.partition("Parameters:\n")[2])
    return {name: re.sub(r"\[`~?(?:\w+\.)*(.+?)`\]", r"`\1`", " ".join(words.split())) for name, words in entries}


def as_knob(setting: Field, hint: Any, *, of: type) -> Any:
    """A field of another dataclass as a knob: as it was declared there, or with the values of its type, `hint`.

    `of` is that class, whose docstring may have an entry for the field.
    """
    text = setting.metadata.get("help") or entries_of(of).get(setting.name)
    metadata = {"help": text} if text else {}
    declared = field(default=setting.default, default_factory=setting.default_factory, metadata=metadata)
    _DECLARED[declared] = _DECLARED.get(setting) or Knob(_values_of(hint, default_of(setting)), (), "Credit", True)
    return declared


def _values_of(hint: Any, default: Any) -> Values | None:
    """The values of a type: choices, truth values, or numbers, which are finite if the default is."""
    kinds = ({*get_args(hint)} if get_origin(hint) in (Union, UnionType) else {hint}) - {NoneType}
    if get_origin(hint) is Literal:
        return one_of(*get_args(hint))
    if kinds in ({bool}, {int}):
        return FLAG if kinds == {bool} else number("a whole number", lambda x: isinstance(x, int))
    return FINITE if kinds <= {int, float} and (default is None or FINITE.holds(default)) else None


@cache
def knobs_of(config_class: type) -> dict[str, Knob]:
    """Field → its declaration, from the class itself or from the nearest base class that declares it.

    A preset that gives a field another default needs no second declaration. The help of each field becomes its entry in
    the docstring of the class that declares it.
    """
    knobs: dict[str, Knob] = {}
    for base in filter(is_dataclass, config_class.__mro__):
        texts, label = entries_of(base), getattr(base, "settings_of", base).__name__
        for name in inspect.get_annotations(base):
            known = base.__dataclass_fields__[name]
            if known in _DECLARED:
                knobs.setdefault(name, _DECLARED[known])
                known.metadata = known.metadata or {"help": texts.get(name, f"A setting of {label}.")}
    return knobs


def defaults(config_class: type) -> dict[str, Any]:
    """The default of every field of a dataclass that has one."""
    return {f.name: default for f in fields(config_class) if (default := default_of(f)) is not MISSING}


def default_of(known: Field) -> Any:
    """The default of a field of a dataclass, or `MISSING`."""
    return known.default if known.default_factory is MISSING else known.default_factory()


def is_active(config: Any, acts: tuple[Condition, ...]) -> bool:
    """Whether a field has an effect, given the other settings of a configuration and the conditions for it."""
    return not acts or any(not unmet(config, condition) for condition in acts)


def inactive_options(
    config: Any, acts: Mapping[str, tuple[Condition, ...]], *, typed: Collection[str] = (), wrong: Collection[str] = ()
) -> dict[str, str]:
    """Fields that were set but have no effect, given the other fields.

    A field counts as set if it differs from its default in the configuration's class and in all base classes.

    Args:
        config (dataclass):
            It may lack fields of `acts`.
        acts (mapping of `str` to tuple of conditions):
            Field → the conditions of which one must hold for it to have an effect; empty: it always has one.
        typed (collection of `str`, *optional*):
            Fields that count as set whatever their values are, as on a command line.
        wrong (collection of `str`, *optional*):
            Fields with wrong values. They are left out, and so are fields that act beside some values of them.

    Returns:
        Field → a message that names it, the settings that leave it without effect, and the fix.
    """
    inactive = {}
    for name, conditions in acts.items():
        read = {name, *(other for condition in conditions for other in condition)}
        if not hasattr(config, name) or read.intersection(wrong) or is_active(config, conditions):
            continue
        if name in typed or not is_default(config, name):
            unmet_conditions = [unmet(config, condition) for condition in conditions]
            beside = values_of(config, (other for condition in unmet_conditions for other in condition))
            fix = ", or ".join(dict.fromkeys(map(in_words, unmet_conditions)))
            what = f"{name}={getattr(config, name)!r} does nothing, since {beside}"
            inactive[name] = f"{what}: set {fix}, or leave {name} out."
    return inactive


def is_default(config: Any, name: str) -> bool:
    """Whether a field has its default in the configuration's class or in one of its base classes."""
    classes = [base for base in type(config).__mro__ if is_dataclass(base)]
    same_name = [base.__dataclass_fields__[name] for base in classes if name in base.__dataclass_fields__]
    return any(default_of(known) == getattr(config, name) for known in same_name)
