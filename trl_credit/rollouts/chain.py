"""Values of the states at which a response's segments begin, by continuations from there (SPO-chain, VinePPO)."""

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from accelerate.logging import get_logger

from ..config import CreditConfig
from ..credit import segments
from ..credit.steps import STEP_SPLITTERS, step_positions
from ..segment_config import best_of
from .policy import Policy


logger = get_logger(__name__)


class Requests(NamedTuple):
    """States to be valued: each different prefix once.

    Attributes:
        states: (row, b) of every different prefix, the response's first b tokens.
        index_t: Shape (B, T): number of the state at each boundary to be valued by rollouts, −1 elsewhere.
        shared: Boundaries that are valued by another boundary's rollouts.
    """

    states: list[tuple[int, int]]
    index_t: torch.Tensor
    shared: int


def find_boundaries(
    config: CreditConfig,
    *,
    old_logp_t: torch.Tensor,
    completion_ids: Sequence[Sequence[int]],
    decode: Callable[[list[int]], str],
    mask_t: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where segments begin by `config.segmentation`, and which rows a step splitter could not split.

    Returns:
        `tuple`: bool tensors of shapes (B, T) and (B,).

    Raises:
        ValueError: a segmentation of one's own returned something else than boundaries.
    """
    unsplit = torch.zeros(mask_t.size(0), dtype=torch.bool, device=mask_t.device)
    if (own := config.own_function("segmentation")) is not None:
        found = own(old_logp_t, completion_ids=completion_ids, decode=decode, mask_t=mask_t)
        boundaries = _checked_boundaries(found, mask_t, config.segmentation)
    elif config.segmentation == "cutpoints":
        boundaries = segments.cutpoint_boundaries(
            old_logp_t,
            threshold=config.probability_threshold,
            interval=None if config.num_segments is not None else config.cutpoint_interval,
            num_segments=config.num_segments,
            # with the mask on, the lead is out of the loss anyway, and needs no value
            include_first=config.token_mask != "probability",
            include_last=config.include_last,
            mask_t=mask_t,
        )
    elif config.segmentation == "fixed_length":
        boundaries = segments.fixed_length_boundaries(config.segment_length, mask_t=mask_t)
    elif config.segmentation == "fixed_count":
        boundaries = segments.fixed_count_boundaries(config.num_segments, mask_t=mask_t)
    else:
        splitter = config.own_function("step_splitter") or STEP_SPLITTERS[config.step_splitter]
        positions = []
        for row, ids in enumerate(completion_ids):
            try:
                positions.append(step_positions(list(ids), decode=decode, splitter=splitter))
            except ValueError:  # such as two answer markers: the response has no steps to speak of
                positions.append([])
                unsplit[row] = True
        boundaries = segments.position_boundaries(positions, mask_t=mask_t)
    if not config.include_last:
        one_token = mask_t.sum(-1, keepdim=True) == 1
        last = mask_t.bool() & (mask_t.cumsum(-1) == mask_t.sum(-1, keepdim=True))
        boundaries = boundaries & (~last | one_token)
    return boundaries, unsplit


def _checked_boundaries(found: object, mask_t: torch.Tensor, name: str) -> torch.Tensor:
    if not isinstance(found, torch.Tensor) or found.dtype != torch.bool or found.shape != mask_t.shape:
        got = (
            f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        )
        raise ValueError(
            f"segmentation {name!r} must return a bool tensor of the shape of mask_t, {tuple(mask_t.shape)}, true "
            f"where a segment begins; it returned {got}."
        )
    return found & mask_t.bool()


def plan_requests(
    boundaries: torch.Tensor, *, groups: Sequence[Hashable], completion_ids: Sequence[Sequence[int]]
) -> Requests:
    """The different prefixes among the boundaries (B, T) of all rows; rows share them within a group.

    A prefix is known by its 128-bit BLAKE2b digest, which runs along the row: time and memory grow with the tokens and
    the boundaries, not with their product. Of n prefixes in a group two different ones are taken for one with a
    probability below n² / 2¹²⁹, 2e-28 for 351,000.
    """
    index_t = torch.full(boundaries.shape, -1, dtype=torch.long)
    states: list[tuple[int, int]] = []
    known: defaultdict[Hashable, dict[bytes, int]] = defaultdict(dict)
    shared = 0
    for row, places in enumerate(boundaries.tolist()):  # one transfer for all rows
        tokens, digest, read = memoryview(array("q", completion_ids[row])), hashlib.blake2b(digest_size=16), 0
        numbers = []
        for b in (begins := [t for t, is_boundary in enumerate(places) if is_boundary]):
            digest.update(tokens[read:b])
            read = b
            number = known[groups[row]].setdefault(digest.digest(), len(states))
            if number < len(states):
                shared += 1
            else:
                states.append((row, b))
            numbers.append(number)
        index_t[row, begins] = torch.tensor(numbers, dtype=torch.long)
    return Requests(states, index_t.to(boundaries.device), shared)


def leave_one_out_mean(rewards: torch.Tensor, *, num_generations: int) -> torch.Tensor:
    """Mean reward of the other responses of the group: V(s_0) for nothing, independent of the own response.

    Shapes (N,) → (N,). NaN rewards are left out; NaN where no other response has one.
    """
    grouped = rewards.view(-1, num_generations)
    scored = (~grouped.isnan()).to(grouped.dtype)
    filled = grouped.nan_to_num()
    others = scored.sum(-1, keepdim=True) - scored
    return ((filled.sum(-1, keepdim=True) - filled) / others.where(others > 0, torch.nan)).flatten()


class ChainCredit(NamedTuple):
    """Credit of one process's rows: advantages and segment numbers (B, T), the advantage of each whole response (B,),
    the rows (B,) that could not be split, V (B, T) where segments begin, and the value (B,) at the end."""

    advantages: torch.Tensor
    segment_ids: torch.Tensor
    per_response: torch.Tensor
    unsplit: torch.Tensor
    value_t: torch.Tensor
    final_value: torch.Tensor


def chain_credit(
    policy: Policy,
    inputs: list[dict],
    *,
    prompt_ids: list[list[int]],
    completion_ids: list[list[int]],
    old_logp_t: torch.Tensor,
    rewards: torch.Tensor,
    mask_t: torch.Tensor,
) -> ChainCredit:
    """Values every boundary of a generation batch by one call of the engine, and turns values into advantages.

    Args:
        policy ([`Policy`]):
            Continues prefixes, scores responses, records metrics.
        inputs (`list[dict]`):
            Rows of the data set, B of them.
        prompt_ids, completion_ids (`list[list[int]]`):
            Of these rows, without padding.
        old_logp_t, mask_t (`torch.Tensor`):
            Shape (B, T).
        rewards (`torch.Tensor`):
            Total rewards (N,) of all processes' rows.
    """
    config = policy.args
    old_logp_t = old_logp_t.float()
    first_row = policy.rank * len(inputs)
    own = slice(first_row, first_row + len(inputs))
    boundaries, unsplit = find_boundaries(
        config, old_logp_t=old_logp_t, completion_ids=completion_ids, decode=policy.decode, mask_t=mask_t
    )

    final_value = rewards[own].float()
    if config.truncated_value is not None:
        limits = [policy.remaining_budget(len(ids), 0) for ids in prompt_ids]
        ended = [policy.is_finished(ids, limit) for ids, limit in zip(completion_ids, limits, strict=True)]
        ended = torch.tensor(ended, device=final_value.device)
        final_value = final_value.where(ended | final_value.isnan(), config.truncated_value)
    boundaries = boundaries & ~final_value.isnan().unsqueeze(1)  # a response without a reward has no credit to give

    # what needs no rollouts
    value_t = torch.zeros_like(old_logp_t)
    at_start = boundaries & (mask_t.cumsum(-1) == 1)
    sure = segments.tail_log_probability(old_logp_t, mask_t=mask_t).exp() >= 1.0 - config.certain_tolerance
    beyond = boundaries & (boundaries.cumsum(-1) - at_start.any(-1, keepdim=True).long() > _limit(config))
    left = [policy.remaining_budget(len(p), 0) for p in prompt_ids]
    position = torch.arange(mask_t.size(1), device=mask_t.device)
    full = position >= torch.tensor(left, device=mask_t.device).unsqueeze(1)
    known = boundaries & (sure | beyond | full)
    value_t = torch.where(known, final_value.nan_to_num().unsqueeze(1), value_t)
    if config.initial_value == "group":
        known_to_all = config.truncated_value is None
        everyone = rewards.float() if known_to_all else policy.gather(final_value)
        alone = leave_one_out_mean(everyone, num_generations=policy.group_size)[own]
        from_group = at_start & ~known & ~alone.isnan().unsqueeze(1)
        value_t = torch.where(from_group, alone.nan_to_num().unsqueeze(1), value_t)
        known = known | from_group

    groups = [(first_row + row) // policy.group_size for row in range(len(inputs))]
    requests = plan_requests(boundaries & ~known, groups=groups, completion_ids=completion_ids)
    any_boundary, most_states = policy.all_largest([int(boundaries.any()), len(requests.states)])
    if not any_boundary:
        logger.warning(
            f"segmentation={config.segmentation!r} found no boundary in this generation batch, so nothing gets credit"
            f"{_why_none(config)}."
        )
    values, tokens = _rollout_values(policy, inputs, requests.states, prompt_ids, completion_ids, most=most_states)
    asked = requests.index_t >= 0
    if asked.any():
        value_t = torch.where(asked, values[requests.index_t.clamp(min=0)], value_t)
        boundaries = boundaries & ~(asked & value_t.isnan())  # no reward function applied to any rollout from there
        value_t = value_t.nan_to_num()

    advantages = _advantages(config, value_t, boundaries, final_value.nan_to_num(), mask_t)
    ids = segments.segment_ids(boundaries)
    _record(policy, requests, tokens, boundaries, value_t, advantages, known, unsplit, mask_t)
    per_response = (advantages * boundaries).sum(-1)
    return ChainCredit(advantages, ids.where(mask_t.bool(), -1), per_response, unsplit, value_t, final_value)


def _why_none(config: CreditConfig) -> str:
    if config.segmentation != "cutpoints":
        return ""
    return f": no token was less probable than probability_threshold={config.probability_threshold}"


def _limit(config: CreditConfig) -> float:
    return float("inf") if config.max_valued_steps is None else config.max_valued_steps


def _rollout_values(
    policy: Policy,
    inputs: list[dict],
    states: list[tuple[int, int]],
    prompt_ids: list[list[int]],
    completion_ids: list[list[int]],
    *,
    most: int,
) -> tuple[torch.Tensor, int]:
    """V of every state (float, shape (states,)), and the number of tokens that were generated for it. `most`: states of
    a process, at most."""
    config = policy.args
    n = config.rollouts_per_state
    if most == 0:
        return torch.zeros(0, device=policy.device), 0
    written = [completion_ids[row][:b] for row, b in states]
    budgets = [policy.remaining_budget(len(prompt_ids[row]), b) for row, b in states]
    with policy.timed("rollouts"):
        prefixes = [prompt_ids[row] + ids for (row, _), ids in zip(states, written, strict=True)]
        found = policy.continue_prefixes(prefixes, n=n, budgets=budgets)
    responses = [written[i // n] + continuation.ids for i, continuation in enumerate(found)]
    examples = [inputs[row] for row, _ in states for _ in range(n)] or inputs[:1]
    rewards = policy.total_reward(policy.score_responses(examples, responses, most=n * most)).float()
    if config.truncated_value is not None:
        ended = [policy.is_finished(c.ids, budgets[i // n]) for i, c in enumerate(found)]
        rewards = rewards.where(
            torch.tensor(ended, dtype=torch.bool, device=rewards.device) | rewards.isnan(), config.truncated_value
        )
    return rewards.view(-1, n).nanmean(1), sum(len(c.ids) for c in found)


def _advantages(
    config: CreditConfig,
    value_t: torch.Tensor,
    boundaries: torch.Tensor,
    final_value: torch.Tensor,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    given = {"boundaries": boundaries, "mask_t": mask_t}
    advantages = segments.segment_advantages(value_t, final_value=final_value, **given)
    if config.process_reward_weight == 0.0:
        return advantages
    low, high = config.reward_range
    best = [
        segments.best_of_value((value - low) / (high - low), best_of=best_of(config))
        for value in (value_t.where(boundaries, low), final_value.where(boundaries.any(-1), low))
    ]
    process = segments.segment_advantages(best[0], final_value=best[1], **given)
    if config.process_reward_form == "value":  # V at a segment's end
        advantages = advantages + segments.value_at_segment_start(value_t, boundaries=boundaries) * mask_t
    return advantages + config.process_reward_weight * process


def _record(
    policy: Policy,
    requests: Requests,
    tokens: int,
    boundaries: torch.Tensor,
    value_t: torch.Tensor,
    advantages: torch.Tensor,
    known: torch.Tensor,
    unsplit: torch.Tensor,
    mask_t: torch.Tensor,
) -> None:
    n, rows = policy.args.rollouts_per_state, boundaries.size(0)
    one = 1 / policy.num_processes  # so that sums over processes are totals
    own_tokens = int(mask_t.sum())
    stats = {
        "segments_per_response": (boundaries.sum(), rows),
        "responses_without_segments": ((~boundaries.any(-1)).sum(), rows),
        "responses_unsplit": (unsplit.sum(), rows),
        "rollouts": (n * len(requests.states), one),
        "rollouts_saved": (n * (requests.shared + int(known.sum())), one),
        "rollout_tokens": (tokens, one),
        "rollout_token_share": (tokens, tokens + own_tokens),
    }
    quarter = 4 * segments.segment_ids(boundaries) // boundaries.sum(-1, keepdim=True).clamp(min=1)
    for q in range(4):
        inside = boundaries & (quarter == q)
        stats[f"segment_value/quarter_{q + 1}"] = ((value_t * inside).sum(), inside.sum())
        stats[f"segment_advantage/quarter_{q + 1}"] = ((advantages * inside).sum(), inside.sum())
    policy.record(stats)
