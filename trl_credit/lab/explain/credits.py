"""The effective credit that an algorithm would give to responses from another run or another algorithm."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ...config import CreditConfig
from ...credit.advantages import group_advantage, whiten
from ...credit.clipping import is_clipped
from ...credit.difficulty import difficulty_weight
from ...credit.effective import effective_credit, travelled
from ...credit.tokens import Credit, Tokens, turn_numbers
from ...credit.weights import sequence_log_weight, token_log_weight
from ...loss.assignment import baseline_function, credit_function, policy_mask, with_ratio_clipped
from ...loss.custom_credit import credit_problem
from ...loss.statistics import with_statistics
from ...observe.log_entries import settings_of
from ...observe.schema import Shard
from ...support.functions import declared


@dataclass
class Explained:
    """The credit of one algorithm.

    Attributes:
        name: Name of the algorithm in tables and pages.
        shard: The responses with the algorithm's credit, weights, advantages and masks.
        horizon: Effective horizon in tokens, as a run logs it: how far back the credit of a token travels on average,
            weighted by |A| ([`~trl_credit.credit.effective.travelled`]). `None` for a weight of whole responses or
            turns, NaN if unknown.
        note: A remark, or "".
    """

    name: str
    shard: Shard
    horizon: float | None
    note: str = ""


def explain(
    shard: Shard, config: CreditConfig, *, name: str, segments: tuple[torch.Tensor, torch.Tensor] | None = None
) -> Explained:
    """The credit of one algorithm, computed by the functions that training uses.

    State that a run keeps between batches is in its initial state: HA-DW's belief is the accuracy of these responses,
    and there is no replay. There is no KL term. A random selector draws again, and statistics of a generation batch are
    those of these responses.

    Args:
        shard ([`Shard`]):
            Responses with `trainer_logprobs` or `old_logprobs`, and with `entropy` if a selector reads it.
        config ([`CreditConfig`]):
            Configuration of the algorithm.
        name (`str`):
            Name of the algorithm in pages and tables.
        segments (`tuple`, *optional*):
            Advantages (float) and segment numbers (int64, −1 outside), shapes (B, T), for algorithms with segments.

    Returns:
        [`Explained`].

    Raises:
        ValueError: the responses lack something that the algorithm needs, or its credit function breaks its contract.
        FunctionRaised: a custom function raised an error.
    """
    tokens, note = _tokens(shard.responses, config, segments)
    function = credit_function(config)
    carries_loss = bool(declared(function, "carries_loss"))
    if carries_loss and tokens.ref_logp_t is None:
        note = f"{note}; the policy is used as reference policy".removeprefix("; ")
        tokens = replace(tokens, ref_logp_t=tokens.logp_t.detach())
    tokens = with_statistics(function, config, tokens)
    credit = function(config, tokens)
    if problem := credit_problem(
        credit, tokens, carries_loss=carries_loss, has_weight_gradient=config.has_weight_gradient
    ):
        raise ValueError(f"its credit function {problem}")
    low, high = config.epsilon, config.epsilon if config.epsilon_high is None else config.epsilon_high
    columns, horizon = _columns(config, tokens, credit, clip_range=(1 - low, 1 + high))
    responses = []
    for i, response in enumerate(shard.responses):
        n = len(response["tokens"])
        lists = {column: None if x is None else x[i, :n].tolist() for column, x in columns.items()}
        responses.append({**response, **lists, "kl_credit": None, "segment_values": None})
    header = {
        **shard.header,
        "algorithm": name,
        "clip": [low, high],
        "trace_decay": config.trace_decay if config.has_trace else None,
        "beta": 0.0,
        "trainer": None,
        "settings": settings_of(config),
    }
    return Explained(name, Shard(header, {}, responses), horizon, note)


def _tokens(
    responses: list[dict[str, Any]], config: CreditConfig, segments: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[Tokens, str]:
    """A micro-batch of the responses in float64, and a note on the difficulty weight."""
    if config.td_upper_bound:
        raise ValueError("td_upper_bound=True needs π(EOS) at each token, which responses do not hold: leave it out")
    old_t, logp_t, entropy_t = (_column(responses, n) for n in ("old_logprobs", "trainer_logprobs", "entropy"))
    logp_t = old_t if logp_t is None else logp_t
    if logp_t is None:
        raise ValueError("these responses have no log-probabilities: give --model")
    if entropy_t is None and config.selector not in ("none", "random"):
        raise ValueError("it selects tokens by their entropy, which these responses lack: give --model")
    if config.selector == "entropy_reference":
        raise ValueError("it selects tokens by the entropy of the reference model, which responses do not hold")
    old_t = logp_t if old_t is None else old_t
    written_t = _column(responses, "loss_mask", default=1).long()
    mask_t, note = written_t, ""
    if config.mask_truncated_completions:
        cut_off = torch.tensor([bool(response.get("truncated")) for response in responses])
        mask_t = mask_t * (~cut_off).unsqueeze(1)
    advantages, segment_ids = segments or (_advantages(config, responses, written_t), mask_t.long() - 1)
    if config.difficulty != "none":
        advantages, note = _by_difficulty(config, responses, advantages)
    kept_t = policy_mask(config, old_logp_t=old_t, segment_ids=segment_ids, mask_t=mask_t)
    if config.whiten_advantages != "none":
        advantages = whiten(_by_token(advantages, mask_t), mask_t=kept_t)
    if config.advantage_floor is not None:
        advantages = advantages.clamp(min=config.advantage_floor)
    logp_t = logp_t.clone().requires_grad_()
    tokens = Tokens(
        logp_t=logp_t,
        old_logp_t=old_t,
        ref_logp_t=_column(responses, "ref_logprobs"),
        sampling_logp_t=_column(responses, "inference_logprobs"),
        entropy_t=torch.zeros_like(old_t) if entropy_t is None else entropy_t,
        advantages=advantages,
        token_ids=_column(responses, "token_ids", default=0).long(),
        seed=config.seed,
        segment_ids=segment_ids,
        turn_ids=_turns(responses, written_t),
        policy_mask_t=kept_t.to(logp_t.dtype),
        mask_t=mask_t.to(logp_t.dtype),
    )
    return tokens, note


def _turns(responses: list[dict[str, Any]], written_t: torch.Tensor) -> torch.Tensor:
    """Numbers of turns (B, T): those of the responses, which tell apart turns without a token between them."""
    known = [response.get("turn_ids") for response in responses]
    if any(x is None for x in known):
        return turn_numbers(written_t)
    return pad_sequence([torch.tensor(x) for x in known], batch_first=True, padding_value=-1)


def _columns(
    config: CreditConfig, tokens: Tokens, credit: Credit, *, clip_range: tuple[float, float]
) -> tuple[dict[str, torch.Tensor | None], float | None]:
    """The columns of a rollout log, each (B, T), and the effective horizon in tokens."""
    of_response = config.importance == "sequence" and credit.log_weight is None
    log_weight_t = credit.log_weight
    if log_weight_t is None:
        weight = sequence_log_weight if of_response else token_log_weight
        log_weight_t = weight(tokens.logp_t, old_logp_t=tokens.old_logp_t, mask_t=tokens.mask_t)
    advantage_t = _by_token(credit.advantage, tokens.logp_t)
    kept_t = tokens.policy_mask_t.bool() if credit.mask is None else tokens.policy_mask_t.bool() & credit.mask.bool()
    used = replace(credit, log_weight=log_weight_t, advantage=advantage_t)
    if config.clip_form == "ratio":
        used = with_ratio_clipped(used, tokens, clip_range=clip_range)
    credit_t = effective_credit(
        used.log_weight, logp_t=tokens.logp_t, advantage_t=used.advantage, clip_range=clip_range, mask_t=kept_t
    )
    advantage_t = advantage_t.detach()
    clipped_t = is_clipped(log_weight_t, advantage_t=advantage_t, clip_range=clip_range, form=config.clip_form)
    horizon = None
    if not of_response and config.importance != "turn":
        size_t = torch.where(kept_t, advantage_t.abs(), 0.0).to(log_weight_t.dtype)
        horizon = _horizon(log_weight_t, logp_t=tokens.logp_t, size_t=size_t)
    columns = {
        "loss_mask": tokens.mask_t.int(),
        "policy_mask": kept_t.int(),
        "advantages": advantage_t,
        "log_weight": log_weight_t.detach(),
        "is_clipped": (clipped_t & kept_t).int(),
        "selected": None if credit.selected is None else credit.selected.int(),
        "segment_ids": tokens.segment_ids if config.rollouts != "none" else None,
        "credit": credit_t,
    }
    return columns, horizon


def _horizon(log_weight_t: torch.Tensor, *, logp_t: torch.Tensor, size_t: torch.Tensor) -> float:
    """The effective horizon in tokens, for any W that is a function of `logp_t`: see [`travelled`]."""
    if not log_weight_t.requires_grad:
        return 0.0

    def back(c_t: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(log_weight_t, logp_t, c_t, retain_graph=True)[0]

    moved, total = travelled(back, size_t)
    return (moved / total).item() if total > 0 else 0.0


def as_trained(shard: Shard) -> Explained | None:
    """The credit that the run itself gave, or `None` if it is not logged for all responses."""
    needed = ("credit", "loss_mask", "policy_mask")
    if shard.trees or any(response.get(name) is None for response in shard.responses for name in needed):
        return None
    name = f"{shard.header.get('algorithm') or 'the run'}, as trained"
    return Explained(name, Shard({**shard.header, "algorithm": name}, {}, shard.responses), math.nan)


def groups_of(responses: list[dict[str, Any]]) -> list[list[int]]:
    """The indices of each prompt's responses."""
    found: dict[int, list[int]] = {}
    for i, response in enumerate(responses):
        found.setdefault(response["group"], []).append(i)
    return list(found.values())


