"""Makes the arguments of a run from a command line and YAML files."""

import argparse
import re
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from trl import ModelConfig

from ..config import CreditConfig, active_part
from ..config.algorithm import class_of, settings_of, with_settings_of
from ..config.checks import value_errors
from ..config.knobs import inactive_options, is_default, knobs_of
from ..config.trl_settings import MODEL_ACTS
from ..data import DataArguments
from ..data.prompt_sets import flag
from ..demo import DEMO_SEGMENTS, TASKS, DemoTask, task_of_model
from ..presets import PRESETS, summaries
from ..support.errors import choose, collected, lines_of, together
from ..support.functions import is_custom_function, known_function, names_alone
from ..support.signals import without_flag
from .environment import set_environment
from .flags import FlagParser
from .parser import asks_for_help, read_files, typed_fields, unknown_algorithm, unknown_arguments, unknown_field


DEMO = "demo"  # as a model, a data set or a reward: the embedded one
Protocols = Mapping[str, Collection[str]]  # evaluation protocol → the names of its sets


_FIX = re.compile(r"\b(allow_changed|overwrite_output_dir|resume_from_checkpoint)=(True|\[.*?\])")  # as scripts say it
# what a dataclass raises if it refuses its values
_REFUSALS = (ValueError, TypeError, ArithmeticError, ImportError, RuntimeError, OSError)


@dataclass
class ScriptArguments:
    algo: str = flag("Algorithm.", default="s_trace")
    reward: list[str] | None = flag(
        "accuracy, format, soft_overlong, knights_and_knaves, demo, demo_agent, package.module.function or "
        "file.py:function; several add up. Default: that of the data set."
    )
    evaluation_protocol: str | None = flag("Evaluate during training.")
    evaluate_on: list[str] | None = flag("Sets to evaluate on, by name. Default: all sets of the protocol.")
    evaluate_every: int = flag("Optimizer steps between two evaluations.", default=100)


class Choices(NamedTuple):
    """The arguments of a run, one object per dataclass, and the settings of its YAML files (name → value)."""

    script: ScriptArguments
    data: DataArguments
    args: CreditConfig
    model: ModelConfig
    files: dict[str, Any]


def _read(
    argv: list[str], protocols: Protocols, program: dict[str, str], flags: Collection[str], lacks: Collection[str]
) -> tuple[argparse.Namespace, list[str], dict[str, Any], FlagParser, list[Exception]]:
    """The value of every field, before a configuration is built from them, the names of the fields that were set, the
    settings of the files, the parser, and the errors in names of fields and flags."""
    typed, config, files, words = read_files(argv)
    config = {name: value for name, value in config.items() if name not in lacks}
    words += [f"--{name}={value}" for name, value in typed.items()]
    chosen = {"algo": ScriptArguments.algo} | config | typed
    algo = str(chosen["algo"])
    if algo not in PRESETS:
        raise unknown_algorithm(algo, PRESETS, file=None if "algo" in typed else files.get("algo"))
    parser = _parser(chosen, protocols, program, runs_code="credit" in typed or not asks_for_help(words))
    names = [unknown_field(name, files[name], parser.hints) for name in config if name not in {*parser.hints, "env"}]
    read_values, values, rest, unreadable = {}, argparse.Namespace(), [], []
    with collected(unreadable, ValueError):
        set_environment(config.get("env"), where=files.get("env", "a file"))
    for name in config.keys() & parser.hints:
        with collected(unreadable, ValueError):
            read_values[name] = parser.read(name, config[name], file=files[name])
    parser.set_defaults(**read_values)
    with collected(unreadable, ValueError):
        values, rest = parser.parse_known_args(words)
    names += unknown_arguments(rest, [*flags, *parser.flags()], lists="--help all")
    credit = chosen.get("credit")
    if isinstance(credit, str) and is_custom_function(credit) and known_function(credit) is None:
        names = []  # they may be about its settings; where it cannot be found, the configuration says so
    if unreadable:  # the values in their places may cause other errors
        raise together([*names, *unreadable])
    if _task(chosen) is not None:
        segments = {name: value for name, value in DEMO_SEGMENTS.items() if name not in read_values}
        parser.set_defaults(**active_part(segments, vars(values)))
        values = parser.parse_known_args(words)[0]
    return values, [*read_values, *typed_fields(words)], config, parser, names


def _parser(chosen: Mapping[str, Any], protocols: Protocols, program: dict[str, str], *, runs_code: bool) -> FlagParser:
    """The parser of an algorithm's flags, with the defaults of the embedded task if that is trained on.

    Without `runs_code` the algorithm of a recipe is not imported: its help runs no code of a stranger.
    """
    algo, task = str(chosen["algo"]), _task(chosen)
    helps = {"algo": f"Algorithm: {summaries().replace('%', '%%')}."}
    helps["evaluation_protocol"] = f"Evaluate during training, by one of {', '.join(protocols)}."
    with nullcontext() if runs_code else names_alone():
        config_class = _config_class(chosen)
    parser = FlagParser((ScriptArguments, DataArguments, config_class, ModelConfig), helps=helps, **program)
    parser.set_defaults(output_dir=f"runs/{algo}", report_to="none", logging_steps=1)
    parser.set_defaults(algo=algo, model_name_or_path=DEMO)
    if task is not None:
        dataset = {} if task.name == DEMO else {"dataset_name": task.name}
        parser.set_defaults(model_name_or_path=task.name, **task.settings, **dataset)
    return parser


