"""How the credit of several algorithms for the same responses differs, in numbers."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from ...credit.selection import select_high_entropy
from ...credit.shares import last_tokens, noise_outside
from .. import tables
from .credits import Explained, groups_of, rewards_of


_SHARES = ("on the 20 % of highest entropy", "1st quarter", "2nd", "3rd", "4th")
_SELECTING = {"selector": "selected", "top_entropy_quantile": "policy_mask"}  # setting → column of its tokens
_WHERE = ("last tokens' share", "noise share")
_REST = ("effective horizon (tokens)", "clipped", "unassigned", "cosine with GRPO")
COLUMNS = ("algorithm", *_SHARES, *_WHERE, *_REST)


def rows_of(explained: Sequence[Explained], *, grpo: Explained | None) -> list[list[str]]:
    """One row of texts for each algorithm, in the order of `COLUMNS`: shares of Σ|credit| on tokens, those
    of [`~trl_credit.credit.shares`], the effective horizon, the shares of clipped and of unassigned tokens, and the
    cosine of the credit of all tokens with GRPO's."""
    return [
        [one.name, *_shares(one), *_end_and_noise(one), _horizon(one), *_counts(one), _cosine(one, grpo)]
        for one in explained
    ]


def markdown_table(explained: Sequence[Explained], *, grpo: Explained | None) -> str:
    """[`rows_of`] in Markdown, with the notes below."""
    table = tables.markdown_table(COLUMNS, rows_of(explained, grpo=grpo))
    return "\n".join([table, *(f"{one.name}: {one.note}." for one in explained if one.note)]).rstrip()


def teacher_note(one: Explained) -> str | None:
    """Where the teacher of the run differs from the policy that sampled, in two sentences. `None` without a teacher."""
    responses = one.shard.responses
    if any(response.get(name) is None for response in responses for name in ("teacher_logprobs", "old_logprobs")):
        return None
    rewards, lengths = rewards_of(responses), [len(response["tokens"]) for response in responses]
    above = torch.zeros_like(rewards)
    for places in groups_of(responses):
        above[places] = rewards[places] - rewards[places].nanmean()
    gap, sign = _flat(one, "teacher_logprobs") - _flat(one, "old_logprobs"), np.repeat(above.sign().numpy(), lengths)
    is_known = (_flat(one, "loss_mask") == 1) & ~np.isnan(gap)
    more = [gap[is_known & (sign == side)] > 0 for side in (1, -1)]
    right, wrong = (f"{x.mean():.0%}" if len(x) else "–" for x in more)
    parts = np.split(np.where(is_known, gap, 0.0), np.cumsum(lengths)[:-1])
    of_gap = [{**response, "credit": part} for response, part in zip(responses, parts, strict=True)]
    top = _shares(replace(one, shard=replace(one.shard, responses=of_gap)))[0]
    what = f"{top} of |d| lies on the 20 % of tokens with the highest entropy"
    where = f"{right} of tokens in responses above the mean reward of their group, and at {wrong} below it"
    return f"Teacher: d = log π of the teacher − log π of the policy that sampled. {what}. d > 0 at {where}."


def _flat(one: Explained, column: str) -> np.ndarray:
    return np.concatenate([np.array(response[column], dtype=float) for response in one.shard.responses])


def _shares(one: Explained) -> list[str]:
    total, top, quarters = 0.0, 0.0, np.zeros(4)
    for response in one.shard.responses:
        size, inside = np.abs(response["credit"]), np.flatnonzero(response["loss_mask"])
        total += size.sum()
        quarters += np.bincount(4 * np.arange(len(inside)) // max(len(inside), 1), size[inside], minlength=4)
        entropy = response.get("entropy")
        if entropy is None:
            top = math.nan
        else:
            order = np.argsort(-np.nan_to_num(np.array(entropy, dtype=float)[inside]), kind="stable")
            top += size[inside[order[: math.ceil(0.2 * len(inside))]]].sum()
    return ["–" if total == 0.0 or math.isnan(x) else f"{x / total:.0%}" for x in (top, *quarters)]


def _end_and_noise(one: Explained) -> list[str]:
    """Computes what a run logs as `credit/last_tokens_share` and `credit/noise_share` from the columns of its log."""
    settings = one.shard.header.get("settings") or {}
    # the tokens that a run's metric takes
    column = next((_SELECTING[name] for name in _SELECTING if settings.get(name, "none") != "none"), None)
    end, noise = [], []
    for response in one.shard.responses:
        mask_t = _row(response["loss_mask"])
        end.append(last_tokens(_row(response["credit"]), mask_t=mask_t))
        logps, entropy = response.get("old_logprobs"), response.get("entropy")
        selected_t = None if response.get(column) is None else _row(response[column])
        if selected_t is None and entropy is not None:
            selected_t = select_high_entropy(_row(entropy), rate=0.2, mask_t=mask_t)
        is_known = logps is not None and selected_t is not None
        noise.append(noise_outside(_row(logps), selected_t=selected_t, mask_t=mask_t) if is_known else (math.nan,) * 2)
    return [_ratio(end), _ratio(noise)]


def _row(values: Sequence[float | None]) -> torch.Tensor:
    """Shape (1, T), 0 where unknown."""
    return torch.from_numpy(np.nan_to_num(np.array(values, dtype=float))).unsqueeze(0)


def _ratio(parts: Sequence[tuple[float, float]]) -> str:
    above, below = (float(sum(part)) for part in zip(*parts, strict=True))
    return f"{above / below:.2f}" if below > 0.0 else "–"


def _horizon(one: Explained) -> str:
    if one.horizon is None:
        return "whole response"
    return "–" if math.isnan(one.horizon) else f"{one.horizon:.1f}"


def _counts(one: Explained) -> list[str]:
    kept, share = _flat(one, "policy_mask"), "–"
    if kept.any() and all(response.get("is_clipped") is not None for response in one.shard.responses):
        share = f"{_flat(one, 'is_clipped').sum() / kept.sum():.1%}"
    return [share, f"{1 - kept.sum() / max(len(kept), 1):.0%}"]


def _cosine(one: Explained, grpo: Explained | None) -> str:
    if grpo is None:
        return "–"
    credit, other = _flat(one, "credit"), _flat(grpo, "credit")
    size = np.linalg.norm(credit) * np.linalg.norm(other)
    return f"{credit @ other / size:.2f}" if size > 0 else "–"
