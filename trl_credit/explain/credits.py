"""The effective credit that an algorithm would give to responses which another policy step, or another run, made."""

import math
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..assignment import baseline_function, credit_function, policy_mask, with_ratio_clipped
from ..config import CreditConfig
from ..credit.advantages import group_advantage, whiten
from ..credit.clipping import is_clipped
from ..credit.difficulty import difficulty_weight
from ..credit.effective import effective_credit, travelled
from ..credit.tokens import Credit, Tokens, turn_numbers
from ..credit.weights import sequence_log_weight, token_log_weight
from ..logs import Shard
from ..mistakes import one_line
from ..names import declared
from ..trainer.log_entries import settings_of
from ..trainer.own_credit import credit_problem


@dataclass
class Explained:
    """What an algorithm makes of the responses.

    Attributes:
        name: Of the algorithm, for people.
        shard: The responses with its credit, weights, advantages and masks in the place of those they came with.
        horizon: How many tokens back credit goes, on average; `None` where it goes to all tokens alike, NaN where that
            is not known.
        note: A remark, or "".
    """

    name: str
    shard: Shard
    horizon: float | None
    note: str = ""


def explain(
    shard: Shard, config: CreditConfig, *, name: str, segments: tuple[torch.Tensor, torch.Tensor] | None = None
) -> Explained:
    """Credit of one algorithm, by the functions that train with it, on what is known of the responses.

    What a run keeps between batches is at its start: HA-DW's belief is the accuracy of these very responses, and
    nothing is replayed. A KL term is left out. A random selector is drawn anew.

    Args:
        shard ([`Shard`]):
            Its responses have `trainer_logprobs` and `old_logprobs`, and `entropy` where a selector asks for it.
        config ([`CreditConfig`]):
            Of the algorithm.
        name (`str`):
            What the algorithm is called in pages and tables.
        segments (`tuple`, *optional*):
            Advantages (float) and segment numbers (int64, −1 in none), shapes (B, T), where the algorithm has segments.

    Returns:
        [`Explained`].

    Raises:
        ValueError: what the algorithm needs is not known; the message says what.
    """
    responses = shard.responses
    batch = _Batch(responses)
    if config.selector not in ("none", "random") and batch.entropy_t is None:
        raise ValueError("it selects tokens by their entropy, which these responses lack: give --model")
    rows = _advantages(config, responses, batch.mask_t)
    mask_t = batch.mask_t
    if config.mask_truncated_completions:
        cut = torch.tensor([bool(response.get("truncated")) for response in responses])
        mask_t = mask_t * (~cut).unsqueeze(1)
    advantages, ids = (rows, mask_t.long() - 1) if segments is None else segments
    note = ""
    if config.difficulty != "none":
        advantages, note = _by_difficulty(config, responses, advantages)
    kept_t = policy_mask(config, old_logp_t=batch.old_t, segment_ids=ids, mask_t=mask_t)
    if config.whiten_advantages != "none":
        wide = advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(mask_t.shape)
        advantages = whiten(wide, mask_t=kept_t)
    if config.advantage_floor is not None:
        advantages = advantages.clamp(min=config.advantage_floor)
    logp_t = batch.logp_t.clone().requires_grad_()
    tokens = Tokens(
        logp_t=logp_t,
        old_logp_t=batch.old_t,
        ref_logp_t=batch.ref_t,
        sampling_logp_t=batch.sampling_t,
        entropy_t=torch.zeros_like(logp_t) if batch.entropy_t is None else batch.entropy_t,
        advantages=advantages,
        token_ids=batch.ids_t,
        segment_ids=ids,
        turn_ids=turn_numbers(batch.mask_t),
        policy_mask_t=kept_t.to(logp_t.dtype),
        mask_t=mask_t.to(logp_t.dtype),
    )
    return _explained(shard, config, tokens, name=name, note=note)


