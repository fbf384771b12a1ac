"""The settings in which the algorithms of a comparison differ: beside the credit, and of the credit."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...config import active_part
from ...config.knobs import Knob, knobs_of
from ...presets import PRESETS
from .groups import Group
from .histories import History


_UPDATES = "updates per batch"
# fields of an identity that are no settings, or that `_UPDATES` contains
_NOT_SETTINGS = {"algorithm", "model", "tokenizer", "modules", "reward_funcs", "reward_models", "num_iterations"}
_NOT_SETTINGS |= {"importance_sampling_level"}  # which `importance` sets
_BESIDE = ("advantage_floor", "clip_form")  # our knobs that change the loss beside the credit
_FIRST = ("beta", "advantage_floor", "loss_type", "epsilon", "epsilon_high", _UPDATES)


def settings_beside_credit(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """Label → setting → value, for the settings other than the credit in which the groups differ."""
    return _differing(groups, beside=True)


def settings_of_credit(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """Label → setting → value, for the knobs of credit in which the groups differ. `None` where one does not act."""
    return _differing(groups, beside=False)


def _differing(groups: Sequence[Group], *, beside: bool) -> dict[str, dict[str, Any]]:
    runs = [group.runs[0] for group in groups]
    # an identity does not tell the class of its configuration
    known = {name: knob for preset in PRESETS.values() for name, knob in knobs_of(preset.config).items()}
    known |= {name: Knob(None, (), "Credit", True) for run in runs for name in run.credit.get("settings", ())}
    by_group = [_settings(run, known) for run in runs]
    names = dict.fromkeys(name for settings in by_group for name in settings)
    chosen = [n for n in names if n not in _NOT_SETTINGS and (n not in known or n in _BESIDE) == beside]
    chosen.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    # beside the credit, the value of an inactive setting is no difference
    found = {name: [s.get(name) for s in by_group if name in s or not beside] for name in chosen}
    unlike = [name for name in chosen if len({json.dumps(value, sort_keys=True) for value in found[name]}) > 1]
    return {g.label: {name: s.get(name) for name in unlike} for g, s in zip(groups, by_group, strict=True)}


def _settings(run: History, knobs: Mapping[str, Knob]) -> dict[str, Any]:
    """The settings that act, with the updates per batch, and custom credit by its name."""
    found = active_part(run.settings, run.settings, knobs)
    found |= {"credit": run.credit["name"]} if run.credit else {}
    if found.get("batch_size"):
        updates = found["generation_batch_size"] / found["batch_size"] * found["num_iterations"]
        found[_UPDATES] = int(updates) if updates == int(updates) else updates
        del found["generation_batch_size"]
    if "epsilon" in found:  # of which TRL makes the upper clip where that is not set
        found["epsilon_high"] = found["epsilon"] if found.get("epsilon_high") is None else found["epsilon_high"]
    return found


def rows_of(settings: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table, an algorithm in each row."""
    names = list(next(iter(settings.values())))
    return ["algorithm", *names], [[label, *(_short(v) for v in own.values())] for label, own in settings.items()]


def _short(value: Any) -> str:
    if value is None:
        return "–"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 40 else f"{text[:39]}…"
