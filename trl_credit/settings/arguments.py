"""From a command line and YAML files to the arguments of a run."""

import argparse
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any, NamedTuple

from trl import ModelConfig

from ..config import CreditConfig, active_part
from ..config.knobs import check_inactive_options, is_default, knobs_of
from ..config.rules import check_values
from ..config.trl_settings import MODEL_ACTS, OF_EVALUATION, TRL_ACTS, check_trackers
from ..data import DataArguments
from ..demo import DEMO_SEGMENTS, TASKS, task_of_model
from ..presets import PRESETS, summaries
from ..support.errors import choose, did_you_mean, one_line
from .environment import set_environment
from .files import read_settings
from .flags import FlagParser
from .parser import OneLineParser, typed_fields, unknown_argument


DEMO = "demo"  # as a model, a data set or a reward: the embedded one
Protocols = Mapping[str, Collection[str]]  # evaluation protocol → the names of its sets


# what a dataclass raises if it refuses its values
_FIX = re.compile(r"\b(allow_changed|overwrite_output_dir|resume_from_checkpoint)=(True|\[.*?\])")  # as scripts say it
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
    """The value of every field, before a configuration is built from them, and which fields were set."""

    values: argparse.Namespace
    rest: list[str]
    given: list[str]
    config: dict[str, Any]
    parser: FlagParser


def _read(argv: list[str], protocols: Protocols, program: dict[str, str]) -> _Read:
    said, words = _peek(argv)
    config, files = read_settings(said.pop("config"))
    words += [f"--{name}={value}" for name, value in said.items()]
    chosen = {"algo": ScriptArguments.algo} | config | said
    algo = str(chosen["algo"])
    if algo not in PRESETS:
        where = f" in {files['algo']}" if "algo" in files and "algo" not in said else ""
        raise ValueError(f"unknown algorithm {algo!r}{where}{choose(algo, PRESETS)}")
    helps = {"algo": f"Algorithm: {summaries().replace('%', '%%')}."}
    if protocols:
        helps["evaluation_protocol"] = f"Evaluate during training, by one of {', '.join(protocols)}."
    parser = FlagParser((ScriptArguments, DataArguments, PRESETS[algo].config, ModelConfig), helps=helps, **program)
    dataset = chosen.get("dataset_name")
    task = TASKS.get(chosen.get("model_name_or_path") or (dataset if dataset in TASKS else DEMO))
    parser.set_defaults(output_dir=f"runs/{algo}", report_to="none", logging_steps=1)
    parser.set_defaults(algo=algo, model_name_or_path=DEMO)
    if task is not None:
        own = {} if task.name == DEMO else {"dataset_name": task.name}
        parser.set_defaults(model_name_or_path=task.name, **task.settings, **own)
    settings = {name: value for name, value in config.items() if name != "env"}
    set_environment(config.get("env"), where=files.get("env", "a file"))
    for name, value in settings.items():
        if name not in parser.hints:
            meant = did_you_mean(name, parser.hints) or ": --help all lists the fields"
            raise ValueError(f"unknown field {name!r} in {files[name]}{meant}")
        settings[name] = parser.read(name, value, file=files[name])
    parser.set_defaults(**settings)
    if task is not None:
        segments = {name: value for name, value in DEMO_SEGMENTS.items() if name not in settings}
        parser.set_defaults(**active_part(segments, vars(parser.parse_known_args(words)[0])))
    values, rest = parser.parse_known_args(words)
    return _Read(values, rest, [*settings, *typed_fields(words)], config, parser)


def inactive_settings(argv: list[str]) -> list[str]:
    """The knobs that a command line or its files set and that have no effect with its algorithm and other settings.

    Raises:
        ValueError: as `parse_arguments`, for errors that are found before a configuration is built.
    """
    read = _read(argv, {}, {})
    values = vars(read.values)
    given = {name: values[name] for name in read.given if name in values}
    return sorted(set(given) - set(active_part(given, values, knobs_of(PRESETS[values["algo"]].config))))


def parse_arguments(
    argv: list[str],
    *,
    processes: int = 1,
    protocols: Protocols | None = None,
    flags: Collection[str] = (),
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
        program (`str`):
            `prog` and `epilog` of `--help`.

    Raises:
        ValueError: a file that cannot be read, an unknown algorithm or field, or a value that is refused; the message
            names the field, and the file that set it.
    """
    read = _read(argv, protocols or {}, program)
    values, parser = read.values, read.parser
    if read.rest:
        raise ValueError(unknown_argument(read.rest[0], [*flags, *parser.flags()], lists="--help all"))
    for name, value in vars(values).items():
        if value == "" and parser.get_default(name) != "":
            raise ValueError(f"--{name} is empty: give it a value, or leave it out")
    values.per_device_train_batch_size *= processes
    try:
        script, data, args, model = (
            of(**{f.name: getattr(values, f.name) for f in fields(of) if f.init}) for of in parser.classes
        )
        _check_script(script, protocols or {})
        check_trackers(args.report_to)
        check_values(model)
        typed = set(typed_fields(argv)) - read.config.keys()  # one that a file sets may be set back
        check_inactive_options(model, MODEL_ACTS, typed=typed)
        check_inactive_options(args, TRL_ACTS, typed=typed)
        if args.eval_strategy != "no":
            what = f"eval_strategy={args.eval_strategy.value!r}"
            raise ValueError(f"{what} has no data set here: set --evaluation_protocol and --evaluate_every")
        for name in OF_EVALUATION:
            if hasattr(args, name) and not is_default(args, name):
                what = f"{name}={getattr(args, name)!r} does nothing here, where TRL does not evaluate"
                raise ValueError(f"{what}: leave it out; --evaluation_protocol and --evaluate_every evaluate")
        if not isinstance(args.model_init_kwargs, (dict, NoneType)):
            raise ValueError(f"model_init_kwargs must be `name: value` pairs, got {args.model_init_kwargs!r}")
    except _REFUSALS as error:
        raise ValueError(with_source(error, argv)) from error
    if task := task_of_model(model.model_name_or_path or DEMO):
        model.model_name_or_path = task.model_path
    return Choices(script, data, args, model, read.config)


def with_source(error: BaseException, argv: list[str]) -> str:
    """The message of an exception in one line, with fixes as flags, and the `--config` file that sets the field it
    names."""
    message = one_line(error)
    shown = _FIX.sub(lambda fix: " ".join([f"--{fix[1]}", *re.findall(r"\w+", fix[2].lower())]), message)
    try:
        files = read_settings(_peek(argv)[0]["config"])[1]
    except ValueError:  # the file itself is wrong, and the message says so
        return shown
    for name in sorted(files.keys() - set(typed_fields(argv))):
        if re.search(rf"^`?{name}\b|\b{name}=", message) and files[name] not in message:
            return f"{shown.rstrip('.')} ({name} is set in {files[name]})"
    return shown


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


def _peek(argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The given values of `--config`, `--algo` and the model, on which other flags depend, and the remaining words."""
    parser = OneLineParser(add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--config", nargs="+", action="extend", default=[])
    parser.add_argument("--algo")
    parser.add_argument("--model_name_or_path", "--model-name-or-path")
    parser.add_argument("--dataset_name", "--dataset-name")
    said, rest = parser.parse_known_args(argv)
    return vars(said), rest
