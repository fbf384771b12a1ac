"""Theorems of the papers as functions, for figures, the choice of a group size, and tests of the package.

`p` is the probability that the policy solves a prompt, R the number of right ones among G independent responses,
p̂ = R/G, and S = {1 ≤ R ≤ G−1} the event that the group has both kinds, so not all of its advantages are zero.
"""

import math

import torch

from trl_credit.credit.difficulty import difficulty_weight


# p + ε and k/G are rounded: 0.7 + 0.1 < 0.8 in float64, and a strict > must not depend on that
_TIE = 1e-12
# for pieces without a jump, at most 1/G wide: 24 nodes agree with 96 to 1e-14 for G = 8 … 256
_NODES = 48


def group_bias(p: torch.Tensor | float, *, num_generations: int) -> torch.Tensor:
    """E[p̂ | S] − p = (p − p^G) / (1 − p^G − (1−p)^G) − p: the bias of a group's mean as a baseline.

    HA-DW (arXiv 2601.08521), Theorem 1. The bias of the advantage r − p̂ is its negative: advantages are too small for
    hard prompts (p < ½) and too large for easy ones. Odd around p = ½.

    Args:
        p (`torch.Tensor` or `float`):
            Any shape, in [0, 1]. At 0 and 1, where S cannot happen, the value is the limit (±1/G).
        num_generations (`int`):
            G ≥ 2.

    Returns:
        `torch.Tensor`: the shape of `p`, float64, on the CPU.

    Raises:
        ValueError: `p` outside [0, 1] or G < 2.
    """
    p = _checked_probability(p, num_generations)
    # numerator and denominator divided by p(1−p): no difference of nearly equal numbers is left
    tail = (1.0 - p).pow(num_generations - 1) - p.pow(num_generations - 1)
    return tail / _mixed_group_weights(p, num_generations).sum(-1)


def overestimate_probability(p: torch.Tensor | float, *, num_generations: int, epsilon: float = 0.0) -> torch.Tensor:
    """P(p̂ − p > ε | S) = Σ_{k/G > p+ε, 1≤k≤G−1} C(G,k) p^k (1−p)^{G−k} / (1 − p^G − (1−p)^G).

    HA-DW (arXiv 2601.08521), Theorem 2. The probability that the baseline is too high, hence the advantage too small,
    by more than ε. That it is too low by more than ε has probability `overestimate_probability(1 - p, ...)`.

    Args:
        p (`torch.Tensor` or `float`):
            Any shape, in [0, 1]; at 0 and 1 the value is that of the limit distribution p̂ = 1/G and p̂ = 1 − 1/G.
        num_generations (`int`):
            G ≥ 2.
        epsilon (`float`, *optional*, defaults to `0.0`):
            ε. A k/G equal to p + ε up to rounding (1e-12) does not count as larger.

    Returns:
        `torch.Tensor`: the shape of `p`, float64, on the CPU.

    Raises:
        ValueError: `p` outside [0, 1], G < 2, or ε not finite.
    """
    p = _checked_probability(p, num_generations)
    if not math.isfinite(epsilon):
        raise ValueError(f"epsilon must be finite, got {epsilon}")
    weights, p_hat = _mixed_groups(p, num_generations)
    above = p_hat > p.unsqueeze(-1) + (epsilon + _TIE)
    return (weights * above).sum(-1)


