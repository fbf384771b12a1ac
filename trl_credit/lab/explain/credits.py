"""The effective credit that an algorithm would give to responses from another run or another algorithm."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ...config import CreditConfig
from ...credit.advantages import group_advantage
from ...credit.gradient import travelled
from ...credit.tokens import Credit, Tokens, turn_numbers
from ...loss.assignment import log_weight_of
from ...loss.belief import correct_columns
from ...loss.contract import Contract, algorithm
from ...loss.loss_pass import policy_credit
from ...loss.normalizer import divisors
from ...loss.order import in_batch, in_loss, outcome_advantages
from ...loss.statistics import with_statistics
from ...observe.captured import columns_of
from ...observe.log_entries import settings_of
from ...observe.schema import Shard


Segments = tuple[torch.Tensor, torch.Tensor]  # advantages (float) and segment numbers (int64), shapes (B, T)


@dataclass
class Explained:
    """The credit of one algorithm.

    Attributes:
        name: Name of the algorithm in tables and pages.
        shard: The responses with the algorithm's credit, weights, advantages and masks.
        horizon: Effective horizon in tokens, as a run logs it: how far back the credit of a token travels on average,
            weighted by |A| ([`~trl_credit.credit.gradient.travelled`]). `None` for a weight of whole responses or
            turns, NaN if unknown.
        note: A remark, or "".
        divisors: What the loss divides the credit of each response by, up to a factor that all responses share.
    """

    name: str
    shard: Shard
    horizon: float | None
    note: str = ""
    divisors: Sequence[float] = ()


def explain(shard: Shard, config: CreditConfig, *, name: str, segments: Segments | None = None) -> Explained:
    """The credit of one algorithm, computed by the functions that training uses.

    The step, HA-DW's belief, and the seed of what statistics of a generation batch draw, are those that the shard's
    header has of the run's batch; without them the belief is the accuracy of these responses. Other state that a run
    keeps between batches is in its initial state, and there is no replay. There is no KL term. A random selector draws
    again, and statistics of a generation batch are those of these responses.

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
    tokens, note = _tokens(shard, config, segments)
    used = algorithm(config)
    if "hidden" in used.needs:
        raise ValueError("it reads hidden states, which responses do not hold")
    if "teacher" in used.needs and tokens.teacher_logp_t is None:
        what = "it reads a teacher's log-probabilities, which these responses lack"
        raise ValueError(f"{what}: explain a run that had a teacher and --log_credit, or give teacher_logprobs")
    if used.carries_loss and config.beta != 0.0 and tokens.ref_logp_t is None:
        note = f"{note}; the policy is used as reference policy".removeprefix("; ")
        tokens = replace(tokens, ref_logp_t=tokens.logp_t.detach())
    rewards = {"rewards": rewards_of(shard.responses), "reward_columns": _by_function(shard.responses)}
    rows = rewards | {"group_ids": torch.tensor([r["group"] for r in shard.responses]), "columns": shard.responses}
    if (seed := shard.header.get("batch_seed")) is not None:
        rows["generator"] = torch.Generator().manual_seed(seed)
    tokens = with_statistics(used, config, tokens, **rows)
    credit = Contract(used, max=lambda n: n).credit(tokens, config)
    reached_t = _reached(config, tokens)
    columns, horizon = _columns(config, tokens, credit, carries_loss=used.carries_loss, reached_t=reached_t)
    responses = []
    for i, response in enumerate(shard.responses):
        n = len(response["tokens"])
        lists = {column: None if x is None else x[i, :n].tolist() for column, x in columns.items()}
        responses.append({**response, **lists, "kl_credit": None, "segment_values": None})
    header = {**shard.header, "algorithm": name, "beta": 0.0, "trainer": None, "settings": settings_of(config)}
    header["clip"] = [1 - config.clip_range[0], config.clip_range[1] - 1]
    header["trace_decay"] = config.trace_decay if config.has_trace else None
    divided_by = divisors(config, tokens).expand(len(responses), 1)[:, 0].tolist()
    return Explained(name, Shard(header, {}, responses), horizon, note, divided_by)


