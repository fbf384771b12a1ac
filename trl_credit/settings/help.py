"""The pages of `--help`: a short one with the flags that people set, and `--help all` with every flag."""

import re
import shutil
import textwrap
from argparse import SUPPRESS, Action, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import partial
from types import SimpleNamespace

from transformers import TrainingArguments
from trl import GRPOConfig, ModelConfig

from ..config.knobs import RUN, Knob, is_active
from ..data import DataArguments
from ..presets import PRESETS


# the first flags under `RUN`; our knobs of a run follow
_RUN_FLAGS = (
    "algo config output_dir max_steps num_train_epochs learning_rate per_device_train_batch_size "
    "gradient_accumulation_steps steps_per_generation num_generations max_completion_length temperature beta "
    "use_vllm seed logging_steps report_to run_name save_strategy save_steps save_total_limit save_only_model "
    "resume_from_checkpoint push_to_hub hub_model_id hub_private_repo hub_strategy hub_revision hub_token"
).split()
_REWARDS = "reward reward_weights multi_objective_aggregation scale_rewards".split()
# the first that has a field
_OF_CLASS = {"Data": DataArguments, "Model": ModelConfig, "transformers' (TrainingArguments)": TrainingArguments}
_OF_CLASS["TRL's (GRPOConfig)"] = GRPOConfig
_HEADINGS = (
    *(RUN, "Model", "Data", "Rewards", "Credit", "Steps and turns", "Groups and prompts", "Segments", "Rollouts"),
    *("Teacher", "Evaluation", "TRL's (GRPOConfig)", "transformers' (TrainingArguments)"),
)
_ABOUT = """\
Every flag can also be a line `name: value` in a YAML file: --config a.yaml b.yaml. Later files override
earlier ones, and flags override files. --no_NAME turns off a flag that is on by default. N is an integer, X any number.
In brackets: the defaults of {algo} with the model {model_name_or_path}."""
_KINDS = {"int": "N", "float": "X", "string_to_bool": "true|false"}
_SENTENCE = re.compile(r"(?<!App\.)(?<!Alg\.)(?<!Sec\.)(?<!Eq\.)(?<=\.) ")
# how TRL and transformers speak of a default, which a preset or the embedded model may replace
_CLAIM = re.compile(r"^(?!.*\b(?:[Ii]f|[Uu]nless|when|where)\b).*\b[Dd]efault(?:s to| of)\b")


def page(prog: str, epilog: str, actions: Sequence[Action], knobs: Mapping[str, Knob], *, full: bool) -> str:
    """What `--help` prints: the flags under their headings.

    Args:
        prog, epilog (`str`):
            The program, and text at the end.
        actions (sequence of `Action`):
            All flags.
        knobs (mapping of `str` to [`~trl_credit.config.knobs.Knob`]):
            The declarations of our fields of the configuration.
        full (`bool`):
            Whether every flag is shown with its whole text. Else a sentence of each of our flags that have an effect
            with the defaults, and of those of TRL that most runs set.
    """
    width = max(60, min(shutil.get_terminal_size().columns, 200)) - 2
    fill = partial(textwrap.fill, width=width, break_on_hyphens=False)
    layout = partial(RawDescriptionHelpFormatter, max_help_position=34, width=width)  # where texts begin
    default = {action.dest: action.default for action in actions}
    about = fill(" ".join(_ABOUT.format(**default).split()))
    shown = ArgumentParser(prog, "%(prog)s [--flag value …]", about, add_help=False, formatter_class=layout)
    hidden: set[str] = set()
    if not full:
        algorithms = shown.add_argument_group("Algorithms")
        for name, preset in PRESETS.items():
            algorithms.add_argument(name, help=preset.summary.replace("%", "%%"))
        idle = [name for name, knob in knobs.items() if not is_active(SimpleNamespace(**default), knob.acts)]
        of_trl = {f.name for of in (GRPOConfig, ModelConfig) for f in fields(of)}
        hidden = {*idle, *of_trl.difference(_RUN_FLAGS, ("model_name_or_path", "dtype", "use_peft"), knobs)}
        rest = f"--help all describes all {len(actions)} flags, including those of TRL and transformers."
        epilog = "\n\n".join([fill(f"No effect with these defaults: {', '.join(idle)}."), rest, epilog])
    groups, headings = {title: shown.add_argument_group(title) for title in _HEADINGS}, _headings(knobs)
    order = {name: place for place, name in enumerate(dict.fromkeys([*_RUN_FLAGS, *knobs]))}
    for action in sorted(actions, key=lambda action: order.get(action.dest, len(order))):
        if action.dest not in hidden:
            metavar = action.metavar or _KINDS.get(getattr(action.type, "__name__", ""), "TEXT")
            metavar = "CHOICE" if action.choices else metavar
            text = _text(action, knobs.get(action.dest), full).replace("%", "%%")
            group = groups[headings.get(action.dest, "Evaluation")]
            group.add_argument(action.option_strings[0], nargs=action.nargs, metavar=metavar, help=text)
    shown.epilog = epilog
    return shown.format_help()


def _headings(knobs: Mapping[str, Knob]) -> dict[str, str]:
    """Flag → its heading; those of an evaluation are left out."""
    of_class = {f.name: title for title, of in reversed(_OF_CLASS.items()) for f in fields(of)}
    own = {name: knob.heading for name, knob in knobs.items()}
    return of_class | dict.fromkeys(_REWARDS, "Rewards") | own | dict.fromkeys(_RUN_FLAGS, RUN)


def _text(action: Action, knob: Knob | None, full: bool) -> str:
    """The text of a flag, its choices and its default."""
    sentences = _SENTENCE.split((action.help or "").replace("%%", "%").replace(" (default)", ""))
    names = [*(action.choices or ()), *(knob.values.names if knob and knob.values else ())]
    if full:
        text = " ".join(sentence for sentence in sentences if not _CLAIM.search(sentence))
        names = [] if str(next(iter(names), "")) in text else names
    else:
        text = "One of these." if action.dest == "algo" else sentences[0]
        text = text.partition(": ")[0] if names else text
    text = f"{text.rstrip('.:')}: {', '.join(map(str, names))}." if names else text
    if action.default is SUPPRESS or (action.default is None and not full):
        return text
    value = action.default.value if isinstance(action.default, Enum) else action.default
    return f"{text} [{' '.join(map(str, value)) if isinstance(value, (list, tuple)) else value}]"
