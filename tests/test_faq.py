"""docs/faq.md: the metrics, settings, commands and messages that it names exist."""

import ast
import dataclasses
import inspect
import re
from functools import cache

import pytest
import trl
from scripts import ROOT

import trl_credit
from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.cli import COMMANDS
from trl_credit.config.knobs import knobs_of
from trl_credit.settings.arguments import parse_arguments


PAGE = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
# of transformers, of data flags and of the console; values of settings; names in other places
OTHER = {"None", "True", "cut off 100.0 %", "no signal", "zero2", "zero3", "fsdp2", "EvaluationCallback", "grad_norm"}
OTHER |= {
    '"sequence_mask"',
    "--accelerate_config zero2",
    "--logprobs-mode processed_logprobs",
    "trl_credit.testing.check_credit",
}


@cache
def sources() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "trl_credit").rglob("*.py")))


@cache
def strings() -> list[str]:
    found = []
    for path in (ROOT / "trl_credit").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    return found


@cache
def settings() -> dict[str, set]:
    """Setting → its choices, if it has some."""
    configs = [CreditConfig, *(pair[0] for pair in ALGORITHMS.values())]
    found = {f.name: set() for config in configs for f in dataclasses.fields(config)}
    for config in configs:
        found |= {name: set(k.values.names) for name, k in knobs_of(config).items() if k.values and k.values.names}
    choices = parse_arguments(["--output_dir", "unused"])
    of_command = [choices.data, choices.script, choices.model]
    return {f.name: set() for one in of_command for f in dataclasses.fields(one)} | found


def is_metric(name: str) -> bool:
    own, code = name.removeprefix("credit/"), sources() + inspect.getsource(trl.GRPOTrainer)
    head, _, tail = own.rpartition("/")
    made = f"{head.partition('/')[0]}/{{" in code and re.search(rf'["/_]{tail}"', code)  # an f-string
    return f'"{own}"' in code or bool(head) and bool(made)


def is_known(name: str) -> bool:
    if name in OTHER:
        return True
    if name.startswith("trl-credit "):
        return name.split()[1] in COMMANDS
    if "(" in name:
        return hasattr(getattr(trl_credit, name.partition(".")[0]), name.partition(".")[2].partition("(")[0])
    key, _, value = name.removeprefix("--").replace(" ", "=", 1).partition("=")
    if key in settings():
        choices = settings()[key]
        return not value or not choices or value.strip('"') in choices
    return re.fullmatch(r"[\w/]+", name) is not None and is_metric(name)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([^`\n]+)`", PAGE))))
def test_what_it_names_exists(name):
    assert is_known(name)


def test_made_up_names_are_unknown():
    for name in ("credit/groups/signals", "learning_rates", 'groups="refil"', "trl-credit vew", "sampling/logps"):
        assert not is_known(name), name


@pytest.mark.parametrize("said", sorted(set(re.findall(r'(?<![\w=`])"([^"`]+)"(?!`)', PAGE.replace("\n", " ")))))
def test_what_it_quotes_is_said_by_the_package_or_is_a_heading(said):
    if f"## {said}\n" not in PAGE:
        parts = [part.strip(" ….:") for part in said.split("…")]
        assert all(any(part in string for string in strings()) for part in parts)


def test_headings_have_plain_anchors():
    assert not [h for h in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE) if not re.fullmatch(r"[\w -]+", h)]