def _tokens(shard: Shard, config: CreditConfig, segments: Segments | None) -> tuple[Tokens, str]:
    """A micro-batch of the responses in float64, and a note on the difficulty weight."""
    responses = shard.responses
    old_t, logp_t, entropy_t = (_column(responses, n) for n in ("old_logprobs", "trainer_logprobs", "entropy"))
    logp_t = old_t if logp_t is None else logp_t
    old_t = logp_t if old_t is None else old_t
    by_entropy = config.selector not in ("none", "random") or config.top_entropy_quantile < 1.0
    for is_missing, what in (
        (config.td_upper_bound, "td_upper_bound=True needs π(EOS) at each token, which responses do not hold"),
        (logp_t is None, "these responses have no log-probabilities: give --model"),
        (by_entropy and entropy_t is None, "it selects by their entropy, which these responses lack: give --model"),
        (config.selector == "entropy_reference", "it selects by the reference model's entropy, which is not logged"),
        (config.returns != "outcome", "it reads rewards along responses, which are not known here"),
    ):
        if is_missing:
            raise ValueError(what)
    written_t = _column(responses, "loss_mask", default=1).long()
    mask_t, note, weighing = written_t, "", {}
    if config.mask_truncated_completions:
        mask_t = mask_t * torch.tensor([[not response.get("truncated")] for response in responses])
    advantages, segment_ids = segments or (_advantages(config, responses, written_t), mask_t.long() - 1)
    if config.difficulty != "none":
        weighing["p_hat"], weighing["prior"] = _difficulty(config, shard)
        note = f"belief {weighing['prior']:.2f}"
    parts = {"old_logp_t": old_t, "segment_ids": segment_ids, "mask_t": mask_t}
    ordered = in_batch(config, advantages, **weighing, **parts)
    tokens = Tokens(
        logp_t=logp_t.clone().requires_grad_(),
        old_logp_t=old_t,
        ref_logp_t=_column(responses, "ref_logprobs"),
        sampling_logp_t=_column(responses, "inference_logprobs"),
        teacher_logp_t=_column(responses, "teacher_logprobs", unknown=math.nan),
        entropy_t=torch.zeros_like(old_t) if entropy_t is None else entropy_t,
        advantages=ordered.advantages,
        token_ids=_column(responses, "token_ids", default=0).long(),
        step=max(0, (shard.header.get("step") or 1) - 1),
        seed=config.seed,
        segment_ids=segment_ids,
        turn_ids=_turns(responses, written_t),
        policy_mask_t=ordered.kept_t.to(logp_t.dtype),
        mask_t=mask_t.to(logp_t.dtype),
    )
    return in_loss(config, tokens), note


def _turns(responses: list[dict[str, Any]], written_t: torch.Tensor) -> torch.Tensor:
    """Numbers of turns (B, T): those of the responses, which tell apart turns without a token between them."""
    known = [response.get("turn_ids") for response in responses]
    if any(x is None for x in known):
        return turn_numbers(written_t)
    return pad_sequence([torch.tensor(x) for x in known], batch_first=True, padding_value=-1)


def _reached(config: CreditConfig, tokens: Tokens) -> torch.Tensor | None:
    """The tokens that TRL's `top_entropy_quantile` keeps, shape (B, T): those above a quantile of all responses."""
    if config.top_entropy_quantile == 1.0:
        return None
    inside = tokens.mask_t.bool()
    return inside & (tokens.entropy_t >= tokens.entropy_t[inside].quantile(1 - config.top_entropy_quantile))


def _columns(
    config: CreditConfig, tokens: Tokens, credit: Credit, *, carries_loss: bool, reached_t: torch.Tensor | None
) -> tuple[dict[str, torch.Tensor | None], float | None]:
    """The columns of a rollout log, each (B, T), and the effective horizon in tokens."""
    of_response = config.importance == "sequence" and credit.log_weight is None
    columns, horizon = columns_of(config, credit, tokens, carries_loss=carries_loss, reached_t=reached_t), None
    if not of_response and config.importance != "turn":
        size_t = torch.where(columns["policy_mask"], columns["advantages"].abs(), 0.0)
        log_weight_t = log_weight_of(config, credit, tokens)
        moved, total = travelled(log_weight_t, logp_t=tokens.logp_t, coefficient_t=size_t)
        horizon = (moved / total).item() if total > 0 else 0.0
    columns["segment_ids"] = tokens.segment_ids if config.rollouts != "none" else None
    columns["credit"] = policy_credit(config, tokens, credit, factors=[] if reached_t is None else [reached_t])
    return {name: x.int() if x is not None and x.dtype == torch.bool else x for name, x in columns.items()}, horizon


