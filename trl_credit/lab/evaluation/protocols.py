"""Evaluation protocols: decoding and metrics for each set, from `protocols.yaml`."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ...support.errors import choose


AS_TRAINED = "as trained"  # what `find_protocol` calls the decoding of a run's training


@dataclass(frozen=True)
class Protocol:
    """Decoding and metrics for one set.

    Args:
        samples (`int`):
            Responses per problem (n).
        temperature (`float`):
            0 is greedy decoding, which needs `samples=1`.
        max_new_tokens (`int`):
            Maximum tokens of a response, including its end token. Longer responses are cut and count as truncated.
        metrics (`tuple[str, ...]`):
            `pass@k`, `best@k` or `avg@k`, k ≤ n; `maj@n`.
        top_p, top_k (*optional*, default to 1.0 and 0):
            Nucleus and top-k sampling; 1.0 and 0 are off.
        max_context (`int`, *optional*):
            Maximum tokens of prompt and response together, if the paper limits them.
        source (`str`, *optional*):
            The paper and table, and which values are ours.

    Raises:
        ValueError: an invalid value; the message names the flag of `trl-credit eval`.
    """

    samples: int
    temperature: float
    max_new_tokens: int
    metrics: tuple[str, ...]
    top_p: float = 1.0
    top_k: int = 0
    max_context: int | None = None
    source: str = "not given; ours"

    def __post_init__(self) -> None:
        limits = {
            "samples": ("at least 1", self.samples >= 1),
            "temperature": ("from 0 to 10", 0 <= self.temperature <= 10),
            "top_p": ("in (0, 1]", 0 < self.top_p <= 1),
            "top_k": ("0 (off) or more", self.top_k >= 0),
            "max_new_tokens": ("at least 1", self.max_new_tokens >= 1),
        }
        for name, (limit, holds) in limits.items():
            if not holds:
                raise ValueError(f"--{name} must be {limit}, got {getattr(self, name)}")
        if self.temperature == 0 and self.samples > 1:
            what = f"--temperature 0 gives the same response {self.samples} times"
            raise ValueError(f"{what}: set --samples 1 or a higher temperature")
        for metric in self.metrics:
            check_samples(metric, self.samples)


def split_metric(metric: str) -> tuple[str, int]:
    """`"pass@16"` → `("pass", 16)`.

    Raises:
        ValueError: it is not `pass@k`, `best@k`, `avg@k` or `maj@k`.
    """
    match = re.fullmatch(r"(pass|best|avg|maj)@([1-9]\d*)", metric)
    if match is None:
        raise ValueError(f"--metrics {metric!r} must be pass@k, best@k, avg@k or maj@k with a number k")
    return match[1], int(match[2])


def check_samples(metric: str, n: int) -> None:
    """Refuses a metric that n samples of a problem do not have: k must be n for maj@k, and at most n else.

    Raises:
        ValueError: k is another number, or the metric is unknown.
    """
    kind, k = split_metric(metric)
    if k > n or (kind == "maj" and k != n):
        raise ValueError(f"--metrics {metric} needs {k} samples per problem, got {n}: set --samples {k}, or another k")


def ha_dw_level(level: object) -> str:
    """The split of MATH500 in HA-DW (arXiv 2601.08521, Sec. 5.1): easy is level 1, mid 2 and 3, hard 4 and 5.

    Args:
        level (`int` or `str`): 1 to 5, or "Level 1" to "Level 5", as in MATH.

    Raises:
        ValueError: another level.
    """
    match = re.fullmatch(r"(?:Level )?([1-5])", str(level))
    if match is None:
        raise ValueError(f"a level of MATH is 1 to 5, got {level!r}")
    return {"1": "easy", "2": "mid", "3": "mid", "4": "hard", "5": "hard"}[match[1]]


_TABLE = yaml.safe_load(Path(__file__).with_name("protocols.yaml").read_text(encoding="utf-8"))
PROTOCOLS = {  # by name and set
    name: {of: Protocol(**{**fields, "metrics": tuple(fields["metrics"])}) for of, fields in sets.items()}
    for name, sets in _TABLE.items()
}


def find_protocol(name: str, set_name: str, **changes: Any) -> tuple[str, Protocol]:
    """The protocol of a set and its label; with `changes` (fields that are not `None`) the label ends in "changed".

    The names "custom" and "as trained" take everything from `changes`, for any set: they require `samples`,
    `temperature` and `max_new_tokens`, and `metrics` default to pass@1 and pass@n.

    Raises:
        ValueError: unknown name, a set that the protocol does not have, or invalid values.
    """
    changed = {key: value for key, value in changes.items() if value is not None}
    if "metrics" in changed:
        changed["metrics"] = tuple(changed["metrics"])
    if name in ("custom", AS_TRAINED):
        if missing := [f"--{key}" for key in ("samples", "temperature", "max_new_tokens") if key not in changed]:
            raise ValueError(f"--protocol custom needs {', '.join(missing)}")
        changed.setdefault("metrics", tuple(dict.fromkeys(("pass@1", f"pass@{changed['samples']}"))))
        return name, Protocol(**{"source": name, **changed})
    if name not in PROTOCOLS:
        raise ValueError(f"unknown --protocol {name!r}{choose(name, (*PROTOCOLS, 'custom'))}")
    if set_name not in PROTOCOLS[name]:
        sets = f"has the sets {', '.join(PROTOCOLS[name])}, not {set_name!r}"
        raise ValueError(f"--protocol {name} {sets}: choose one of these for --sets, or --protocol custom")
    protocol = PROTOCOLS[name][set_name]
    if not changed:
        return name, protocol
    return f"{name}, changed", replace(protocol, **changed, source=f"{protocol.source}; changed: {', '.join(changed)}")
