"""How the credit of several algorithms on the same responses differs, in numbers."""

import math
from collections.abc import Sequence

from .credits import Explained


COLUMNS = (
    "algorithm",
    "on the 20 % of highest entropy",
    "1st quarter",
    "2nd",
    "3rd",
    "4th",
    "horizon (tokens)",
    "clipped",
    "unassigned",
    "cosine with GRPO",
)


def rows_of(explained: Sequence[Explained], *, grpo: Explained | None) -> list[list[str]]:
    """One row for each algorithm, as texts in the order of `COLUMNS`: shares of Σ|credit| by token; of tokens the
    clipped and the unassigned; and the cosine of the credit of all tokens with that of GRPO."""
    reference = None if grpo is None else _credit(grpo)
    return [
        [one.name, *_shares(one), _horizon(one), *_counts(one), _cosine(_credit(one), reference)] for one in explained
    ]


def markdown_table(explained: Sequence[Explained], *, grpo: Explained | None) -> str:
    """[`rows_of`] in Markdown, with the notes below."""
    rows = rows_of(explained, grpo=grpo)
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    notes = [f"{one.name}: {one.note}." for one in explained if one.note]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _credit(one: Explained) -> list[float]:
    return [x for response in one.shard.responses for x in response["credit"]]


def _shares(one: Explained) -> list[str]:
    total, top, quarters, known = 0.0, 0.0, [0.0] * 4, True
    for response in one.shard.responses:
        sizes, inside = [abs(x) for x in response["credit"]], [i for i, m in enumerate(response["loss_mask"]) if m]
        total += math.fsum(sizes)
        for place, i in enumerate(inside):
            quarters[4 * place // len(inside)] += sizes[i]
        entropy = response.get("entropy")
        if entropy is None:
            known = False
            continue
        order = sorted(inside, key=lambda i: -(entropy[i] or 0.0))
        top += math.fsum(sizes[i] for i in order[: math.ceil(0.2 * len(order))])
    if total == 0.0:
        return ["–"] * 5
    return [f"{top / total:.0%}" if known else "–", *(f"{q / total:.0%}" for q in quarters)]


def _horizon(one: Explained) -> str:
    if one.horizon is None:
        return "whole response"
    return "–" if math.isnan(one.horizon) else f"{one.horizon:.1f}"


def _counts(one: Explained) -> list[str]:
    loss = kept = clipped = 0
    for response in one.shard.responses:
        loss += sum(response["loss_mask"])
        kept += sum(response["policy_mask"])
        clipped += sum(response["is_clipped"])
    written = sum(len(response["tokens"]) for response in one.shard.responses)
    return [f"{clipped / kept:.1%}" if kept else "–", f"{1 - kept / max(written, 1):.0%}"]


def _cosine(credit: list[float], other: list[float] | None) -> str:
    if other is None:
        return "–"
    size = math.sqrt(math.fsum(x * x for x in credit) * math.fsum(x * x for x in other))
    return f"{math.fsum(x * y for x, y in zip(credit, other, strict=True)) / size:.2f}" if size > 0 else "–"
