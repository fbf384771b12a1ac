"""What one update is worth on the bed: progress per update, the filler's share of gradient noise, the last decision."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from trl_credit.credit.selection import select_high_entropy

from .algorithms import ALGORITHMS, Advantages, kept_tokens, selector, token_gradient
from .batch import Batch, draw, sample
from .bed import SETTINGS, Bed, Setting, V, make_bed
from .teachers import TEACHERS, share_on_forks, style_share, with_teacher
from .training import ROLLOUTS, batch_gradient


SITUATIONS = {
    "A": SETTINGS["A"],
    "C": SETTINGS["C"],
    "C, forks at 0.95": replace(SETTINGS["C"], right=(0.95,) * len(SETTINGS["C"].right)),
    "E": SETTINGS["E"],
}
COMPARED = ("s_trace", "p_trace", "lambda", "top_20", "vine_ppo", "spo_chain", "oracle")
# μ has not fallen at the start, so "rlsd_60" is "rlsd"
TAUGHT = tuple(name for name, one in ALGORITHMS.items() if one.teacher is not None and "rlsd_60" not in name)


def noise_share(bed: Bed) -> torch.Tensor:
    """φ of each run at the start: the filler's share of Σ_t (1 − Σ_a π_a²), which is E|score|², shape (runs,)."""
    noise = _noise(bed).sum(1)  # of each position, over prompts
    return 1 - noise[:, bed.setting.forks].sum(-1) / noise.sum(-1)


def logged_share(bed: Bed) -> torch.Tensor:
    """What `credit/noise_share` of S-trace estimates at the start: the share of Σ_t (1 − Σ_a π_a²) outside of the fifth
    of each response with the highest entropy, shape (runs,)."""
    log_probs, noise = _initial(bed), _noise(bed)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    selected = select_high_entropy(entropy.flatten(0, 1), rate=0.2, mask_t=torch.ones_like(entropy.flatten(0, 1)))
    return (noise * (1 - selected.view_as(noise))).sum((1, 2)) / noise.sum((1, 2))


def _initial(bed: Bed) -> torch.Tensor:
    return bed.log_probs(torch.zeros(bed.runs, bed.features.size(-1), V, dtype=torch.float64))


def _noise(bed: Bed) -> torch.Tensor:
    """1 − Σ_a π_a² of each prompt's positions at the start, shape (runs, P, T)."""
    return 1 - _initial(bed).exp().square().sum(-1)


def forks_and_style(bed: Bed) -> dict[str, Any]:
    """The forks' share of |d| of each teacher, and the mean probability of the unusual action, at the start, by run."""
    log_probs = _initial(bed)
    shares = {about: share_on_forks(teacher, bed, log_probs) for about, teacher in TEACHERS.items()}
    return {"forks": shares, "style": style_share(bed, log_probs)}


def relative_progress(
    setting: Setting, *, seeds: list[int], batches: int, names: tuple[str, ...] = COMPARED
) -> dict[str, list[float]]:
    """(E⟨∇J, u⟩)² / E|u|² of the update direction u at the start, over that of GRPO, for each algorithm and seed.

    It is negative where E⟨∇J, u⟩ is.

    To second order this is the largest rise of J by one step along u, if the curvature is the same in all directions.
    """
    bed = make_bed(setting, seeds)
    log_probs = _initial(bed)
    ascent = bed.solve_rate_gradient(log_probs)
    along = {name: torch.zeros(bed.runs, dtype=torch.float64) for name in ("grpo", *names)}
    power = {name: torch.zeros(bed.runs, dtype=torch.float64) for name in along}
    for batch, uniform_t in _batches(bed, log_probs, seeds, batches):
        for name in along:
            algorithm = ALGORITHMS[name]
            advantages = Advantages(algorithm, setting, runs=bed.runs)(batch)
            kept_t, own = kept_tokens(algorithm, setting, batch), selector(algorithm, batch.entropy_t, uniform_t)
            scored = with_teacher(algorithm.teacher, bed, log_probs, batch)
            gradient = batch_gradient(algorithm, bed, scored, log_probs, advantages, kept_t, own)
            along[name] += (gradient * ascent).sum((1, 2))
            power[name] += gradient.square().sum((1, 2))
    value = {name: along[name] * along[name].abs() / power[name] for name in along}
    return {name: (value[name] / value["grpo"]).tolist() for name in names}


def _batches(bed: Bed, log_probs: torch.Tensor, seeds: list[int], count: int) -> Iterator[tuple[Batch, torch.Tensor]]:
    generators = [torch.Generator().manual_seed(20_000 + seed) for seed in seeds]
    for _ in range(count):
        draws = draw(generators, copies=1, length=bed.setting.length, rollouts=ROLLOUTS)
        yield sample(bed, log_probs, draws), draws.selection


def decision_credit(setting: Setting, *, seeds: list[int]) -> dict[str, list[float]]:
    """|credit| of each fork over the mean of the four forks, for S-trace, P-trace and GRPO-λ's trace at ρ = 1.

    Credit with traces is the gradient with respect to ℓ_k for advantages of 1.
    """
    bed = make_bed(setting, seeds)
    batch, uniform_t = next(_batches(bed, _initial(bed), seeds, 1))
    ones = torch.ones_like(batch.old_logp_t)
    gradient = partial(token_gradient, logp_t=batch.old_logp_t, advantages=ones[:, :1], kept_t=ones)
    by_name = {}
    for name in ("grpo", "s_trace", "p_trace", "lambda"):
        credit = gradient(ALGORITHMS[name].config, batch)[:, setting.forks].mean(0)
        by_name[name] = (credit / credit.mean()).tolist()
    return by_name
