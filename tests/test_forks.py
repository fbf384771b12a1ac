"""The bed of `benchmarks/forks.py`: exact values, the package's credit on it, and the page's tables."""

import itertools
import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from fork_bed.algorithms import ALGORITHMS, Advantages, kept_tokens, token_gradient
from fork_bed.batch import Batch, draw, sample
from fork_bed.bed import Bed, G, K, P, Setting, V, make_bed
from fork_bed.expected import cells
from fork_bed.store import read
from fork_bed.teachers import with_teacher
from fork_bed.training import batch_gradient
from forks import STORE


SMALL = Setting(filler=2, sure=0.9, tail=3, about="small", uniform=0.3)
DOUBLE = torch.float64


@cache
def moved() -> tuple[Bed, torch.Tensor, Batch]:
    """A bed of two runs, weights away from 0, and a batch of its policy."""
    bed = make_bed(SMALL, [0, 1])
    weights = 0.5 * torch.randn(2, bed.features.size(-1), V, generator=torch.Generator().manual_seed(7), dtype=DOUBLE)
    draws = draw([torch.Generator().manual_seed(s) for s in (3, 4)], copies=1, length=SMALL.length, rollouts=9)
    return bed, weights, sample(bed, bed.log_probs(weights), draws)


def enumerated(bed: Bed, probs: torch.Tensor, run: int, prompt: int, known: list[int]) -> float:
    """Expected reward after the first forks took the actions `known`, as the sum over all actions of the others."""
    total = 0.0
    for rest in itertools.product(range(V), repeat=K - len(known)):
        actions = [*known, *rest]
        chance = math.prod(float(probs[run, prompt, f, a]) for f, a in zip(bed.setting.forks, actions, strict=True))
        reached = math.prod(float(probs[run, prompt, bed.setting.forks[k], a]) for k, a in enumerate(known))
        total += chance / reached * (actions == bed.right[run, prompt].tolist())
    return total


def test_the_solve_rate_and_every_prefix_value_are_sums_over_all_responses() -> None:
    bed, weights, batch = moved()
    log_probs = bed.log_probs(weights)
    rates, values = bed.solve_rates(log_probs), batch.value_t.view(2, P, G, -1)
    for run, prompt in ((0, 0), (1, 5)):
        assert float(rates[run, prompt]) == pytest.approx(enumerated(bed, log_probs.exp(), run, prompt, []), abs=1e-12)
        for response, token in itertools.product(range(G), range(SMALL.length)):
            passed = [f for f in SMALL.forks.tolist() if f < token]
            known = [int(batch.actions[run, prompt, response, f]) for f in passed]
            expected = enumerated(bed, log_probs.exp(), run, prompt, known)
            assert float(values[run, prompt, response, token]) == pytest.approx(expected, abs=1e-12)


def test_the_gradient_of_a_batch_is_that_of_autograd() -> None:
    """Credit times the gradient of log π, by autograd through the policy."""
    bed, weights, batch = moved()
    algorithm = ALGORITHMS["s_trace"]
    advantages, kept = Advantages(algorithm, SMALL, runs=2)(batch), kept_tokens(algorithm, SMALL, batch)
    gradient = batch_gradient(algorithm, bed, batch, bed.log_probs(weights), advantages, kept)
    credit = credit_of("s_trace")
    weights = weights.clone().requires_grad_()
    logp = bed.log_probs(weights).unsqueeze(2).expand(-1, -1, G, -1, -1).gather(-1, batch.actions[..., None])
    (logp.flatten() * credit.flatten()).sum().backward()
    torch.testing.assert_close(gradient, weights.grad / (P * G), rtol=0, atol=1e-13)


def credit_of(name: str) -> torch.Tensor:
    """The gradient by each log-probability at ρ = 1, through `assign_credit`, shape (rows, T)."""
    _, _, batch = moved()
    algorithm = ALGORITHMS[name]
    advantages, kept = Advantages(algorithm, SMALL, runs=2)(batch), kept_tokens(algorithm, SMALL, batch)
    return token_gradient(algorithm.config, batch, logp_t=batch.old_logp_t, advantages=advantages, kept_t=kept)


def by_hand(name: str, selected: torch.Tensor) -> torch.Tensor:
    """Σ_t ∂W_t/∂ℓ_k at ρ = 1 by its definition, shape (rows, T)."""
    decay = 0.99 if name in ("lambda", "lambda_floor", "s_trace_99") else 0.9
    later = torch.tensor([sum(decay**n for n in range(1, SMALL.length - k)) for k in range(SMALL.length)]).double()
    if name in ("p_trace", "lambda", "lambda_floor"):
        return 1 + later.expand_as(selected)
    return 1 + selected * later if name in ("s_trace", "s_trace_99") else torch.ones_like(selected)


