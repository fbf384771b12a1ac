"""From a command line and YAML files to the arguments of a run."""

import argparse
import re
from dataclasses import dataclass, field, fields, is_dataclass
from types import NoneType
from typing import Any, NamedTuple

from trl import ModelConfig

from .algorithms import ALGORITHMS
from .algorithms.table import summaries
from .checks import check_numbers, check_trackers
from .config import CreditConfig
from .data import DataArguments
from .dead_knobs import live_part
from .demo import DEMO_SEGMENTS, DEMO_SETTINGS, demo_model_path
from .environment import set_environment
from .evaluation import PROTOCOLS
from .flags import FlagParser, fitted, type_hints
from .mistakes import OneLineParser, as_written, choose, did_you_mean, one_line, unknown_argument, with_choice, written
from .none_flags import accept_none
from .settings_files import read_settings


DEMO = "demo"  # as a model, a data set or a reward: the embedded one


# what a dataclass raises that will not have its values
_REFUSALS = (ValueError, TypeError, ArithmeticError, ImportError, RuntimeError, OSError)
_ALGO = {"help": ""}  # of all algorithms, which are known when flags are parsed


@dataclass
class ScriptArguments:
    algo: str = field(default="s_trace", metadata=_ALGO)
    reward: list[str] | None = field(
        default=None,
        metadata={
            "help": "accuracy, format, soft_overlong, knights_and_knaves, demo, package.module.function or "
            "file.py:function; several add up. Default: that of the data set."
        },
    )
    evaluation_protocol: str | None = field(
        default=None, metadata={"help": f"Evaluate while training, by one of {', '.join(PROTOCOLS)}."}
    )
    evaluate_on: list[str] | None = field(
        default=None, metadata={"help": "Sets to evaluate on, by name. Default: all sets of the protocol."}
    )
    evaluate_every: int = field(default=100, metadata={"help": "Optimizer steps between two evaluations."})


class Choices(NamedTuple):
    """What a command line says, by whom it is for, and what its files said (name → value)."""

    script: ScriptArguments
    data: DataArguments
    args: CreditConfig
    model: ModelConfig
    files: dict[str, Any]


class _Values(NamedTuple):
    """The value of every field by name, before a configuration is made of them, and what it came from."""

    values: argparse.Namespace
    rest: list[str]
    config: dict[str, Any]
    files: dict[str, str]
    argv: list[str]
    parser: FlagParser
    classes: tuple[type, ...]
    settings: dict[str, Any]
    hints: dict[str, Any]
    model: str


def _read_values(argv: list[str], **program: str) -> _Values:
    said, argv = _peek(argv)
    config, files = read_settings(said.config)
    algo = str(config.get("algo", ScriptArguments.algo) if said.algo is None else said.algo)
    if algo not in ALGORITHMS:
        where = "" if said.algo is not None or "algo" not in files else f" in {files['algo']}"
        raise ValueError(f"unknown algorithm {algo!r}{where}{choose(algo, ALGORITHMS)}")
    model = config.get("model_name_or_path") if said.model_name_or_path is None else said.model_name_or_path
    model = DEMO if model is None else model

    _ALGO["help"] = f"Algorithm: {summaries().replace('%', '%%')}."
    config_class = ALGORITHMS[algo][0]
    _inherit_help(config_class)
    classes = (ScriptArguments, DataArguments, config_class, ModelConfig)
    parser = FlagParser(classes, **program)
    accept_none(parser, classes)
    parser.set_defaults(algo=algo, output_dir=f"runs/{algo}", report_to="none", logging_steps=1)
    if model == DEMO:
        parser.set_defaults(**DEMO_SETTINGS)
    settings = dict(config)
    set_environment(settings.pop("env", None), where=files.get("env", "a file"))
    hints = type_hints(classes)
    for name, value in settings.items():
        if name not in hints:
            raise ValueError(
                f"unknown field {name!r} in {files[name]}{did_you_mean(name, hints) or ': --help lists the fields'}"
            )
        settings[name] = fitted(value, name, hints, file=files[name])
    parser.set_defaults_with_config(**settings)
    if model == DEMO:
        ours = {name: value for name, value in DEMO_SEGMENTS.items() if name not in config}
        parser.set_defaults(**live_part(ours, vars(parser.parse_known_args(argv)[0])))
    values, rest = parser.parse_known_args(argv)
    return _Values(values, rest, config, files, argv, parser, classes, settings, hints, model)


def dead_settings(argv: list[str]) -> list[str]:
    """The knobs that a command line or its files set, and that do nothing with its algorithm beside the others.

    Raises:
        ValueError: as `parse_arguments`, of what is wrong before a configuration is made.
    """
    read = _read_values(argv)
    everything = vars(read.values)
    given = {name: everything[name] for name in (*read.settings, *written(read.argv)) if name in everything}
    return sorted(set(given) - set(live_part(given, everything)))


