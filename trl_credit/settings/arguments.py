"""From a command line and YAML files to the arguments of a run."""

import argparse
import logging
import re
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any, NamedTuple

from accelerate.logging import get_logger
from trl import ModelConfig

from ..config import CreditConfig, active_part
from ..config.algorithm import class_of, settings_of, with_settings_of
from ..config.checks import value_errors
from ..config.knobs import inactive_options, is_default, knobs_of
from ..config.trl_settings import MODEL_ACTS, OF_EVALUATION, check_trackers
from ..data import DataArguments
from ..demo import DEMO_SEGMENTS, TASKS, task_of_model
from ..presets import PRESETS, summaries
from ..support.errors import choose, collected, lines_of, together
from ..support.functions import imports_functions, is_custom_function, known_function, names_alone
from ..support.signals import without_flag
from .environment import set_environment
from .flags import FlagParser
from .parser import read_files, typed_fields, unknown_algorithm, unknown_arguments, unknown_field


logger = get_logger(__name__)

DEMO = "demo"  # as a model, a data set or a reward: the embedded one
Protocols = Mapping[str, Collection[str]]  # evaluation protocol → the names of its sets


_FIX = re.compile(r"\b(allow_changed|overwrite_output_dir|resume_from_checkpoint)=(True|\[.*?\])")  # as scripts say it
# what a dataclass raises if it refuses its values
_REFUSALS = (ValueError, TypeError, ArithmeticError, ImportError, RuntimeError, OSError)


@dataclass
class ScriptArguments:
    algo: str = field(default="s_trace", metadata={"help": "Algorithm."})
    reward: list[str] | None = field(
        default=None,
        metadata={
            "help": "accuracy, format, soft_overlong, knights_and_knaves, demo, demo_agent, package.module.function "
            "or file.py:function; several add up. Default: that of the data set."
        },
    )
    evaluation_protocol: str | None = field(default=None, metadata={"help": "Evaluate during training."})
    evaluate_on: list[str] | None = field(
        default=None, metadata={"help": "Sets to evaluate on, by name. Default: all sets of the protocol."}
    )
    evaluate_every: int = field(default=100, metadata={"help": "Optimizer steps between two evaluations."})


class Choices(NamedTuple):
    """The arguments of a run, one object per dataclass, and the settings of its YAML files (name → value)."""

    script: ScriptArguments
    data: DataArguments
    args: CreditConfig
    model: ModelConfig
    files: dict[str, Any]


class _Read(NamedTuple):
    """The value of every field, before a configuration is built from them, which fields were set, and what is wrong:
    names of fields and flags."""

    values: argparse.Namespace
    given: list[str]
    config: dict[str, Any]
    parser: FlagParser
    errors: list[Exception]


def _read(
    argv: list[str],
    protocols: Protocols,
    program: dict[str, str],
    flags: Collection[str] = (),
    lacks: Collection[str] = (),
) -> _Read:
    said, config, files, words = read_files(argv)
    config = {name: value for name, value in config.items() if name not in lacks}
    words += [f"--{name}={value}" for name, value in said.items()]
    chosen = {"algo": ScriptArguments.algo} | config | said
    algo = str(chosen["algo"])
    if algo not in PRESETS:
        raise unknown_algorithm(algo, PRESETS, file=None if "algo" in said else files.get("algo"))
    helps = {"algo": f"Algorithm: {summaries().replace('%', '%%')}."}
    if protocols:
        helps["evaluation_protocol"] = f"Evaluate during training, by one of {', '.join(protocols)}."
    # the help of a stranger's recipe runs none of its code
    is_help = "credit" not in said and {"-h", "--help"} & {word.partition("=")[0] for word in words}
    with names_alone() if is_help else nullcontext():
        config_class, credit = _config_class(chosen), chosen.get("credit")
    parser = FlagParser((ScriptArguments, DataArguments, config_class, ModelConfig), helps=helps, **program)
    dataset = chosen.get("dataset_name")
    task = TASKS.get(chosen.get("model_name_or_path") or (dataset if dataset in TASKS else DEMO))
    parser.set_defaults(output_dir=f"runs/{algo}", report_to="none", logging_steps=1)
    parser.set_defaults(algo=algo, model_name_or_path=DEMO)
    if task is not None:
        own = {} if task.name == DEMO else {"dataset_name": task.name}
        parser.set_defaults(model_name_or_path=task.name, **task.settings, **own)
    named = {name: value for name, value in config.items() if name != "env"}
    errors: list[Exception] = [unknown_field(n, files[n], parser.hints) for n in named if n not in parser.hints]
    settings, unreadable = {}, []
    with collected(unreadable, ValueError):
        set_environment(config.get("env"), where=files.get("env", "a file"))
    for name, value in named.items():
        with collected(unreadable, ValueError):
            if name in parser.hints:
                settings[name] = parser.read(name, value, file=files[name])
    parser.set_defaults(**settings)
    values, rest, more = parser.parse_readable(words)
    errors += unknown_arguments(rest, [*flags, *parser.flags()], lists="--help all")
    if isinstance(credit, str) and is_custom_function(credit) and known_function(credit) is None:
        if errors and not imports_functions():
            unknown = ", ".join([*sorted(named.keys() - parser.hints), *typed_fields(rest)])
            logging.getLogger(__name__).warning("credit=%s is not imported here: %s left out", credit, unknown)
        errors = []  # they may be about its settings; where it cannot be found, the configuration says so
    if unreadable or more:  # the values in their places may cause other errors
        raise together([*errors, *unreadable, *more])
    if task is not None:
        segments = {name: value for name, value in DEMO_SEGMENTS.items() if name not in settings}
        parser.set_defaults(**active_part(segments, vars(values)))
        values = parser.parse_known_args(words)[0]
    return _Read(values, [*settings, *typed_fields(words)], config, parser, errors)