def _column(responses: list[dict[str, Any]], name: str, *, default: float | None = None) -> torch.Tensor | None:
    """A field of all responses, (B, T), float64, padded with 0; `None` if a response lacks it without a default."""
    lists = [response.get(name) for response in responses]
    if default is not None:
        lists = [x or [default] * len(response["tokens"]) for x, response in zip(lists, responses, strict=True)]
    if any(x is None for x in lists):
        return None
    return pad_sequence([_float64(x) for x in lists], batch_first=True).nan_to_num()


def _float64(values: Iterable[float | None]) -> torch.Tensor:
    return torch.tensor([math.nan if x is None else x for x in values], dtype=torch.float64)


def rewards_of(responses: list[dict[str, Any]]) -> torch.Tensor:
    """Total rewards (B,), NaN for a response without one."""
    return _float64(response.get("reward") for response in responses)


def _by_token(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return (x if x.dim() == 2 else x.unsqueeze(1)).expand(like.shape)


def _advantages(config: CreditConfig, responses: list[dict[str, Any]], mask_t: torch.Tensor) -> torch.Tensor:
    """Advantages (B,) of whole responses by the configured baseline."""
    rewards, found = rewards_of(responses), torch.zeros(len(responses), dtype=torch.float64)
    baseline, lengths = baseline_function(config), mask_t.sum(-1)
    for places in groups_of(responses):
        given, n = rewards[places], len(places)
        if baseline is not None:
            found[places] = baseline(given, lengths=lengths[places], num_generations=n).double()
        else:
            found[places] = group_advantage(given, num_generations=n, scale=config.scale_rewards == "group")
    if baseline is None and config.scale_rewards == "batch":
        found = found / (rewards[~rewards.isnan()].std() + 1e-4)
    return found


def _by_difficulty(
    config: CreditConfig, responses: list[dict[str, Any]], advantages: torch.Tensor
) -> tuple[torch.Tensor, str]:
    low, high = config.reward_range
    accuracy = (rewards_of(responses) - low) / (high - low)
    if not (accuracy.isnan() | ((accuracy >= 0) & (accuracy <= 1))).all():
        raise ValueError(f"it weights prompts by their accuracy, and rewards lie outside of {low:g} to {high:g}")
    p_hat = torch.zeros_like(accuracy)
    for places in groups_of(responses):
        p_hat[places] = accuracy[places].nanmean()
    prior = config.difficulty_threshold if config.difficulty == "fixed" else accuracy.nanmean().item()
    p_hat = p_hat.nan_to_num(prior).view(-1, *[1] * (advantages.dim() - 1)).expand_as(advantages)
    phi = difficulty_weight(advantages, p_hat=p_hat, prior=prior, scale=config.difficulty_scale)
    return advantages * phi, f"belief {prior:.2f}"
