"""How the papers evaluate, by name. What a paper does not say is ours, and `source` says so."""

import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..demo import DEMO_MAX_COMPLETION_LENGTH
from ..mistakes import choose


METRIC = re.compile(r"(pass|best|avg|maj)@([1-9]\d*)")


@dataclass(frozen=True)
class Protocol:
    """Decoding and metrics for one set.

    Args:
        samples (`int`):
            Responses per problem (n).
        temperature (`float`):
            0 is greedy decoding, which wants `samples=1`.
        max_new_tokens (`int`):
            Tokens of a response, its end included; longer ones are cut off and count as truncated.
        metrics (`tuple[str, ...]`):
            `pass@k`, `best@k`, `avg@k` or `maj@k`, k ≤ n.
        top_p, top_k (*optional*, default to 1.0 and 0):
            Nucleus and top-k sampling; 1.0 and 0 are off.
        max_context (`int`, *optional*):
            Tokens of prompt and response together, where the paper limits these.
        source (`str`, *optional*):
            The paper and table, and what of it is ours.

    Raises:
        ValueError: a value that makes no sense; the message names the flag of `examples/evaluate.py`.
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
        wrong = {
            "--samples must be at least 1": self.samples < 1,
            "--temperature must be a number from 0 to 10": not 0 <= self.temperature <= 10,
            "--top_p must be in (0, 1]": not 0 < self.top_p <= 1,
            "--top_k must be 0 (off) or more": self.top_k < 0,
            "--max_new_tokens must be at least 1": self.max_new_tokens < 1,
            "--max_context must be at least 2 tokens": self.max_context is not None and self.max_context < 2,
            "--metrics must name at least one": not self.metrics,
        }
        for message, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(f"{message}, got {asdict(self)[message[2:].split(' ')[0]]}")
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"--temperature 0 gives {self.samples} times the same response: set --samples 1 or a higher one"
            )
        for metric in self.metrics:
            _, k = split_metric(metric)
            if k > self.samples:
                raise ValueError(f"--metrics {metric} wants {k} samples per problem: raise --samples {self.samples}")

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON has them."""
        return {**asdict(self), "metrics": list(self.metrics)}


def split_metric(metric: str) -> tuple[str, int]:
    """`"pass@16"` → `("pass", 16)`.

    Raises:
        ValueError: it is not `pass@k`, `best@k`, `avg@k` or `maj@k`.
    """
    match = METRIC.fullmatch(metric)
    if match is None:
        raise ValueError(f"--metrics {metric!r} must be pass@k, best@k, avg@k or maj@k with a number k")
    return match[1], int(match[2])


def ha_dw_level(level: object) -> str:
    """The split of MATH500 in HA-DW (arXiv 2601.08521, Sec. 5.1): easy is level 1, mid 2 and 3, hard 4 and 5.

    Args:
        level (`int` or `str`): 1 to 5, or "Level 1" to "Level 5", as MATH has them.

    Raises:
        ValueError: another level.
    """
    match = re.fullmatch(r"(?:Level )?([1-5])", str(level))
    if match is None:
        raise ValueError(f"a level of MATH is 1 to 5, got {level!r}")
    return {"1": "easy", "2": "mid", "3": "mid", "4": "hard", "5": "hard"}[match[1]]


_S_TRACE = Protocol(
    samples=16,
    temperature=1.0,
    max_new_tokens=2048,
    metrics=("pass@16", "best@16", "avg@16", "maj@16"),
    source="arXiv 2605.05965, Sec. 5: average pass@16. 16 responses, temperature and length are not in the text; ours "
    "(temperature and length are those of its training). Not all of its values are multiples of one problem's share, "
    "which best@16 can be",
)
_S_TRACE_8B = replace(_S_TRACE, max_new_tokens=3072)
_HA_DW_AVERAGE = Protocol(
    samples=16,
    temperature=1.0,
    max_new_tokens=4096,
    metrics=("avg@16", "pass@16"),
    source="arXiv 2601.08521, App. C, in a summary: avg@16. Temperature and length at evaluation are not in the text; "
    "ours (the length is that of its training)",
)
_HA_DW_SINGLE = Protocol(
    samples=1,
    temperature=0.0,
    max_new_tokens=4096,
    metrics=("pass@1",),
    source="arXiv 2601.08521, in a summary: accuracy. One greedy response and its length are not in the text; ours",
)
_GRPO_LAMBDA = Protocol(
    samples=1,
    temperature=0.0,
    max_new_tokens=3000,
    metrics=("pass@1",),
    source="arXiv 2510.00194 evaluates with the script of understanding-r1-zero (App. B). Greedy, one response and "
    "3000 tokens are defaults of that script and not in the text; one response per problem agrees with its values, "
    "and so do 83 problems of AMC",
)
_GSPO = Protocol(
    samples=32,
    temperature=1.0,
    max_new_tokens=8192,
    metrics=("avg@32",),
    source="arXiv 2507.18071, Sec. 5.1, in a summary: mean pass@1 over 32 responses. Temperature and length are not in "
    "the text; ours",
)
_SPO_SHORT = Protocol(
    samples=16,
    temperature=0.35,
    top_p=0.9,
    max_new_tokens=1024,
    max_context=2047,
    metrics=("avg@16", "pass@16", "maj@16"),
    source="arXiv 2505.23564, App. H: context 2047, temperature 0.35, top-p 0.9, 16 samples; at most 1024 new tokens "
    "are the released code's",
)
_SPO_SHORT_MATH = replace(
    _SPO_SHORT,
    max_new_tokens=4094,
    max_context=4095,
    source="arXiv 2505.23564, App. H (DeepSeekMath-7B): context 4095, temperature 0.35, top-p 0.9, 16 samples",
)
_SPO_SHORT_KNIGHTS = replace(
    _SPO_SHORT,
    source="arXiv 2505.23564, App. F names the set; decoding is not in the text, ours is that of GSM8K in App. H",
)
_SPO_LONG_2K = Protocol(
    samples=1,
    temperature=0.0,
    max_new_tokens=2047,
    max_context=2048,
    metrics=("pass@1",),
    source="arXiv 2505.23564, Sec. 7 (the curves of Fig. 5a): context 2K, greedy, MATH500 alone",
)
_SPO_LONG_4K = replace(
    _SPO_LONG_2K,
    max_new_tokens=4095,
    max_context=4096,
    source="arXiv 2505.23564, App. H: context 4096, greedy, one sample",
)


