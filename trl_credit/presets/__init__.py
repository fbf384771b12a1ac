"""Named presets of the knobs, one file per algorithm, and the registry that `--algo` reads. Imports `config`, and may
import `loss` for a credit function.

`docs/architecture.md` lists the steps to add an algorithm. `benchmarks/readme_table.py` prints the README's table.
"""

from importlib import import_module

from .preset import Preset, paper


__all__ = ["PRESETS", "Preset", "paper", "summaries"]

# one file each; GRPO is the first, since all others build on it
_NAMES = "grpo dapo dr_grpo p_trace s_trace grpo_lambda fipo gspo gspo_token ha_dw opo clip_cov kl_cov spo_chain"
_NAMES += " spo_tree vine_ppo"
PRESETS: dict[str, Preset] = {name: import_module(f".{name}", __name__).PRESET for name in _NAMES.split()}


def summaries() -> str:
    """`name (what it does), …`, for all algorithms."""
    return ", ".join(f"{name} ({preset.summary})" for name, preset in PRESETS.items())