def _config_class(chosen: Mapping[str, Any]) -> type[CreditConfig]:
    """The configuration class of an algorithm, with the settings of the one that `credit` names."""
    plain = PRESETS[str(chosen["algo"])].config
    credit = chosen.get("credit", plain.credit)
    other = {f.name for of in (ScriptArguments, DataArguments, ModelConfig) for f in fields(of)} | {"config", "env"}
    config_class = with_settings_of(credit, plain)
    if clash := other.intersection(f.name for f in settings_of(class_of(credit))):
        raise ValueError(f"credit={credit!r}: its setting {min(clash)!r} is a flag of every run: rename it")
    return config_class


def config_fields(argv: list[str]) -> set[str]:
    """The fields of the configuration of a command line. Raises `ValueError` for files and settings as `_read`."""
    said, config, _, _ = read_files(argv)
    return {f.name for f in fields(_config_class({"algo": ScriptArguments.algo} | config | said))}


def inactive_settings(argv: list[str], *, lacks: Collection[str] = ()) -> list[str]:
    """The knobs that a command line or its files set and that have no effect with its algorithm and other settings, and
    those of them that it `lacks`.

    Raises:
        ValueError: as `parse_arguments`, for errors that are found before a configuration is built.
    """
    typed = {name.removeprefix("no_") for name in typed_fields(argv)} | {*typed_fields(argv), *read_files(argv)[1]}
    for name in typed.intersection(lacks):
        argv = without_flag(without_flag(argv, name), f"no_{name}")
    read = _read(argv, {}, {}, lacks=lacks)
    values, knobs = vars(read.values), knobs_of(read.parser.classes[2])
    given = {name: values[name] for name in read.given if name in values}
    return sorted({*given, *typed.intersection(lacks)} - active_part(given, values, knobs).keys())