def _explained(shard: Shard, config: CreditConfig, tokens: Tokens, *, name: str, note: str) -> Explained:
    function = credit_function(config)
    if declared(function, "carries_loss") and tokens.ref_logp_t is None:
        note = f"{note}; reference policy taken to be the policy".removeprefix("; ")
        tokens = replace(tokens, ref_logp_t=tokens.logp_t.detach())
    try:
        credit = function(config, tokens)
    except Exception as error:  # whatever a function of one's own does, the others are explained
        raise ValueError(f"its credit function raised {said_by(error)}") from error
    if problem := credit_problem(credit, tokens, carries_loss=bool(declared(function, "carries_loss"))):
        raise ValueError(f"its credit function {problem}")
    return _measured(shard, config, tokens, credit, name=name, note=note)


def _measured(shard: Shard, config: CreditConfig, tokens: Tokens, credit: Credit, *, name: str, note: str) -> Explained:
    given = {"old_logp_t": tokens.old_logp_t, "mask_t": tokens.mask_t}
    whole = config.importance == "sequence" and credit.log_weight is None
    plain = sequence_log_weight if whole else token_log_weight
    log_weight_t = plain(tokens.logp_t, **given) if credit.log_weight is None else credit.log_weight
    advantage = credit.advantage if credit.advantage.dim() == 2 else credit.advantage.unsqueeze(1)
    advantage_t = advantage.expand_as(tokens.logp_t)
    kept_t = tokens.policy_mask_t.bool() if credit.mask is None else tokens.policy_mask_t.bool() & credit.mask.bool()
    clip_range = (1 - config.epsilon, 1 + (config.epsilon if config.epsilon_high is None else config.epsilon_high))
    used = replace(credit, log_weight=log_weight_t, advantage=advantage_t)
    if config.clip_form == "ratio":
        used = with_ratio_clipped(used, tokens, clip_range=clip_range)
    credit_t = effective_credit(
        used.log_weight, logp_t=tokens.logp_t, advantage_t=used.advantage, clip_range=clip_range, mask_t=kept_t
    )
    given = {"advantage_t": advantage_t.detach(), "clip_range": clip_range, "form": config.clip_form}
    clipped_t = is_clipped(log_weight_t, **given) & kept_t
    horizon = None
    if not whole:
        size_t = torch.where(kept_t, advantage_t.detach().abs(), 0.0)
        moved, total = travelled(log_weight_t, logp_t=tokens.logp_t, coefficient_t=size_t.to(log_weight_t.dtype))
        horizon = (moved / total).item() if total > 0 else 0.0
    columns = {
        "loss_mask": tokens.mask_t.int(),
        "policy_mask": kept_t.int(),
        "advantages": advantage_t.detach(),
        "log_weight": log_weight_t.detach(),
        "is_clipped": clipped_t.int(),
        "selected": None if credit.selected is None else credit.selected.int(),
        "segment_ids": tokens.segment_ids if config.rollouts != "none" else None,
        "credit": credit_t,
    }
    responses = []
    for i, response in enumerate(shard.responses):
        n = len(response["tokens"])
        own = {column: None if x is None else x[i, :n].tolist() for column, x in columns.items()}
        responses.append({**response, **own, "kl_credit": None, "segment_values": None})
    header = {**shard.header, "algorithm": name, "clip": [round(x, 6) for x in (1 - clip_range[0], clip_range[1] - 1)]}
    header |= {"trace_decay": config.trace_decay if config.has_trace else None, "beta": 0.0, "trainer": None}
    header["settings"] = settings_of(config)
    return Explained(name, Shard(header, {}, responses), horizon, note)


def as_trained(shard: Shard) -> Explained | None:
    """What the run itself gave its responses, `None` where that is not known of all of them."""
    needed = ("credit", "loss_mask", "policy_mask", "is_clipped")
    if shard.trees or any(response.get(name) is None for response in shard.responses for name in needed):
        return None
    name = f"{shard.header.get('algorithm') or 'the run'}, as trained"
    return Explained(name, Shard({**shard.header, "algorithm": name}, {}, shard.responses), math.nan)