def _spo_table_1(context: int) -> dict[str, Protocol]:
    protocol = Protocol(
        samples=1,
        temperature=0.6,
        top_p=0.95,
        max_new_tokens=context - 1,
        max_context=context,
        metrics=("pass@1",),
        source=f"arXiv 2505.23564, Table 1: pass@1 with Open R1's script, context {context}. Temperature and top-p are "
        "not in the text, but in the released code; one response is our reading of AIME24's multiples of 1/30",
    )
    return {"math500": protocol, "aime24": protocol}


_DEMO = Protocol(
    samples=16,
    temperature=1.0,
    max_new_tokens=DEMO_MAX_COMPLETION_LENGTH,
    metrics=("pass@1", "pass@4", "pass@16", "maj@16"),
    source="ours, for the embedded task",
)

PROTOCOLS: dict[str, dict[str, Protocol]] = {
    "s_trace": {
        "math500": _S_TRACE,
        "aime24": _S_TRACE,
        "aime25": _S_TRACE,
        "amc23": _S_TRACE,
        "minerva": _S_TRACE,
    },
    "s_trace_8b": {
        "math500": _S_TRACE_8B,
        "aime24": _S_TRACE_8B,
        "aime25": _S_TRACE_8B,
        "amc23": _S_TRACE_8B,
        "minerva": _S_TRACE_8B,
        "beyond_aime": _S_TRACE_8B,
    },
    "ha_dw": {
        "math500": _HA_DW_SINGLE,
        "aime25": _HA_DW_AVERAGE,
        "amc23": _HA_DW_AVERAGE,
        "minerva": _HA_DW_SINGLE,
        "olympiadbench": _HA_DW_SINGLE,
    },
    # amc83 and not the 40 problems of amc23, which the other papers have: values of the two do not compare
    "grpo_lambda": dict.fromkeys(("aime24", "amc83", "math500", "minerva", "olympiadbench"), _GRPO_LAMBDA),
    "gspo": {"aime24": _GSPO},
    "spo_short": {
        "gsm8k": _SPO_SHORT,
        "math": _SPO_SHORT_MATH,
        "math500": _SPO_SHORT_MATH,
        "knights_and_knaves_3ppl": _SPO_SHORT_KNIGHTS,
    },
    "spo_long_2k": {"math500": _SPO_LONG_2K},
    "spo_long_4k": {"math500": _SPO_LONG_4K},
    "spo_table1_2k": _spo_table_1(2048),
    "spo_table1_4k": _spo_table_1(4096),
    "spo_table1_32k": _spo_table_1(32768),
    "demo": {"demo": _DEMO},
    "demo_greedy": {"demo": replace(_DEMO, samples=1, temperature=0.0, metrics=("pass@1",))},
}


def find_protocol(name: str, set_name: str, **changes: Any) -> tuple[str, Protocol]:
    """The protocol of a set and its label; with `changes` (fields that are not `None`) the label says "changed".

    The name "custom" takes everything from `changes`, for any set: `samples`, `temperature` and `max_new_tokens` are
    then required, and `metrics` default to pass@1 and pass@n.

    Raises:
        ValueError: unknown name, a set that the protocol does not have, or values that make no sense.
    """
    given = {key: value for key, value in changes.items() if value is not None}
    if "metrics" in given:
        given["metrics"] = tuple(given["metrics"])
    if name == "custom":
        missing = [f"--{key}" for key in ("samples", "temperature", "max_new_tokens") if key not in given]
        if missing:
            raise ValueError(f"--protocol custom wants {', '.join(missing)}")
        given.setdefault("metrics", tuple(dict.fromkeys(("pass@1", f"pass@{given['samples']}"))))
        return name, Protocol(**{"source": "custom", **given})
    if name not in PROTOCOLS:
        raise ValueError(f"unknown --protocol {name!r}{choose(name, (*PROTOCOLS, 'custom'))}")
    if set_name not in PROTOCOLS[name]:
        raise ValueError(
            f"--protocol {name} has the sets {', '.join(PROTOCOLS[name])}, not {set_name!r}: choose one of these for "
            "--sets, or --protocol custom with --samples, --temperature and --max_new_tokens"
        )
    protocol = PROTOCOLS[name][set_name]
    if not given:
        return name, protocol
    return f"{name}, changed", replace(protocol, **given, source=f"{protocol.source}; changed: {', '.join(given)}")
