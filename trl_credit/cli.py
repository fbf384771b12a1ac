"""From a command line and YAML files to the arguments of a run."""

import argparse
import os
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from trl import ModelConfig, TrlParser

from .algorithms import ALGORITHMS
from .algorithms.table import summaries
from .config import CreditConfig
from .data import DataArguments
from .dead_knobs import live_part
from .demo import DEMO_SEGMENTS, DEMO_SETTINGS, demo_model_path
from .evaluation import PROTOCOLS


DEMO = "demo"  # as a model, a data set or a reward: the embedded one


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


def parse_arguments(
    argv: list[str],
) -> tuple[ScriptArguments, DataArguments, CreditConfig, ModelConfig, dict[str, Any]]:
    """Parses flags over the YAML files of `--config a.yaml b.yaml …`, later files over earlier ones.

    Without a model, or with the model `demo`, the embedded one and its settings are the defaults. The dict is what the
    files say.

    Raises:
        ValueError: a file that cannot be read, an unknown algorithm or field, or a value that is refused.
    """
    files, argv = _config_files(argv)
    config = read_config(files)
    said = _peek(argv)
    algo = str(said.algo or config.get("algo") or ScriptArguments.algo)
    if algo not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algo!r}: choose one of {', '.join(ALGORITHMS)}")
    model = said.model_name_or_path or config.get("model_name_or_path") or DEMO

    _ALGO["help"] = f"Algorithm: {summaries().replace('%', '%%')}."
    config_class = ALGORITHMS[algo][0]
    _inherit_help(config_class)
    parser = TrlParser((ScriptArguments, DataArguments, config_class, ModelConfig), allow_abbrev=False)
    parser.set_defaults(algo=algo, output_dir=f"runs/{algo}", report_to="none", logging_steps=1)
    if model == DEMO:
        parser.set_defaults(**DEMO_SETTINGS)
    settings = dict(config)
    for name, value in (settings.pop("env", None) or {}).items():
        os.environ[str(name)] = str(value)
    if unknown := parser.set_defaults_with_config(**settings)[::2]:
        raise ValueError(f"unknown field {unknown[0].removeprefix('--')!r} in {', '.join(files)}: check --config")
    if model == DEMO:
        given = vars(parser.parse_known_args(argv)[0])
        ours = {name: value for name, value in DEMO_SEGMENTS.items() if name not in config}
        parser.set_defaults(**live_part(ours, given))
    script, data, args, model_args, unknown = parser.parse_args_into_dataclasses(
        args=argv, return_remaining_strings=True
    )
    if unknown:
        raise ValueError(f"unknown flag {unknown[0]!r}: --help lists them")
    if script.evaluate_on and script.evaluation_protocol is None:
        raise ValueError(f"--evaluate_on wants an --evaluation_protocol: one of {', '.join(PROTOCOLS)}")
    for part in (script, data):
        for name in (f.name for f in fields(part) if "list" in str(f.type)):
            if isinstance(value := getattr(part, name), str):  # `reward: accuracy` in a file
                setattr(part, name, [value])
    if model == DEMO:
        model_args.model_name_or_path = demo_model_path()
    return script, data, args, model_args, config


def _inherit_help(config_class: type[CreditConfig]) -> None:
    """A preset gives a field another default, and with it loses what the field's first definition said of it."""
    for own in fields(config_class):
        bases = (base for base in config_class.__mro__ if is_dataclass(base))
        said = (f.metadata for base in bases for f in fields(base) if f.name == own.name)
        own.metadata = next((metadata for metadata in said if "help" in metadata), own.metadata)


def read_config(paths: list[str]) -> dict[str, Any]:
    """The settings of YAML files, later ones over earlier ones.

    A file's `base` (a path or several, relative to it) comes before the file itself. Its `about`, a mapping that says
    what the file is for, is no setting: it is left out, and not inherited from a `base`.

    Raises:
        ValueError: a file is missing, is not a mapping, has an `about` that is not one, or is its own base.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        merged |= _read(Path(path), ())
    return merged


def _read(path: Path, readers: tuple[Path, ...]) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}: check --config{' and `base`' if readers else ''}")
    if path.resolve() in readers:
        raise ValueError(f"{str(path)!r} is its own `base`")
    try:
        own = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(path)!r} cannot be read as YAML: {error}") from error
    if not isinstance(own, dict):
        raise ValueError(f"{str(path)!r} must hold `name: value` lines: check --config")
    if not isinstance(own.pop("about", {}), dict):
        raise ValueError(f"`about` in {str(path)!r} must hold `name: value` lines: check --config")
    bases = own.pop("base", [])
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        merged |= _read(path.parent / base, (*readers, path.resolve()))
    return merged | own


def _config_files(argv: list[str]) -> tuple[list[str], list[str]]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", nargs="+", action="extend", default=[])
    known, rest = parser.parse_known_args(argv)
    return known.config, rest


def _peek(argv: list[str]) -> argparse.Namespace:
    """What must be known before the flags of the algorithm's configuration can be parsed."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--algo", "--model_name_or_path"):
        parser.add_argument(flag)
    return parser.parse_known_args(argv)[0]
