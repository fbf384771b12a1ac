"""One response in a terminal, each token coloured by its effective credit, or with it as a number."""

import math
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.rule import Rule
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ...observe.schema import Shard
from ...support.texts import plain
from .palette import LEVELS, LIGHT


_UNASSIGNED = Style(dim=True, underline=True)
_OUTSIDE = Style(dim=True, italic=True)
_REWARD = Style(bold=True)
_ZERO = 1e-7  # as in assets/metrics.js


def print_response(
    shard: Shard, response: dict[str, Any], console: Console | None = None, *, scaled_by: Sequence[Shard] = ()
) -> None:
    """Prints a response of a shard: its group's rewards, its text in colour, and a legend. Without colours, as in a
    pipe, each token is a line with its credit.

    Args:
        shard (`Shard`):
            The step of the response.
        response (`dict`):
            One of its responses.
        console (`Console`, *optional*):
            Where to print. Defaults to the standard output.
        scaled_by (list of `Shard`, *optional*):
            The steps whose credit sets the end of the colour scale. Defaults to `shard` alone.

    Raises:
        ValueError: the response has no credit.
    """
    name = f"response {response['group']}/{response['index']}"
    if response.get("credit") is None:
        raise ValueError(f"{name} has no credit, so it cannot be coloured")
    console = console or Console(highlight=False)
    group = [r for r in shard.responses if r["group"] == response["group"]]
    step = shard.header["step"]
    title = [shard.header["algorithm"], f"step {step}" if step is not None else "", name]
    console.print(Group(Rule(plain(", ".join(filter(None, title)))), _rewards(group, response), Text()))
    if console.color_system is None or console.no_color:
        console.print("credit per token, in units of the advantage:")
        console.print(_numbered(response), soft_wrap=True)
    else:
        largest = robust_maximum(*scaled_by or [shard])
        console.print(_coloured(response, largest))
        console.print(Group(Text(), _legend(largest)))


def _tokens(response: dict[str, Any]) -> Iterator[tuple[str, float | None, bool, bool, float | None]]:
    """Each token with its credit, whether it is in the loss and in the policy term, and the reward of a step that ends
    with it."""
    masks = [response.get(name) or [1] * len(response["tokens"]) for name in ("loss_mask", "policy_mask")]
    rewards = response.get("step_rewards") or [None] * len(response["tokens"])
    return zip(map(plain, response["tokens"]), response["credit"], *masks, rewards, strict=True)


def _coloured(response: dict[str, Any], largest: float) -> Text:
    text = Text()
    for token, credit, in_loss, assigned, reward in _tokens(response):
        style = _style(level_of(credit, largest)) if assigned else _UNASSIGNED
        style = style if in_loss else _OUTSIDE
        text.append(token, style)
        if reward is not None:
            text.append(f" [r {reward:+.3g}] ", _REWARD)
    return text


def _numbered(response: dict[str, Any]) -> Text:
    lines = []
    for token, credit, in_loss, assigned, reward in _tokens(response):
        has_credit = credit is not None and (assigned or abs(credit) > _ZERO)  # a trace sends it to all
        number = f"{credit:+.3g}" if has_credit and in_loss else "–"
        state = "" if in_loss and assigned else "  (unassigned)" if in_loss else "  (not in the loss)"
        step = "" if reward is None else f"  (step reward {reward:+.3g})"
        lines.append(f"{number:>9}  {token.replace(chr(10), '↵')}{state}{step}")
    return Text("\n".join(lines))


def robust_maximum(*shards: Shard) -> float:
    """The end of the colour scale, as on the page: the 99th percentile of |credit| above 0, of tokens in the loss."""
    sizes = [
        abs(credit)
        for shard in shards
        for response in shard.responses
        for credit, in_loss in zip(response.get("credit") or (), response.get("loss_mask") or repeat(1), strict=False)
        if in_loss and credit is not None and abs(credit) > _ZERO
    ]
    return float(np.quantile(sizes, 0.99, method="higher")) if sizes else 1.0


def level_of(credit: float | None, largest: float) -> int:
    """The level of the colour scale, negative for a negative credit: 0 for no colour, beyond ±`LEVELS` for values
    beyond the end of the scale."""
    if credit is None or abs(credit) <= _ZERO:
        return 0
    return int(math.copysign(max(math.ceil(abs(credit) / largest * LEVELS), 1), credit))


def _style(level: int) -> Style:
    """The colours of a level; a terminal of 16 colours takes those that are nearest."""
    if level == 0:
        return Style()
    colour = LIGHT["positive" if level > 0 else "negative"][min(abs(level), LEVELS) - 1]
    return Style(color=LIGHT["text"], bgcolor=colour, underline2=abs(level) > LEVELS)


def _rewards(group: list[dict[str, Any]], shown: dict[str, Any]) -> Table:
    names = list(dict.fromkeys(name for r in group for name in r.get("rewards") or {}))
    names = names if len(names) > 1 else []
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("response", "reward", *names, "tokens", "Σ credit", ""):
        table.add_column(Text(plain(name)), justify="left" if name in ("response", "") else "right")
    for r in group:
        rewards = [r.get("reward"), *((r.get("rewards") or {}).get(name) for name in names)]
        numbers = ("–" if x is None else f"{x:.3g}" for x in rewards)
        credit = sum(x for x in r.get("credit") or () if x is not None)
        end = [f"{len(r['tokens'])}", f"{credit:+.3g}", "cut off" if r.get("truncated") else ""]
        table.add_row(f"{r['index']}", *numbers, *end, style="bold" if r is shown else "dim")
    return table


def _legend(largest: float) -> Text:
    scale = [("··", _style(level)) for level in range(-LEVELS, LEVELS + 1) if level != 0]
    title = f"credit per token, in units of the advantage, up to the 99th percentile: −{largest:.3g} "
    states = (("unassigned", _UNASSIGNED), "   ", ("not in the loss", _OUTSIDE))
    return Text.assemble(title, *scale[:LEVELS], "  0  ", *scale[LEVELS:], f" +{largest:.3g}   ", *states)
