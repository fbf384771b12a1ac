"""Estimates the tokens and the memory of a run.

  trl-credit plan s_trace/qwen3_4b_s_trace --accelerate_config zero2 --num_processes 2
  trl-credit plan --algo spo_chain --model_name_or_path Qwen/Qwen3-1.7B --response_length 700 --segments 12

RECIPE is the name or the file of a recipe. All flags of `trl-credit train` work too. The command reads the
configuration of the model from its folder or from the cache of the Hub. For the models of the recipes it has a table.
For other models, give --parameters, --layers and --hidden_size. It loads no weights and needs no GPU.
"""

import json
import os

from ..settings.early import check_names
from ..settings.parser import OneLineParser
from ..settings.recipes import find_recipe
from ..support.functions import names_alone
from ..support.packaged import accelerate_settings
from ..support.startup import begin, prepare_process


# flag, type, help
_FLAGS = (
    ("num_processes", int, "GPUs (default: those of --accelerate_config, else the recipe's, else 1)"),
    ("accelerate_config", str, "a configuration of the package by name, or a file"),
    ("prompt_length", float, "mean tokens of a prompt"),
    ("response_length", float, "mean tokens of a response"),
    ("segments", float, "mean segments of a response (algorithms with chains)"),
    ("prompts", int, "rows of the data set, to count the steps of an epoch"),
    ("parameters", str, "parameters of the model, such as 1.5B, if its configuration is not available"),
    ("layers", int, "layers of the model, with --parameters"),
    ("hidden_size", int, "hidden size of the model, with --parameters"),
    ("vocabulary", int, "vocabulary of the model, with --parameters (default: Qwen's 151,936)"),
)


def main(argv: list[str]) -> None:
    """Runs the command. Raises `ValueError`, `OSError` or `ImportError` for wrong input."""
    begin()
    parser = OneLineParser(prog="trl-credit plan", description=__doc__, usage="%(prog)s [RECIPE …] [--flag value …]")
    for name, kind, text in _FLAGS:
        parser.add_argument(f"--{name}", type=kind, help=text)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    words = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    own, rest = parser.parse_known_args(argv[words:])
    settings = [*(["--config", *argv[:words]] if words else []), *rest]
    check_names(settings, flags=parser.flags())
    for name, kind, _ in _FLAGS:
        value = getattr(own, name)
        if kind is not str and value is not None and not 0 < value < float("inf"):
            raise ValueError(f"--{name} must be above 0 and finite, got {value:g}")
        if name in ("layers", "hidden_size", "vocabulary") and value is not None and own.parameters is None:
            raise ValueError(f"--{name} goes with --parameters: set it, or leave out --{name}")
    from trl import get_peft_config

    from ..lab.evaluation import PROTOCOLS
    from ..lab.plan import Assumed, as_json, as_text, make_plan, manual_shape, read_shape
    from ..lab.plan.from_settings import fill_assumed, layout_of
    from ..lab.plan.shapes import GET_CONFIG
    from ..presets import PRESETS
    from ..settings.arguments import parse_arguments

    prepare_process(imports=False)
    launcher = {} if own.accelerate_config is None else accelerate_settings(own.accelerate_config)
    of_recipe = _gpus(settings)
    processes = own.num_processes or launcher.get("num_processes") or of_recipe or 1
    with names_alone():
        choices = parse_arguments(settings, processes=processes, protocols=PROTOCOLS, flags=parser.flags())
        model, adapter = choices.model, get_peft_config(choices.model)
        if model.use_peft and own.parameters is not None:
            raise ValueError(f"--use_peft needs a config.json: leave out --parameters, and {GET_CONFIG}")
        if own.parameters is None:
            shape = read_shape(model.model_name_or_path, revision=model.model_revision, adapter=adapter)
        else:
            shape = manual_shape(own.parameters, own.layers, own.hidden_size, own.vocabulary)
        layout = layout_of(choices, launcher, processes)
        assumed = fill_assumed(Assumed(own.prompt_length, own.response_length, own.segments, own.prompts), choices)
        plan = make_plan(choices.args, shape, layout, assumed)
    if processes == of_recipe and own.num_processes is None and "num_processes" not in launcher:
        plan.notes.append(f"{processes} GPU{'s' * (processes > 1)}, as the recipe says (--num_processes)")
    if layout.compute_bytes == 4 and choices.args.use_cpu:
        plan.notes.append("products in 32 bits, as this machine has no GPU; with a GPU, --bf16 true is the default")
    name = os.path.basename(os.path.normpath(model.model_name_or_path)) if own.parameters is None else "a model"
    if own.json:
        print(json.dumps(as_json(plan, shape, layout), indent=1, ensure_ascii=False))
    else:
        print(as_text(f"{PRESETS[choices.script.algo].name} on {name}", plan, shape, layout))


def _gpus(argv: list[str]) -> int | None:
    """The GPUs of the last recipe of `--config` that names them."""
    parser = OneLineParser(add_help=False)
    parser.add_argument("--config", nargs="+", action="extend", default=[])
    recipes = map(find_recipe, reversed(parser.parse_known_args(argv)[0].config))
    return next((row.about["gpus"] for row in recipes if row is not None and "gpus" in row.about), None)