def as_trained(shard: Shard) -> Explained | None:
    """The credit that the run itself gave, or `None` if it is not logged for all responses."""
    needed = ("credit", "loss_mask", "policy_mask")
    if shard.trees or any(response.get(name) is None for response in shard.responses for name in needed):
        return None
    name = f"{shard.header.get('algorithm') or 'the run'}, as trained"
    return Explained(name, Shard({**shard.header, "algorithm": name}, {}, shard.responses), math.nan)


def groups_of(responses: list[dict[str, Any]]) -> list[list[int]]:
    """The indices of each prompt's responses."""
    places: dict[int, list[int]] = {}
    for i, response in enumerate(responses):
        places.setdefault(response["group"], []).append(i)
    return list(places.values())


def _column(
    responses: list[dict[str, Any]], name: str, *, default: float | None = None, unknown: float = 0.0
) -> torch.Tensor | None:
    """A field of all responses, (B, T), float64, padded with 0, `unknown` where null; `None` if a response lacks it
    without a default."""
    lists = [response.get(name) for response in responses]
    if default is not None:
        lists = [x or [default] * len(response["tokens"]) for x, response in zip(lists, responses, strict=True)]
    if any(x is None for x in lists):
        return None
    return pad_sequence([_float64(x) for x in lists], batch_first=True).nan_to_num(unknown)


def _float64(values: Iterable[float | None]) -> torch.Tensor:
    return torch.tensor([math.nan if x is None else x for x in values], dtype=torch.float64)


def rewards_of(responses: list[dict[str, Any]]) -> torch.Tensor:
    """Total rewards (B,), NaN for a response without one."""
    return _float64(response.get("reward") for response in responses)


def _by_function(responses: list[dict[str, Any]]) -> torch.Tensor | None:
    """Rewards by function, shape (B, F); `None` if they are not known of all responses."""
    rows = [response.get("rewards") or {} for response in responses]
    # a row of another file may hold anything under this name
    if not all(isinstance(row, dict) and row and row.keys() == rows[0].keys() for row in rows):
        return None
    return torch.stack([_float64(row.values()) for row in rows])


def _advantages(config: CreditConfig, responses: list[dict[str, Any]], mask_t: torch.Tensor) -> torch.Tensor:
    """Advantages (B,) of whole responses by the configured baseline; TRL's own in closed form."""
    rewards, lengths = rewards_of(responses), mask_t.sum(-1)
    advantages = torch.zeros_like(rewards)
    for places in groups_of(responses):
        sizes = {"num_generations": len(places)}
        if config.baseline == "group":
            of_group = group_advantage(rewards[places], scale=config.scale_rewards == "group", **sizes)
        else:
            of_group = outcome_advantages(config, rewards[places], lengths=lengths[places], **sizes)
        advantages[places] = of_group.double()
    if config.baseline == "group" and config.scale_rewards == "batch":
        advantages = advantages / (rewards[~rewards.isnan()].std() + 1e-4)
    return advantages


def _difficulty(config: CreditConfig, shard: Shard) -> tuple[torch.Tensor, float]:
    """p̂ of each response's prompt, shape (B,), and the belief: the run's, or the accuracy of these responses."""
    low, high = config.reward_range
    correct = rewards_of(shard.responses)
    if (by_function := _by_function(shard.responses)) is not None:  # as in training
        names = [*shard.responses[0]["rewards"]]
        chosen = by_function[:, correct_columns(config, names, weights=[1.0] * len(names))]
        correct = chosen.nansum(1).masked_fill(chosen.isnan().all(1), torch.nan)
    accuracy = (correct - low) / (high - low)
    if not (accuracy.isnan() | ((accuracy >= 0) & (accuracy <= 1))).all():
        raise ValueError(f"it weights prompts by their accuracy, and rewards lie outside of {low:g} to {high:g}")
    p_hat = torch.zeros_like(accuracy)
    for places in groups_of(shard.responses):
        p_hat[places] = accuracy[places].nanmean()
    prior = config.difficulty_threshold if config.difficulty == "fixed" else shard.header.get("difficulty_belief")
    prior = accuracy.nanmean().item() if prior is None else prior
    return p_hat.nan_to_num(prior), prior
