"""How well credit is aimed, and what a batch of it is worth: estimates without bias, and their jackknife.

ΔV_t = V_{t+1} − V_t is the true advantage of token t, with V_t = E[R | y_<t] and V_T = R. The measures are ours. On
docs/results/true_credit.md they are compared with what runs learned.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..statistics import LEVEL


class Estimate(NamedTuple):
    """A value, its 95 % interval, and the two-sided p of a t test against 0; NaN where it cannot be estimated."""

    value: float
    low: float
    high: float
    p: float


def aim_sums(tokens: pd.DataFrame, credit: np.ndarray, *, floor: float) -> np.ndarray:
    """For each prompt and algorithm the sums that [`aims`] divides, shape (prompts, algorithms, 8).

    Args:
        tokens (`pd.DataFrame`):
            For each of N tokens its `prompt` from 0 on, `weight` (w = 1 − Σ_a p_a², divided by the probability with
            which the token was chosen), `gain` (ΔV̂, unit of the reward), its `variance`, and `half_1` and `half_2`:
            ΔV̂ from each half of the continuations.
        credit (`np.ndarray`):
            Credit c of each token by algorithm, shape (algorithms, N).
        floor (`float`):
            The least standard deviation of ΔV̂ from one half. A token decides if that ΔV̂ is above two of them.
    """
    w, gain, variance, first, second = tokens[["weight", "gain", "variance", "half_1", "half_2"]].to_numpy().T
    square, size = gain**2 - variance, np.abs(credit)  # the noise of ΔV̂ adds its variance to its square
    # the first half of the continuations says which tokens decide and in which direction, the other one by how much
    decides = w * second * (np.abs(first) > 2 * np.sqrt(2 * variance + floor**2))
    of_credit = w * credit * gain, w * credit**2, w * size * square, w * size, decides * np.sign(credit)
    parts = np.stack(np.broadcast_arrays(*of_credit, decides * np.sign(first), w * square, w))
    prompts = tokens["prompt"].to_numpy()[None] == np.arange(tokens["prompt"].max() + 1)[:, None]
    return np.einsum("pn,kan->pak", prompts, parts)


def aims(sums: np.ndarray) -> np.ndarray:
    """Aim, focus and sign, shape (…, algorithms, 3), from sums over tokens (…, algorithms, 8).

    * aim = Σ w c ΔV / √(Σ w c² · Σ w ΔV²), a cosine;
    * focus = (Σ w |c| ΔV² / Σ w |c|) / (Σ w ΔV² / Σ w): how much more the tokens with credit decide than all tokens
      do. It is 1 for credit of one size;
    * sign = the share of w |ΔV| on deciding tokens where c has the sign of ΔV. No credit counts as half.
    """
    along, own, sized, size, signed, decided, square, weight = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        focus = sized / size / (square / weight)
        return np.stack([along / np.sqrt(own * square), focus, (1 + signed / decided) / 2], -1)


def progress_terms(pp: np.ndarray, pg: np.ndarray, gg: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bias, signal and progress of an algorithm, shape (3,), and the same without each batch, shape (B, 3).

    For p_b, the plain estimator's gradient of batch b, and g_b, the algorithm's, with ⟨u, v⟩ the mean of u_b · v_c over
    different batches, an estimate of E[u] · E[v] without bias:

    * bias = ⟨p, g⟩ / √(⟨p, p⟩⟨g, g⟩), a cosine;
    * signal = ⟨g, g⟩ / mean |g_b|²;
    * progress = ⟨p, g⟩ |⟨p, g⟩| / (⟨p, p⟩ · mean |g_b|²): the gain of the best step along a batch's gradient, relative
      to the best step along the true one, in a quadratic model with the same curvature in all directions.

    Args:
        pp, pg, gg (`np.ndarray`):
            Products p_b · p_c, p_b · g_c and g_b · g_c, shape (B, B).
    """
    size, norms = len(pp), gg.diagonal()
    off = [gram.sum() - gram.trace() for gram in (pg, pp, gg)]
    each = [gram.sum(0) + gram.sum(1) - 2 * gram.diagonal() for gram in (pg, pp, gg)]

    def terms(sums: list, count: int, square: np.ndarray) -> np.ndarray:
        along, truth, own = (np.asarray(x) / (count * (count - 1)) for x in sums)
        with np.errstate(divide="ignore", invalid="ignore"):
            truth, mean = np.where(truth > 0, truth, np.nan), square / count
            bias = along / np.sqrt(truth * np.where(own > 0, own, np.nan))
            return np.stack([bias, own / mean, along * np.abs(along) / truth / mean], -1)

    without = terms([x - y for x, y in zip(off, each, strict=True)], size - 1, norms.sum() - norms)
    return terms(off, size, norms.sum()), without