NAMES = ["grpo", "s_trace", "s_trace_99", "p_trace", "lambda", "floor", "lambda_floor", "dr_grpo", "top_20", "oracle"]


@pytest.mark.parametrize("name", NAMES)
def test_credit_agrees_with_assign_credit(name: str) -> None:
    """The closed form of each algorithm at ρ = 1 against autograd through `assign_credit`, to 1e-7."""
    _, _, batch = moved()
    rewards = batch.rewards.view(-1, G)
    centred = rewards - rewards.mean(1, keepdim=True)
    advantages = centred if name == "dr_grpo" else centred / (rewards.std(1, keepdim=True) + 1e-4)
    if "floor" in name:
        advantages = advantages.clamp(min=-0.1)
    length = SMALL.length
    count = math.ceil(0.2 * length)
    places = batch.entropy_t.argsort(dim=1, descending=True, stable=True)[:, :count]
    selected = torch.zeros_like(batch.old_logp_t).scatter_(1, places, 1.0)
    kept = torch.ones_like(batch.old_logp_t)
    if name == "oracle":
        kept = torch.zeros_like(kept)
        kept[:, SMALL.forks] = 1
    if name == "top_20":
        for run in (0, 1):
            own = batch.entropy_t.view(2, -1)[run]
            kept.view(2, -1)[run] = (own >= own.quantile(0.8)).double()
    expected = by_hand(name, selected) * advantages.view(-1, 1) * kept / length
    torch.testing.assert_close(credit_of(name), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["vine_ppo", "spo_chain"])
def test_segment_credit_is_the_rise_of_the_rollouts_value(name: str) -> None:
    _, _, batch = moved()
    expected = torch.zeros_like(batch.old_logp_t)
    for row in range(len(expected)):
        probs = batch.old_logp_t[row].exp()
        if name == "vine_ppo":
            begins = SMALL.step_starts.tolist()
        else:
            begins = [t for t in range(SMALL.length - 1) if probs[t] < 0.9]
            begins = [0, *begins[1:]] if begins else [0]  # the first segment begins with the response
        ends = [float(batch.rollout_t[row, b]) for b in begins[1:]] + [float(batch.rewards[row])]
        kept = (probs < 0.9) if name == "spo_chain" else torch.ones_like(probs)
        for begin, stop, end in zip(begins, [*begins[1:], SMALL.length], ends, strict=True):
            expected[row, begin:stop] = end - float(batch.rollout_t[row, begin])
        expected[row] *= kept / kept.sum().clamp(min=1)
    torch.testing.assert_close(credit_of(name), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", [name for name, algorithm in ALGORITHMS.items() if algorithm.teacher is not None])
def test_credit_from_a_teacher_is_that_of_its_definition(name: str) -> None:
    """d by raised logits and the formulas of RLSD and OPD by hand, in batch 30 of a run."""
    bed, weights, batch = moved()
    algorithm, log_probs = ALGORITHMS[name], bed.log_probs(weights)
    batch = replace(with_teacher(algorithm.teacher, bed, log_probs, batch), step=30)
    advantages = Advantages(algorithm, SMALL, runs=2)(batch)
    options = {"kept_t": torch.ones_like(batch.old_logp_t), "assign": algorithm.assign}
    credit = token_gradient(algorithm.config, batch, logp_t=batch.old_logp_t, advantages=advantages, **options)
    forks, probs, other = SMALL.forks.tolist(), log_probs.exp(), bed.other
    for *row, t in itertools.product(*map(range, batch.actions.shape)):
        at, action, a = (row[0], row[1], t), int(batch.actions[*row, t]), float(advantages.view(2, P, G)[*row])
        raised = [float("style" in name and x == int(other[at])) for x in range(V)]
        if t in forks:
            told = other[at] if "wrong" in name else bed.right[row[0], row[1], forks.index(t)]
            raised = [3.0 * (x == int(told)) for x in range(V)]
        d = raised[action] - math.log(sum(float(probs[at][x]) * math.exp(raised[x]) for x in range(V)))
        if name.startswith("rlsd"):
            share, clip = (1.0, 0.9) if "wide" in name else (0.25 if "60" in name else 0.5, 0.2)
            a *= 1 - share + share * min(max(math.exp(math.copysign(1.0, a) * d), 1 - clip), 1 + clip)
        else:
            a = a * ("alone" not in name) + (0.1 if "tenth" in name else 1.0) * d
        assert float(credit.view_as(batch.actions)[*row, t]) == pytest.approx(a / SMALL.length, abs=1e-7)


def test_another_implementation_finds_the_same() -> None:
    """All 44 cells agree within both intervals today, of which one or two might not by chance."""
    results = cells(read(STORE))
    assert len(results) == 44 and all(cell.agrees for cell in results)