def parse_arguments(
    argv: list[str],
    *,
    processes: int = 1,
    protocols: Protocols | None = None,
    flags: Collection[str] = (),
    lacks: Collection[str] = (),
    **program: str,
) -> Choices:
    """Parses flags over the YAML files of `--config a.yaml b.yaml …`, later files over earlier ones.

    Without a model, or with the name of an embedded task as model or data set, its model and settings are the defaults.

    Args:
        argv (`list[str]`):
            The command line without the program.
        processes (`int`, *optional*, defaults to `1`):
            Number of processes of the planned run. `per_device_train_batch_size` is multiplied by it, so that this
            single process has the rows of all of them.
        protocols (mapping of `str` to collection of `str`, *optional*):
            Evaluation protocols, and the names of their sets. `None`: evaluation during training is refused.
        flags (collection of `str`, *optional*):
            Flags that the caller has taken out of `argv`, for the message about an unknown one.
        lacks (collection of `str`, *optional*):
            Settings of the files that are left out.
        program (`str`):
            `prog` and `epilog` of `--help`.

    Raises:
        ValueError: a file that cannot be read, an unknown algorithm or field, or a value that is refused; the message
            has a line for each, which names the field, and the file that set it.
    """
    read = _read(argv, protocols or {}, program, flags, lacks)
    values, parser, errors = read.values, read.parser, read.errors
    for name, value in vars(values).items():
        if value == "" and parser.get_default(name) != "":
            errors.append(ValueError(f"--{name} is empty: give it a value, or leave it out"))
    values.per_device_train_batch_size *= processes
    parts: dict[type, Any] = {}
    for of in parser.classes:
        with collected(errors, *_REFUSALS):
            parts[of] = of(**{f.name: getattr(values, f.name) for f in fields(of) if f.init})
    script, data, args, model = map(parts.get, parser.classes)
    typed = set(typed_fields(argv)) - read.config.keys()  # one that a file sets may be set back
    errors += _errors_of_command(script, args, model, protocols or {}, typed=typed)
    if errors:
        raise with_source(together(errors), argv) from errors[0]
    if idle := [name for name in OF_EVALUATION if hasattr(args, name) and not is_default(args, name)]:
        here = "here, where TRL does not evaluate: --evaluation_protocol and --evaluate_every do"
        logger.warning("%s do nothing %s", " and ".join(idle), here)
    if task := task_of_model(model.model_name_or_path or DEMO):
        model.model_name_or_path = task.model_path
    if isinstance(model.lora_target_modules, str) and re.fullmatch(r"[\w.]+", model.lora_target_modules):
        model.lora_target_modules = [model.lora_target_modules]  # a name alone, which PEFT would read as a pattern
    return Choices(script, data, args, model, read.config)


def with_source(error: BaseException, argv: list[str]) -> ValueError:
    """An exception with one line for each error, with fixes as flags and the `--config` file that sets the field that
    the line names."""
    lines = lines_of(error)
    try:
        files = read_files(argv)[2]
    except ValueError:  # the file itself is wrong, and the message says so
        files = {}
    for name in sorted(files.keys() - set(typed_fields(argv))):
        for i, line in enumerate(lines):
            if re.search(rf"^`?{name}\b|\b{name}=", line) and not any(file in line for file in files.values()):
                lines[i] = f"{line.rstrip('.')} ({name} is set in {files[name]})"
    flags = (_FIX.sub(lambda fix: " ".join([f"--{fix[1]}", *re.findall(r"\w+", fix[2].lower())]), x) for x in lines)
    return together([ValueError(line) for line in flags])


def _errors_of_command(
    script: ScriptArguments | None,
    args: CreditConfig | None,
    model: ModelConfig | None,
    protocols: Protocols,
    *,
    typed: Collection[str],
) -> list[Exception]:
    """What only the command line refuses in the parts that could be built."""
    errors: list[Exception] = []
    if script is not None:
        with collected(errors, ValueError):
            _check_script(script, protocols)
    if model is not None:
        wrong = value_errors(model)
        errors += wrong.values()
        errors += map(ValueError, inactive_options(model, MODEL_ACTS, typed=typed, wrong=wrong).values())
    if args is not None:
        with collected(errors, ValueError):
            check_trackers(args.report_to)
        if args.eval_strategy != "no" or args.eval_on_start:
            what = "eval_on_start=True" if args.eval_on_start else f"eval_strategy={args.eval_strategy.value!r}"
            errors.append(ValueError(f"{what} has no data set here: set --evaluation_protocol and --evaluate_every"))
        if not isinstance(args.model_init_kwargs, (dict, NoneType)):
            errors.append(ValueError(f"model_init_kwargs must be `name: value` pairs, got {args.model_init_kwargs!r}"))
    return errors


def _check_script(script: ScriptArguments, protocols: Protocols) -> None:
    if script.evaluate_every < 1:
        raise ValueError(f"evaluate_every must be at least 1 step, got {script.evaluate_every}")
    name = script.evaluation_protocol
    if name is not None and name not in protocols:
        raise ValueError(f"evaluation_protocol={name!r} is unknown{choose(name, protocols)}")
    for one in ("evaluate_on", "evaluate_every"):
        if name is None and not is_default(script, one):
            raise ValueError(f"{one} needs --evaluation_protocol: one of {', '.join(protocols)}")
    for one in script.evaluate_on or ():
        if one not in protocols[name]:
            raise ValueError(f"evaluate_on: {name!r} has no set {one!r}{choose(one, protocols[name])}")