def mean_misestimate_probability(
    *, num_generations: int, low: float = 0.0, high: float = 0.5, epsilon: float = 0.0
) -> float:
    """1/(high−low) ∫ f(p) dp,  f = P(p̂ − p > ε | S) for p < ½, P(p − p̂ > ε | S) for p > ½.

    HA-DW (arXiv 2601.08521), Corollary 1: how often a group errs towards ½ if the solve rate p of the prompt is uniform
    on (low, high). It is a statement about this mean: for a single p the probability can be far lower.

    f jumps where p + ε passes a k/G, so the integral is cut there and each piece is done by Gauss-Legendre quadrature.

    Args:
        num_generations (`int`):
            G ≥ 2.
        low (`float`, *optional*, defaults to `0.0`), high (`float`, *optional*, defaults to `0.5`):
            The interval of p, 0 ≤ low < high ≤ 1.
        epsilon (`float`, *optional*, defaults to `0.0`):
            ε.

    Returns:
        `float`: a probability.

    Raises:
        ValueError: the interval is not as above, G < 2, or ε not finite.
    """
    if not 0.0 <= low < high <= 1.0:
        raise ValueError(f"the interval of p must have 0 <= low < high <= 1, got low={low}, high={high}")
    _checked_probability(low, num_generations)
    jumps = [k / num_generations - epsilon for k in range(1, num_generations)]
    # the side changes at 1/2, beyond which everything is mirrored
    cuts = {0.5, *(x for x in jumps if x < 0.5), *(1.0 - x for x in jumps if x < 0.5)}
    edges = torch.tensor([low, *sorted(x for x in cuts if low < x < high), high], dtype=torch.float64)
    nodes, weights = _gauss_legendre(_NODES)
    width = edges.diff().unsqueeze(-1)
    p = edges[:-1].unsqueeze(-1) + width * nodes
    # mirrored at 1/2, the other side asks the same question
    f = overestimate_probability(torch.minimum(p, 1.0 - p), num_generations=num_generations, epsilon=epsilon)
    return ((f * weights * width).sum() / (high - low)).item()