def said_by(error: BaseException) -> str:
    """An exception on one line, with the place in the user's own file that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {one_line(error)}{place}"


class _Batch:
    """Responses as padded tensors of shape (B, T), float64."""

    def __init__(self, responses: list[dict[str, Any]]) -> None:
        self._responses, self._width = responses, max(len(response["tokens"]) for response in responses)
        logp_t, old_t = self._floats("trainer_logprobs"), self._floats("old_logprobs")
        if logp_t is None and old_t is None:
            raise ValueError("these responses have no log-probabilities: give --model")
        self.logp_t = old_t if logp_t is None else logp_t
        self.old_t = self.logp_t if old_t is None else old_t
        self.ref_t = self._floats("ref_logprobs")
        self.sampling_t = self._floats("inference_logprobs")
        self.entropy_t = self._floats("entropy")
        self.mask_t = self._padded([r.get("loss_mask") or [1] * len(r["tokens"]) for r in responses]).long()
        self.ids_t = self._padded([r.get("token_ids") or [0] * len(r["tokens"]) for r in responses]).long()

    def _floats(self, name: str) -> torch.Tensor | None:
        lists = [response.get(name) for response in self._responses]
        if any(values is None for values in lists):
            return None
        return self._padded([[math.nan if x is None else x for x in values] for values in lists]).nan_to_num()

    def _padded(self, rows: list[list[float]]) -> torch.Tensor:
        found = torch.zeros(len(rows), self._width, dtype=torch.float64)
        for i, row in enumerate(rows):
            found[i, : len(row)] = torch.tensor(row, dtype=torch.float64)
        return found


def groups_of(responses: list[dict[str, Any]]) -> list[torch.Tensor]:
    """The places of each prompt's responses."""
    found: dict[int, list[int]] = {}
    for place, response in enumerate(responses):
        found.setdefault(response["group"], []).append(place)
    return [torch.tensor(places) for places in found.values()]


def rewards_of(responses: list[dict[str, Any]]) -> torch.Tensor:
    """Total rewards (B,), NaN where there is none."""
    given = [response.get("reward") for response in responses]
    return torch.tensor([math.nan if reward is None else float(reward) for reward in given], dtype=torch.float64)


def _advantages(config: CreditConfig, responses: list[dict[str, Any]], mask_t: torch.Tensor) -> torch.Tensor:
    """Those of whole responses, shape (B,), by the baseline of a configuration."""
    rewards, found = rewards_of(responses), torch.zeros(len(responses), dtype=torch.float64)
    baseline, lengths = baseline_function(config), mask_t.sum(-1)
    for places in groups_of(responses):
        given, n = rewards[places], len(places)
        if baseline is not None:
            found[places] = baseline(given.clone(), lengths=lengths[places], num_generations=n).double()
        else:
            found[places] = group_advantage(given, num_generations=n, scale=config.scale_rewards == "group")
    if baseline is None and config.scale_rewards == "batch":
        found = found / (rewards[~rewards.isnan()].std() + 1e-4)
    return found


def _by_difficulty(
    config: CreditConfig, responses: list[dict[str, Any]], advantages: torch.Tensor
) -> tuple[torch.Tensor, str]:
    low, high = config.reward_range
    share = (rewards_of(responses) - low) / (high - low)
    if not ((share.isnan()) | ((share >= 0) & (share <= 1))).all():
        raise ValueError(f"it weighs prompts by their accuracy, and rewards lie outside of {low:g} to {high:g}")
    p_hat = torch.zeros_like(share)
    for places in groups_of(responses):
        p_hat[places] = share[places].nanmean()
    prior = config.difficulty_threshold if config.difficulty == "fixed" else share.nanmean().item()
    wide = p_hat if advantages.dim() == 1 else p_hat.unsqueeze(1).expand_as(advantages)
    phi = difficulty_weight(advantages, p_hat=wide.nan_to_num(prior), prior=prior, scale=config.difficulty_scale)
    return advantages * phi, f"belief {prior:.2f}"