def _task(chosen: Mapping[str, Any]) -> DemoTask | None:
    """The embedded task that model or data set name, or whose model is the default."""
    dataset = chosen.get("dataset_name")
    return TASKS.get(chosen.get("model_name_or_path") or (dataset if dataset in TASKS else DEMO))


def _config_class(chosen: Mapping[str, Any]) -> type[CreditConfig]:
    """The configuration class of an algorithm, with the settings of the one that `credit` names."""
    plain = PRESETS[str(chosen["algo"])].config
    credit = chosen.get("credit", plain.credit)
    config_class = with_settings_of(credit, plain)
    others = {f.name for of in (ScriptArguments, DataArguments, ModelConfig) for f in fields(of)} | {"config", "env"}
    if clash := others.intersection(f.name for f in settings_of(class_of(credit))):
        raise ValueError(f"credit={credit!r}: its setting {min(clash)!r} is a flag of every run: rename it")
    return config_class


def config_fields(argv: list[str]) -> set[str]:
    """The fields of the configuration of a command line. Raises `ValueError` for files and settings as `_read`."""
    typed, config, _, _ = read_files(argv)
    return {f.name for f in fields(_config_class({"algo": ScriptArguments.algo} | config | typed))}


def inactive_settings(argv: list[str], *, lacks: Collection[str] = ()) -> list[str]:
    """The knobs that a command line or its files set and that have no effect with its algorithm and other settings, and
    those of them that it `lacks`.

    Raises:
        ValueError: as `parse_arguments`, for errors that are found before a configuration is built.
    """
    own = {*typed_fields(argv), *read_files(argv)[1]}
    missing = {name for name in lacks if {name, f"no_{name}"} & own}
    for name in missing:
        argv = without_flag(without_flag(argv, name), f"no_{name}")
    read_values, names, _, parser, _ = _read(argv, {}, {}, (), lacks)
    values = vars(read_values)
    settings = {name: values[name] for name in names if name in values}
    return sorted({*settings, *missing} - active_part(settings, values, knobs_of(parser.classes[2])).keys())


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
    values, _, config, parser, errors = _read(argv, protocols or {}, program, flags, lacks)
    for name, value in vars(values).items():
        if value == "" and parser.get_default(name) != "":
            errors.append(ValueError(f"--{name} is empty: give it a value, or leave it out"))
    values.per_device_train_batch_size *= processes
    parts: dict[type, Any] = {}
    for of in parser.classes:
        with collected(errors, *_REFUSALS):
            parts[of] = of(**{f.name: getattr(values, f.name) for f in fields(of) if f.init})
    script, data, args, model = map(parts.get, parser.classes)
    with collected(errors, ValueError):
        _check_evaluation(script, args, protocols or {})
    if model is not None:
        wrong = value_errors(model)
        typed = set(typed_fields(argv)) - config.keys()  # one that a file sets may be set back
        inactive = inactive_options(model, MODEL_ACTS, typed=typed, wrong=wrong)
        errors += [*wrong.values(), *map(ValueError, inactive.values())]
    if errors:
        raise with_source(together(errors), argv) from errors[0]
    if task := task_of_model(model.model_name_or_path or DEMO):
        model.model_name_or_path = task.model_path
    if isinstance(model.lora_target_modules, str) and re.fullmatch(r"[\w.]+", model.lora_target_modules):
        model.lora_target_modules = [model.lora_target_modules]  # a name alone, which PEFT would read as a pattern
    return Choices(script, data, args, model, config)


def with_source(error: BaseException, argv: list[str]) -> ValueError:
    """An exception with one line for each error, with fixes as flags and the `--config` file that sets the field that
    the line names."""
    lines, files = lines_of(error), {}
    with suppress(ValueError):  # the file itself is wrong, and the message says so
        files = read_files(argv)[2]
    for name in sorted(files.keys() - set(typed_fields(argv))):
        for i, line in enumerate(lines):
            if re.search(rf"^`?{name}\b|\b{name}=", line) and not any(file in line for file in files.values()):
                lines[i] = f"{line.rstrip('.')} ({name} is set in {files[name]})"
    flags = (_FIX.sub(lambda fix: " ".join([f"--{fix[1]}", *re.findall(r"\w+", fix[2].lower())]), x) for x in lines)
    return together([ValueError(line) for line in flags])


def _check_evaluation(script: ScriptArguments, args: CreditConfig | None, protocols: Protocols) -> None:
    """Raises `ValueError` if the settings of the evaluation during training do not go together."""
    name = script.evaluation_protocol
    if script.evaluate_every < 1:
        raise ValueError(f"evaluate_every must be at least 1 step, got {script.evaluate_every}")
    if name is None:
        if others := [other for other in ("evaluate_on", "evaluate_every") if not is_default(script, other)]:
            raise ValueError(f"{others[0]} needs --evaluation_protocol: one of {', '.join(protocols)}")
    elif name not in protocols:
        raise ValueError(f"evaluation_protocol={name!r} is unknown{choose(name, protocols)}")
    elif unknown := [one for one in script.evaluate_on or () if one not in protocols[name]]:
        raise ValueError(f"evaluate_on: {name!r} has no set {unknown[0]!r}{choose(unknown[0], protocols[name])}")
    if args is not None and (args.eval_strategy != "no" or args.eval_on_start):
        raise ValueError("eval_strategy and eval_on_start have no data here: set --evaluation_protocol instead")