def best_progress(
    pp: np.ndarray,
    products: np.ndarray,
    *,
    prompt: np.ndarray,
    signal: np.ndarray,
    share: float,
    prompts: float,
    generations: float,
) -> float:
    """Progress of ΔV as credit, from g_i = Σ_t ΔV_t s_t of measured responses. With noise it may lie outside of 0 to 1.

    E|g|² of a batch of Q prompts with G responses is |g*|² + (E_x|∇V(x)|² − |g*|²)/Q + (E|g_i|² − E_x|∇V(x)|²)/(QG).
    E|g_i|² and E_x|∇V(x)|² are means of g_i · g_j, of a response with itself and of two to one prompt.

    Args:
        pp (`np.ndarray`):
            As in [`progress_terms`], of an estimator p of g* itself.
        products (`np.ndarray`):
            g_i · g_j, with ΔV̂ from one half of the continuations in g_i and from the other in g_j, shape (R, R).
        prompt, signal (`np.ndarray`):
            Number of each response's prompt, and whether that prompt has signal, shape (R,).
        share (`float`):
            Share of the prompts with signal. If none of the others is measured, they count as 0.
        prompts, generations (`float`):
            Q and G.
    """
    truth, own = (pp.sum() - pp.trace()) / (len(pp) * (len(pp) - 1)), np.eye(len(prompt), dtype=bool)
    squares = []
    for pairs in (own, (prompt[:, None] == prompt) & ~own):
        strata = [(part, pairs & (signal == has)[:, None]) for has, part in ((True, share), (False, 1 - share))]
        squares.append(sum(part * products[at].mean() for part, at in strata if at.any()))
    of_response, of_prompt = squares
    square = truth + (of_prompt - truth) / prompts + (of_response - of_prompt) / (prompts * generations)
    return truth / square if square > 0 else math.nan


def best_estimate(
    pp: np.ndarray, products: np.ndarray, *, prompt: np.ndarray, signal: np.ndarray, **sizes: float
) -> Estimate:
    """[`best_progress`] by the jackknife, over the batches of `pp` and over the prompts of `products`. A few responses
    with rare tokens can have most of E|g_i|²: then the interval is wide. NaN where noise hides it."""
    value = best_progress(pp, products, prompt=prompt, signal=signal, **sizes)
    value = value if 0 < value < 1 else math.nan
    every = np.arange(len(pp)), np.arange(len(prompt))
    kept = [(every[0] != b, every[1] >= 0) for b in every[0]], [(every[0] >= 0, prompt != q) for q in np.unique(prompt)]
    parts = []
    for units in kept:
        of = [
            best_progress(pp[b][:, b], products[r][:, r], prompt=prompt[r], signal=signal[r], **sizes) for b, r in units
        ]
        parts.append(jackknife(np.array([value]), np.array(of)[:, None])[0])
    value, half = sum(x.value for x in parts) - value, math.hypot(*(x.high - x.value for x in parts))
    return Estimate(value, value - half, value + half, math.nan)


def jackknife(value: np.ndarray, without: np.ndarray) -> list[Estimate]:
    """Estimates for values, shape (K,), from the values without each of n units, shape (n, K): the jackknife's, without
    the bias of order 1/n that a ratio of means has, and t intervals with n − 1 degrees of freedom."""
    from scipy import stats  # takes more than a second

    n = len(without)
    value = n * value - (n - 1) * without.mean(0)
    error = np.sqrt((n - 1) / n * ((without - without.mean(0)) ** 2).sum(0))
    half = stats.t.ppf((1 + LEVEL) / 2, n - 1) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stats.t.sf(np.abs(value) / error, n - 1)
    return [Estimate(*map(float, x)) for x in zip(value, value - half, value + half, p, strict=True)]


def compare(
    tokens: pd.DataFrame, credit: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], *, floor: float
) -> dict[str, dict[str, Estimate]]:
    """All measures of each algorithm, and the differences of aim and progress from the first one's.

    Args:
        tokens, floor:
            As in [`aim_sums`].
        credit (`dict[str, np.ndarray]`):
            Credit of the tokens by algorithm, shape (N,).
        gradients (`dict[str, np.ndarray]`):
            Of each algorithm p_b · p_c, p_b · g_c and g_b · g_c, see [`progress_terms`], shape (3, B, B). Or empty.
    """
    sums = aim_sums(tokens, np.stack(list(credit.values())), floor=floor)
    value, without = aims(sums.sum(0)), aims(sums.sum(0) - sums)
    terms = [progress_terms(*gradients[name]) for name in credit if gradients]
    scores: dict[str, dict[str, Estimate]] = {}
    for k, name in enumerate(credit):
        of = dict(zip(("aim", "focus", "sign"), jackknife(value[k], without[:, k]), strict=True))
        of["aim difference"] = jackknife(value[k] - value[0], without[:, k] - without[:, 0])[0]
        if terms:
            of |= dict(zip(("bias", "signal", "progress"), jackknife(*terms[k]), strict=True))
            of["progress difference"] = jackknife(*(x - y for x, y in zip(terms[k], terms[0], strict=True)))[2]
        scores[name] = of
    return scores
