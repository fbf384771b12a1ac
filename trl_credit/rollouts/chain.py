"""Values of the states where a response's segments begin, by continuations from there (SPO-chain, VinePPO)."""

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from accelerate.logging import get_logger

from ..config import CreditConfig
from ..config.segments import best_of
from ..credit import segments
from ..credit.advantages import leave_one_out_mean
from ..credit.selection import probability_mask
from ..credit.steps import STEP_SPLITTERS, step_positions
from ..loss.assignment import described
from ..loss.batch import Batch
from .policy import Policy
from .sources import GenerationBatch, Responses, accuracies


logger = get_logger(__name__)

PART_ROWS = 4  # responses in a call of the reward functions, per row of the batch …
PART_TOKENS = 2**17  # … or as many as have this many tokens, if these are more


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
        `tuple[torch.Tensor, torch.Tensor]`: bool, shapes (B, T) and (B,).

    Raises:
        ValueError: a custom segmentation did not return boundaries.
    """
    unsplit = torch.zeros(mask_t.size(0), dtype=torch.bool, device=mask_t.device)
    if (own := config.custom_function("segmentation")) is not None:
        boundaries = own(old_logp_t, completion_ids=completion_ids, decode=decode, mask_t=mask_t)
        is_mask = isinstance(boundaries, torch.Tensor) and boundaries.dtype == torch.bool
        if not is_mask or boundaries.shape != mask_t.shape:
            rule = f"must return a bool tensor of shape {tuple(mask_t.shape)}, true where a segment begins"
            raise ValueError(f"segmentation {config.segmentation!r} {rule}; it returned {described(boundaries)}.")
        boundaries = boundaries & mask_t.bool()
    elif config.segmentation == "cutpoints":
        boundaries = segments.cutpoint_boundaries(
            old_logp_t,
            threshold=config.probability_threshold,
            interval=None if config.num_segments is not None else config.cutpoint_interval,
            num_segments=config.num_segments,
            from_first_cutpoint=config.uses_released_code("spo_first_cutpoint"),
            include_last=config.uses_released_code("spo_last_token"),
            mask_t=mask_t,
        )
        if config.token_mask == "probability":  # a response that this mask leaves out needs no value
            kept = probability_mask(old_logp_t, threshold=config.probability_threshold, mask_t=mask_t)
            boundaries &= kept.bool().any(-1, keepdim=True)
    elif config.segmentation == "fixed_length":
        boundaries = segments.fixed_length_boundaries(config.segment_length, mask_t=mask_t)
    elif config.segmentation == "turns":
        boundaries = mask_t.bool() & ~torch.nn.functional.pad(mask_t.bool()[:, :-1], (1, 0))
    elif config.segmentation == "fixed_count":
        boundaries = segments.fixed_count_boundaries(config.num_segments, mask_t=mask_t)
    else:
        splitter = config.custom_function("step_splitter") or STEP_SPLITTERS[config.step_splitter]
        positions = []
        for row, ids in enumerate(completion_ids):
            try:
                positions.append(step_positions(list(ids), decode=decode, splitter=splitter))
            except ValueError:  # such as two answer markers
                positions.append([])
                unsplit[row] = True
        boundaries = segments.position_boundaries(positions, mask_t=mask_t)
    return boundaries, unsplit


def plan_requests(
    boundaries: torch.Tensor, *, groups: Sequence[Hashable], completion_ids: Sequence[Sequence[int]]
) -> tuple[list[tuple[int, int]], torch.Tensor]:
    """The different prefixes at the boundaries (B, T) of all rows: states to value by rollouts, each once.

    A running 128-bit BLAKE2b digest identifies a prefix, so time and memory grow with the number of tokens and of
    boundaries, not with their product. Among n prefixes of a group a collision has a probability below n² / 2¹²⁹:
    2e-28 for 351,000.

    Returns:
        (row, b) of every different prefix, the first b tokens of a response; rows of one group share them. And the
        number of the prefix at each boundary, −1 elsewhere, shape (B, T).
    """
    index_t = torch.full(boundaries.shape, -1, dtype=torch.long)
    states: list[tuple[int, int]] = []
    known: defaultdict[Hashable, dict[bytes, int]] = defaultdict(dict)
    for row, places in enumerate(boundaries.tolist()):  # one transfer for all rows
        begins = [t for t, is_boundary in enumerate(places) if is_boundary]
        tokens, digest = memoryview(array("q", completion_ids[row])), hashlib.blake2b(digest_size=16)
        numbers = []
        for before, b in pairwise([0, *begins]):
            digest.update(tokens[before:b])
            number = known[groups[row]].setdefault(digest.digest(), len(states))
            if number == len(states):
                states.append((row, b))
            numbers.append(number)
        index_t[row, begins] = torch.tensor(numbers, dtype=torch.long)
    return states, index_t.to(boundaries.device)


def rollout_rewards(
    policy: Policy,
    inputs: Sequence[dict[str, Any]],
    places: Sequence[tuple[int, int]],
    *,
    n: int,
    batch: Batch,
    most: int,
) -> tuple[torch.Tensor, int]:
    """Rewards of `n` continuations of every state, and the number of tokens generated for them. Collective.

    All prefixes go to the policy at once. Whole responses go to the reward functions in parts, those from one state
    together: `rollout_batch_size` of them, else by `PART_ROWS` and `PART_TOKENS`.

    Args:
        policy ([`Policy`]):
            Continues prefixes and scores responses.
        inputs (sequence of `dict`):
            Rows of the data set, at least one and as many on every process.
        places (sequence of `tuple[int, int]`):
            (row, b) of each state. May be empty where another process has some.
        n (`int`):
            Continuations of a state.
        batch ([`Batch`]):
            The rows.
        most (`int`):
            The largest number of states of all processes.

    Returns:
        `tuple[torch.Tensor, int]`: rewards, float, shape (states, n), NaN where no reward function applied; tokens.
    """
    if most == 0:
        return torch.zeros(0, n, device=policy.processes.device), 0
    prompt_ids, completion_ids = batch.prompt_ids, batch.completion_ids
    budgets = [policy.remaining_budget(len(prompt_ids[row]), b) for row, b in places]
    if policy.args.segmentation == "turns":
        texts = {"prompt_ids": prompt_ids, "completion_ids": completion_ids}
        with policy.timed("rollouts"):
            scores, added = policy.continue_turns(places, n=n, budgets=budgets, most=most, **texts)
        rewards = policy.total_reward(scores)
    else:
        prefixes = [prompt_ids[row] + completion_ids[row][:b] for row, b in places]
        with policy.timed("rollouts"):
            added = [x.ids for x in policy.continue_prefixes(prefixes, n=n, budgets=budgets)]
        # every process scores as many, so that all make the same calls
        default = max(PART_ROWS * len(inputs), PART_TOKENS // policy.args.max_completion_length)
        size = n * max(1, (policy.args.rollout_batch_size or default) // n)
        parts, continued = [], [place for place in places for _ in range(n)]
        for part in (slice(first, min(first + size, n * most)) for first in range(0, n * most, size)):
            examples = [inputs[row] for row, _ in continued[part]] or inputs[:1]
            pairs = zip(continued[part], added[part], strict=True)
            responses = [completion_ids[row][:b] + ids for (row, b), ids in pairs]
            scores = policy.score_responses(examples, responses, most=part.stop - part.start)
            parts.append(policy.total_reward(scores))
        rewards = torch.cat(parts)
    rewards = with_truncation(policy, rewards.float(), added, [x for x in budgets for _ in range(n)])
    return rewards.view(-1, n), sum(map(len, added))


def with_truncation(
    policy: Policy, rewards: torch.Tensor, ids: Sequence[Sequence[int]], budgets: Sequence[int]
) -> torch.Tensor:
    """Rewards (n,), replaced by `truncated_value` for what did not end within its budget. NaN stays NaN."""
    if policy.args.truncated_value is None:
        return rewards
    ended = [policy.is_finished(x, budget) for x, budget in zip(ids, budgets, strict=True)]
    ended = torch.tensor(ended, dtype=torch.bool, device=rewards.device)
    return rewards.where(ended | rewards.isnan(), policy.args.truncated_value)


def _advantages(
    config: CreditConfig,
    value_t: torch.Tensor,
    boundaries: torch.Tensor,
    final_value: torch.Tensor,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    gain = partial(segments.segment_advantages, boundaries=boundaries, mask_t=mask_t)
    advantages = gain(value_t, final_value=final_value)
    if config.process_reward_weight == 0.0:
        return advantages
    low = config.reward_range[0]
    best = partial(segments.best_of_value, best_of=best_of(config), reward_range=config.reward_range)
    process = gain(best(value_t.where(boundaries, low)), final_value=best(final_value.where(boundaries.any(-1), low)))
    if config.process_reward_form == "value":  # V at a segment's end
        advantages = advantages + segments.value_at_segment_start(value_t, boundaries=boundaries) * mask_t
    return advantages + config.process_reward_weight * process


class Chain(Responses):
    """Responses with credit per segment, from values of the states where segments begin (SPO-chain, VinePPO)."""

    calls_engine_again, text_setting = True, "rollouts"

    def credit(self, batch: Batch, inputs: list[dict[str, Any]]) -> GenerationBatch:
        policy, config = self.policy, self.policy.args
        policy.fill_old_logps(batch)
        old_logp_t, rewards = batch.old_logp_t.float(), batch.rewards.float()
        completion_ids = batch.completion_ids
        # turns have a tool's tokens between them
        mask_t = batch.mask_t if config.segmentation == "turns" else batch.written_t
        boundaries, unsplit = find_boundaries(
            config, old_logp_t=old_logp_t, completion_ids=completion_ids, decode=policy.decode, mask_t=mask_t
        )
        limits = [policy.remaining_budget(len(ids), 0) for ids in batch.prompt_ids]
        final_value = with_truncation(policy, batch.own_rows(rewards), completion_ids, limits)
        boundaries = boundaries & ~final_value.isnan().unsqueeze(1)  # a response without a reward has no credit to give

        # values that need no rollouts
        at_start = boundaries & (mask_t.cumsum(-1) == 1)
        certain = segments.tail_log_probability(old_logp_t, mask_t=mask_t).exp() >= 1.0 - config.certain_tolerance
        most_steps = float("inf") if config.max_valued_steps is None else config.max_valued_steps
        beyond = boundaries.cumsum(-1) - at_start.any(-1, keepdim=True).long() > most_steps
        limit = torch.tensor(limits, device=mask_t.device).unsqueeze(1)
        is_full = torch.arange(mask_t.size(1), device=mask_t.device) >= limit
        known = boundaries & (certain | beyond | is_full)
        value_t = torch.where(known, final_value.nan_to_num().unsqueeze(1), torch.zeros_like(old_logp_t))
        if config.initial_value == "group":
            everyone = rewards if config.truncated_value is None else policy.processes.gather(final_value)
            alone = batch.own_rows(leave_one_out_mean(everyone, num_generations=policy.group_size))
            from_group = at_start & ~known & ~alone.isnan().unsqueeze(1)
            value_t = torch.where(from_group, alone.nan_to_num().unsqueeze(1), value_t)
            known = known | from_group

        groups = [(policy.processes.rank * len(inputs) + row) // policy.group_size for row in range(len(inputs))]
        unknown = boundaries & ~known
        places, index_t = plan_requests(unknown, groups=groups, completion_ids=completion_ids)
        any_boundary, most_states = policy.processes.max_of_each([int(boundaries.any()), len(places)])
        if not any_boundary:
            what = "segmentation=%r found no boundary, so this batch gets no credit (probability_threshold=%s)"
            logger.warning_once(what, config.segmentation, config.probability_threshold)
        n = config.rollouts_per_state
        scores, tokens = rollout_rewards(policy, inputs, places, n=n, batch=batch, most=most_states)
        without_rollouts = int(unknown.sum()) - len(places) + int(known.sum())  # a known value, or another boundary's
        if places:
            value_t = torch.where(unknown, scores.nanmean(1)[index_t.clamp(min=0)], value_t)
            boundaries = boundaries & ~value_t.isnan()  # no reward function applied to any rollout from there
            value_t = value_t.nan_to_num()

        advantages = _advantages(config, value_t, boundaries, final_value.nan_to_num(), mask_t)
        per_response = (advantages * boundaries).sum(-1)
        ids = segments.segment_ids(boundaries)
        batch.segment_ids = ids.where(mask_t.bool(), -1)
        # sums over processes, and over the calls of a batch, are totals then
        one = 0.0 if policy.log.is_further_call else 1 / policy.processes.count
        stats = {
            "segments_per_response": (boundaries.sum(), len(inputs)),
            "responses_without_segments": ((~boundaries.any(-1)).sum(), len(inputs)),
            "responses_unsplit": (unsplit.sum(), len(inputs)),
            "rollouts": (n * len(places), one),
            "rollouts_saved": (n * without_rollouts, one),
            "rollout_tokens": (tokens, one),
            "rollout_token_share": (tokens, tokens + int(mask_t.sum())),
        }
        quarter = 4 * ids // boundaries.sum(-1, keepdim=True).clamp(min=1)
        for q in range(4):
            inside = boundaries & (quarter == q)
            stats[f"segment_value/quarter_{q + 1}"] = ((value_t * inside).sum(), inside.sum())
            stats[f"segment_advantage/quarter_{q + 1}"] = ((advantages * inside).sum(), inside.sum())
        policy.record(stats)
        if (along_t := batch.take_returns()) is not None:
            advantages = advantages + along_t
        if unsplit.any():  # without steps there is no credit, and their tokens do not count
            batch.show_loss((~unsplit).unsqueeze(1))
        return GenerationBatch(
            batch,
            advantages,
            inputs,
            *accuracies(policy, batch),
            logged=per_response,
            # whether the final rewards of a group differ does not tell whether its segments have credit
            credited=((advantages != 0) & batch.mask_t.bool()).any(-1),
            value_t=value_t,
            final_value=final_value,
        )