def smallest_misestimate_probability(*, num_generations: int) -> float:
    """min over p < ½ of P(p̂ − p > 0 | S): the bound of Corollary 1 for single prompts instead of their mean.

    The probability grows with p between two k/G and falls at each, so the minimum is at one of them (HA-DW, arXiv
    2601.08521, Theorem 2). By symmetry it is also the minimum of P(p − p̂ > 0 | S) over p > ½.

    Raises:
        ValueError: G < 2.
    """
    _checked_probability(0.0, num_generations)
    jumps = torch.tensor([k / num_generations for k in range(0, (num_generations + 1) // 2)], dtype=torch.float64)
    return overestimate_probability(jumps, num_generations=num_generations).min().item()


def sure_misestimate_range(*, num_generations: int) -> tuple[float, float]:
    """(1/G, 1 − 1/G): below the first every mixed group has p̂ > p, above the second every one has p̂ < p.

    HA-DW (arXiv 2601.08521), Corollary 3: a group with one right response already has p̂ = 1/G.

    Raises:
        ValueError: G < 2.
    """
    _checked_probability(0.0, num_generations)
    return 1.0 / num_generations, (num_generations - 1) / num_generations


def mixed_group_probability(p: torch.Tensor | float, *, num_generations: int) -> torch.Tensor:
    """P(S) = 1 − p^G − (1−p)^G: how often a group has both outcomes, hence any signal.

    Returns:
        `torch.Tensor`: the shape of `p`, float64, on the CPU.

    Raises:
        ValueError: `p` outside [0, 1] or G < 2.
    """
    p = _checked_probability(p, num_generations)
    return _mixed_group_weights(p, num_generations).sum(-1) * p * (1.0 - p)


def group_mean(p: torch.Tensor | float, *, num_generations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of p̂ given S: what G responses tell about a prompt's difficulty.

    HA-DW's Appendix E.1 (arXiv 2601.08521) measures the same comparison, with 8 and 128 rollouts.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: each the shape of `p`, float64, on the CPU.

    Raises:
        ValueError: `p` outside [0, 1] or G < 2.
    """
    weights, p_hat = _mixed_groups(_checked_probability(p, num_generations), num_generations)
    mean = (weights * p_hat).sum(-1)
    return mean, (weights * (p_hat - mean.unsqueeze(-1)).square()).sum(-1).sqrt()


def reweighted_bias(
    p: torch.Tensor | float,
    *,
    num_generations: int,
    prior: float,
    scale: float | None = None,
    response: str = "any",
) -> torch.Tensor:
    """E[Â Φ | S] − E[r − p | S] with Â = r − p̂: the bias that HA-DW's weight leaves, summed over all groups.

    HA-DW (arXiv 2601.08521), Eq. 29; our copy lacks its condition on λ_scale (Eq. 28). Φ is
    [`~trl_credit.credit.difficulty.difficulty_weight`]. As in the paper, advantages are not divided by the group's
    standard deviation.

    Args:
        p (`torch.Tensor` or `float`):
            Any shape, in [0, 1].
        num_generations (`int`):
            G ≥ 2.
        prior (`float`):
            C⁻ in [0, 1].
        scale (`float`, *optional*):
            λ_scale > 0; without it Φ = 1: the bias of the group-relative advantage.
        response (`str`, *optional*, defaults to `"any"`):
            `"any"`: the mean over all responses of a group; without `scale` it is Theorem 1, −`group_bias`. `"right"`
            and `"wrong"`: given that the response is right or wrong, which also shifts its group's p̂.

    Returns:
        `torch.Tensor`: the shape of `p`, float64, on the CPU. Positive: the advantage is too large.

    Raises:
        ValueError: an argument outside the values above.
    """
    target, plain, weighted = _expected_advantages(p, num_generations, prior, response)
    if scale is None:
        return plain - target
    if not (math.isfinite(scale) and scale > 0.0):
        raise ValueError(f"scale must be finite and above 0, got {scale}")
    return scale * weighted - target


def reducing_scales(
    p: torch.Tensor | float, *, num_generations: int, prior: float, response: str = "any"
) -> tuple[torch.Tensor, torch.Tensor]:
    """The open interval of λ_scale in which HA-DW's weight leaves a smaller bias than no weight: Eq. 29 solved for λ.

    Arguments and errors as in [`reweighted_bias`].

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: smallest and largest λ_scale ≥ 0, each the shape of `p`; equal if no
        λ_scale reduces the bias.
    """
    target, plain, weighted = _expected_advantages(p, num_generations, prior, response)
    bias = (plain - target).abs()
    # |λ w − t| < |b|: with w = 0 ("any", only at p̂ = C⁻) λ changes nothing
    ends = torch.stack([target - bias, target + bias]) / torch.where(weighted == 0, torch.inf, weighted)
    low, high = ends.clamp(min=0.0).sort(0).values
    return low, high


def trace_variance(*, decay: float, length: int, variance: float = 1.0, selective_rate: float = 1.0) -> float:
    """Var(Σ_{l=1}^{L} g^l z_l X_l) = ρ_sel σ² Σ_{l=1}^{L} g^{2l}: the variance that a trace adds.

    S-trace (arXiv 2605.05965), Proposition 4.2, for uncorrelated X_l of mean zero and variance σ², and
    z ~ Bernoulli(ρ_sel) independent of them. Because the mean is zero, the variance is the same if one z multiplies
    the whole sum, as in S-trace, where z belongs to the token that receives the credit.

    Args:
        decay (`float`):
            g = γλ in [0, 1].
        length (`int`):
            L ≥ 0, length of the trace in tokens.
        variance (`float`, *optional*, defaults to `1.0`):
            σ² ≥ 0.
        selective_rate (`float`, *optional*, defaults to `1.0`):
            ρ_sel in [0, 1]; 1 is P-trace.

    Returns:
        `float`: in the unit of `variance`.

    Raises:
        ValueError: an argument outside the values above.
    """
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"decay must be in [0, 1], got {decay}")
    if length < 0:
        raise ValueError(f"length must be at least 0 tokens, got {length}")
    if not (math.isfinite(variance) and variance >= 0.0):
        raise ValueError(f"variance must be finite and at least 0, got {variance}")
    if not 0.0 <= selective_rate <= 1.0:
        raise ValueError(f"selective_rate must be in [0, 1], got {selective_rate}")
    return selective_rate * variance * math.fsum(decay ** (2 * lag) for lag in range(1, length + 1))


def relative_progress(coefficient_t: torch.Tensor, *, signal_t: torch.Tensor, noise_t: torch.Tensor) -> torch.Tensor:
    """(Σ c_k a_k)² / Σ c_k² v_k over (Σ a_k)² / Σ v_k: progress per update with the coefficients c, relative to GRPO's.

    For an update direction g = Σ c_k A ∇log π_k a step of the best length gains (E⟨∇J, g⟩)² / 2L E|g|² where J has
    curvature at most L. The sums are exact if no two tokens share a parameter and c does not depend on the sample.

    Args:
        coefficient_t (`torch.Tensor`):
            c, shape (…, T), float64.
        signal_t (`torch.Tensor`):
            a_k = E⟨∇J, A ∇log π_k⟩, shape (T,).
        noise_t (`torch.Tensor`):
            v_k = E|A ∇log π_k|², shape (T,); Var(R) (1 − Σ p²) for a token that the reward R does not depend on.

    Returns:
        `torch.Tensor`: shape (…).
    """
    gained = (coefficient_t * signal_t).sum(-1).square() / (coefficient_t.square() * noise_t).sum(-1)
    return gained / (signal_t.sum().square() / noise_t.sum())


def _checked_probability(p: torch.Tensor | float, num_generations: int) -> torch.Tensor:
    if num_generations < 2:
        raise ValueError(f"num_generations must be at least 2 for a group to hold both outcomes, got {num_generations}")
    p = torch.as_tensor(p, dtype=torch.float64, device="cpu")
    if not ((p >= 0.0) & (p <= 1.0)).all():
        raise ValueError(f"p must be a probability in [0, 1], got {p.tolist()}")
    return p


def _mixed_groups(p: torch.Tensor, num_generations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """P(R = k | S) for k = 1 … G−1, shape (..., G−1), and p̂ = k/G, shape (G−1,)."""
    weights = _mixed_group_weights(p, num_generations)
    p_hat = torch.arange(1, num_generations, dtype=torch.float64) / num_generations
    return weights / weights.sum(-1, keepdim=True), p_hat


def _expected_advantages(
    p: torch.Tensor | float, num_generations: int, prior: float, response: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """E[r − p | S], E[Â | S] and E[Â Φ | S] at λ_scale = 1, over the responses of kind `response`."""
    p = _checked_probability(p, num_generations)
    weights, p_hat = _mixed_groups(p, num_generations)
    rewards = {"right": [1.0], "wrong": [0.0], "any": [1.0, 0.0]}.get(response)
    if rewards is None:
        raise ValueError(f"response must be 'right', 'wrong' or 'any', got {response!r}")
    sums = torch.zeros(4, *p.shape, dtype=torch.float64)
    for reward in rewards:
        share = weights * (p_hat if reward else 1.0 - p_hat)  # share of responses with this reward and p̂
        advantage = reward - p_hat
        phi = difficulty_weight(advantage, p_hat=p_hat, prior=prior, scale=1.0)
        parts = (reward - p.unsqueeze(-1), advantage, advantage * phi, torch.ones_like(p_hat))
        sums += torch.stack([(share * part).sum(-1) for part in parts])
    target, plain, weighted = sums[:3] / sums[3]
    return target, plain, weighted


def _mixed_group_weights(p: torch.Tensor, num_generations: int) -> torch.Tensor:
    """w_k = C(G,k) p^{k−1} (1−p)^{G−1−k}, k = 1 … G−1: P(R = k) / (p(1−p)). Shape (..., G−1).

    Proportional to P(R = k | S); also at p = 0 and p = 1 its sum is finite and positive.
    """
    k = torch.arange(1, num_generations, dtype=torch.float64)
    log_binomial = torch.tensor(
        [math.log(math.comb(num_generations, i)) for i in range(1, num_generations)], dtype=torch.float64
    )
    p = p.unsqueeze(-1)
    return torch.exp(log_binomial + torch.special.xlogy(k - 1, p) + torch.special.xlog1py(num_generations - 1 - k, -p))


def _gauss_legendre(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes and weights on [0, 1], from the eigenvectors of the Jacobi matrix (Golub and Welsch, 1969). Shapes (n,)."""
    k = torch.arange(1, n, dtype=torch.float64)
    off_diagonal = k / (4.0 * k.square() - 1.0).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1))
    return (nodes + 1.0) / 2.0, vectors[0].square()