def parse_arguments(argv: list[str], *, processes: int = 1, **program: str) -> Choices:
    """Parses flags over the YAML files of `--config a.yaml b.yaml …`, later files over earlier ones.

    Without a model, or with the model `demo`, the embedded one and its settings are the defaults. `program` are
    `prog` and `epilog` of its `--help`, where it is not the script that runs. With several `processes`, which are not
    running, this one has the rows of all: `per_device_train_batch_size` is that of them together.

    Raises:
        ValueError: a file that cannot be read, an unknown algorithm or field, or a value that is refused; the message
            names it as it was written.
    """
    read = _read_values(argv, **program)
    values, rest, config, files, argv, parser, classes, settings, hints, model = read
    if rest:
        raise ValueError(unknown_argument(rest[0], parser.flags()))
    for name, value in vars(values).items():
        if value == "" and parser.get_default(name) != "":
            raise ValueError(f"--{name} is empty: write a value behind it, or leave it out")
    given = {name: f"{name} in {files[name]}" for name in settings} | written(argv)
    values.per_device_train_batch_size *= processes
    try:
        script, data, args, model_args = (_construct(of, vars(values), given) for of in classes)
        _check_script(script)
        check_trackers(args.report_to)
        if args.eval_strategy != "no":
            raise ValueError(
                f"eval_strategy={args.eval_strategy.value!r} has no data set here: evaluate by --evaluation_protocol "
                "and --evaluate_every"
            )
        if not isinstance(args.model_init_kwargs, (dict, NoneType)):
            raise ValueError(f"model_init_kwargs must be `name: value` pairs, got {args.model_init_kwargs!r}")
        check_numbers(model_args)
    except _REFUSALS as error:
        raise ValueError(with_choice(as_written(one_line(error), hints, argv, files))) from error
    if model == DEMO:
        model_args.model_name_or_path = demo_model_path()
    return Choices(script, data, args, model_args, config)


def known_flags() -> list[str]:
    """Every flag of `parse_arguments`, whatever the algorithm."""
    names = type_hints((ScriptArguments, DataArguments, CreditConfig, ModelConfig))
    return ["--config", *(f"--{prefix}{name}" for name in names for prefix in ("", "no_"))]


def _construct(of: type, values: dict[str, Any], given: dict[str, str]) -> Any:
    """A dataclass from its part of the values. Where its refusal names none of the settings that were given (by their
    names, as they were written), the one without which it does not come is put before it."""
    own = {f.name: values[f.name] for f in fields(of) if f.init}
    try:
        return of(**own)
    except _REFUSALS as error:
        message = one_line(error)
        given = {name: as_typed for name, as_typed in given.items() if name in own}
        # "credit", "debug" and their like are words of any sentence
        named = (rf"^{name}\b|\b{name}=" if name.isalpha() else rf"\b{name}\b" for name in given)
        if not any(re.search(pattern, message) for pattern in named):
            for name in given:
                try:
                    of(**{other: value for other, value in own.items() if other != name})
                except _REFUSALS as still:
                    if one_line(still) == message:
                        continue
                raise ValueError(f"{given[name]}: {message}") from error
        raise


def in_words_of_the_user(error: BaseException, argv: list[str]) -> str:
    """What an exception says of a run that was started with these flags, in one line, with its settings as they were
    written: `--beta`, or `beta in my.yaml`."""
    message = one_line(error)
    try:
        said, rest = _peek(argv)
        files = read_settings(said.config)[1]
    except ValueError:  # which is the mistake, and has been said
        return message
    names = type_hints((ScriptArguments, DataArguments, CreditConfig, ModelConfig))
    return as_written(message, names, rest, files)


def _check_script(script: ScriptArguments) -> None:
    if script.evaluation_protocol is not None and script.evaluation_protocol not in PROTOCOLS:
        name = script.evaluation_protocol
        raise ValueError(f"evaluation_protocol={name!r} is unknown{choose(name, PROTOCOLS)}")
    if script.evaluate_on and script.evaluation_protocol is None:
        raise ValueError(f"--evaluate_on wants an --evaluation_protocol: one of {', '.join(PROTOCOLS)}")
    for name in script.evaluate_on or ():
        if name not in (known := PROTOCOLS[script.evaluation_protocol]):
            raise ValueError(f"evaluate_on: {script.evaluation_protocol!r} has no set {name!r}{choose(name, known)}")
    if script.evaluate_every < 1:
        raise ValueError(f"evaluate_every must be at least 1 step, got {script.evaluate_every}")


def _inherit_help(config_class: type[CreditConfig]) -> None:
    """A preset gives a field another default, and with it loses what the field's first definition said of it."""
    for own in fields(config_class):
        bases = (base for base in config_class.__mro__ if is_dataclass(base))
        said = (f.metadata for base in bases for f in fields(base) if f.name == own.name)
        own.metadata = next((metadata for metadata in said if "help" in metadata), own.metadata)


def read_config(paths: list[str]) -> dict[str, Any]:
    """The settings of YAML files, later ones over earlier ones: see [`~trl_credit.settings_files.read_settings`]."""
    return read_settings(paths)[0]


def _peek(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """What must be known before the flags of the algorithm's configuration can be parsed, and the words without the
    names of files."""
    first = OneLineParser(add_help=False)
    first.add_argument("--config", nargs="+", action="extend", default=[])
    files, rest = first.parse_known_args(argv)
    second = OneLineParser(add_help=False)
    for flag in ("--algo", "--model_name_or_path", "--model-name-or-path"):
        second.add_argument(flag)
    said = second.parse_known_args(rest)[0]
    return argparse.Namespace(**vars(said), config=files.config), rest
