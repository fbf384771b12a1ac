"""Named presets of the knobs, one file per algorithm, and the dict that `--algo` reads.

A file holds all that is known of its algorithm: `PAPER`; `…Config` with the paper's setting; and `…Trainer` with
`_name`, `_tag_names`, `_paper`, and

    summary     what it does, in a few words: for `--help` and the README
    formula     one line for the model card. ℓ and ℓ° are the log-probabilities under the current policy and the one
                that sampled, sg stops the gradient, g = γλ, and z is 1 at the tokens that a selector chose
    uses(args)  whether a configuration, of any preset, uses the method, so that its paper is cited. Without one, only
                configurations of its own class do. It is not inherited

To add one: its file here, its line below, and `python -m trl_credit.algorithms --write`, which brings the README's
table and what editors know of `trl_credit` up to date. What the knobs cannot say is a function in its file, after the
manner of [`~trl_credit.assignment.assign_credit`], that its configuration names: `credit: str = f"{__name__}.credit"`.
"""

from importlib import import_module
from typing import Any

from ..config import CreditConfig
from ..trainer import CreditTrainer


# the module of each algorithm, and what the names of its classes begin with
_PREFIXES = {
    "grpo": "GRPO",
    "dapo": "DAPO",
    "dr_grpo": "DrGRPO",
    "p_trace": "PTrace",
    "s_trace": "STrace",
    "grpo_lambda": "GRPOLambda",
    "gspo": "GSPO",
    "gspo_token": "GSPOToken",
    "ha_dw": "HADW",
    "opo": "OPO",
    "spo_chain": "SPOChain",
    "spo_tree": "SPOTree",
    "vine_ppo": "VinePPO",
}


def _classes(name: str, prefix: str) -> tuple[type[CreditConfig], type[CreditTrainer]]:
    module = import_module(f".{name}", __name__)
    return getattr(module, f"{prefix}Config"), getattr(module, f"{prefix}Trainer")


ALGORITHMS: dict[str, tuple[type[CreditConfig], type[CreditTrainer]]] = {
    name: _classes(name, prefix) for name, prefix in _PREFIXES.items()
}

__all__ = ["ALGORITHMS", *(f"{prefix}{kind}" for prefix in _PREFIXES.values() for kind in ("Config", "Trainer"))]


def __getattr__(name: str) -> Any:
    for pair in ALGORITHMS.values():
        for found in pair:
            if found.__name__ == name:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
