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
# fields of an identity that are no settings, or that `_UPDATES` or `importance` contain
_NOT_SETTINGS = {"algorithm", "model", "tokenizer", "modules", "reward_funcs", "reward_models", "num_iterations"}
_NOT_SETTINGS |= {"generation_batch_size", "importance_sampling_level"}
_BESIDE = ("advantage_floor", "clip_form")  # our knobs that change the loss beside the credit
_FIRST = ("beta", "advantage_floor", "loss_type", "epsilon", "epsilon_high", _UPDATES)


def differing_settings(groups: Sequence[Group], *, of_credit: bool) -> dict[str, dict[str, Any]]:
    """Label → setting → value, for the knobs of credit in which the groups differ, or for the settings beside them.

    `None` stands for a setting that does not act. Beside the credit, such a value is no difference.
    """
    runs = [group.runs[0] for group in groups]
    # an identity does not tell the class of its configuration
    knobs = {name: knob for preset in PRESETS.values() for name, knob in knobs_of(preset.config).items()}
    knobs |= {name: Knob(None, (), "Credit", True) for run in runs for name in run.credit.get("settings", ())}
    by_group = [_settings(run, knobs) for run in runs]
    unlike = []
    for name in dict.fromkeys(name for settings in by_group for name in settings):
        values = {json.dumps(s.get(name), sort_keys=True) for s in by_group if name in s or of_credit}
        if name not in _NOT_SETTINGS and (name in knobs and name not in _BESIDE) == of_credit and len(values) > 1:
            unlike.append(name)
    unlike.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    return {g.label: {name: s.get(name) for name in unlike} for g, s in zip(groups, by_group, strict=True)}


def _settings(run: History, knobs: Mapping[str, Knob]) -> dict[str, Any]:
    """The settings that act, with the updates per batch, and custom credit by its name."""
    settings = active_part(run.settings, run.settings, knobs)
    if run.credit:
        settings["credit"] = run.credit["name"]
    if settings.get("batch_size"):
        updates = settings["generation_batch_size"] / settings["batch_size"] * settings["num_iterations"]
        settings[_UPDATES] = int(updates) if updates == int(updates) else updates
    if "epsilon" in settings and settings.get("epsilon_high") is None:  # TRL's upper clip is then the lower one
        settings["epsilon_high"] = settings["epsilon"]
    return settings
