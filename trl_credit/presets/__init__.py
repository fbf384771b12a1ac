"""Named presets of the knobs, one file per algorithm, and the registry that `--algo` reads. Imports only `config`.

To add an algorithm, write its file here with a `Config` and a `PRESET`, and add a line to `PRESETS`, a named trainer to
`trainer/named.py` and its two names to `trl_credit/__init__.py`. If the knobs lack something, write a function like
[`~trl_credit.loss.assignment.assign_credit`] in its file and name it: `credit: str = f"{__name__}.credit"`.
`python -m trl_credit.presets` prints the README's table.
"""

from . import (
    dapo,
    dr_grpo,
    grpo,
    grpo_lambda,
    gspo,
    gspo_token,
    ha_dw,
    opo,
    p_trace,
    s_trace,
    spo_chain,
    spo_tree,
    vine_ppo,
)
from .preset import Preset, paper


__all__ = ["PRESETS", "Preset", "paper", "summaries"]

PRESETS: dict[str, Preset] = {
    "grpo": grpo.PRESET,
    "dapo": dapo.PRESET,
    "dr_grpo": dr_grpo.PRESET,
    "p_trace": p_trace.PRESET,
    "s_trace": s_trace.PRESET,
    "grpo_lambda": grpo_lambda.PRESET,
    "gspo": gspo.PRESET,
    "gspo_token": gspo_token.PRESET,
    "ha_dw": ha_dw.PRESET,
    "opo": opo.PRESET,
    "spo_chain": spo_chain.PRESET,
    "spo_tree": spo_tree.PRESET,
    "vine_ppo": vine_ppo.PRESET,
}


def summaries() -> str:
    """`name (what it does), …`, for all algorithms."""
    return ", ".join(f"{name} ({preset.summary})" for name, preset in PRESETS.items())
