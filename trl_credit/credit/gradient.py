"""The credit of a token, c_k = ∂/∂ℓ_k Σ_t M_t f_t(W_t, A_t): what its log-probability receives, by autograd.

It is −∂L/∂ℓ of the policy term, before the loss divides it: for GRPO's W at ratio 1 it is A itself, and with traces it
includes what later tokens pass back. Everything that shows credit takes it from here: metrics, rollout log, viewer and
`explain`. Gradients end at ℓ, so no pass through the model is repeated, and memory is O(T) in each row.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class PolicyTerm:
    """f, what a loss of TRL makes of W and A at a token, with the sign of a gain.

    Attributes:
        loss_type: As in TRL. "cispo", "sapo" and "vespo" have their own f; the others have PPO's minimum.
        clip_range: 1 − ε_low and 1 + ε_high.
        delta: Upper bound of the ratio where A < 0, or `None`.
        temperatures: τ of SAPO for A > 0, and for other A.
        gammas: (k, λ) of VESPO for A ≥ 0, and for other A.
    """

    loss_type: str = "grpo"
    clip_range: tuple[float, float] = (0.8, 1.2)
    delta: float | None = None
    temperatures: tuple[float, float] = (1.0, 1.0)
    gammas: tuple[tuple[float, float], tuple[float, float]] = ((2.0, 3.0), (3.0, 2.0))

    def __call__(
        self, log_weight_t: torch.Tensor, *, advantage_t: torch.Tensor, logp_t: torch.Tensor, mask_t: torch.Tensor
    ) -> torch.Tensor:
        """f(W, A), shapes (B, T). `mask_t` are the tokens of the loss."""
        ratio_t = log_weight_t.exp()
        if self.loss_type == "cispo":  # TRL's `epsilon_high` is the bound itself here
            return ratio_t.detach().clamp(max=self.clip_range[1] - 1) * advantage_t * logp_t
        if self.loss_type == "vespo":
            return self._gamma(log_weight_t, advantage_t, mask_t) * advantage_t * logp_t
        if self.loss_type == "sapo":
            slope_t = torch.where(advantage_t > 0, *self.temperatures).to(ratio_t.dtype)
            return torch.sigmoid(slope_t * (ratio_t - 1)) * (4 / slope_t) * advantage_t
        bounded_t = ratio_t if self.delta is None else ratio_t.clamp(max=self.delta)
        return torch.minimum(bounded_t * advantage_t, ratio_t.clamp(*self.clip_range) * advantage_t)

    @torch.no_grad()
    def _gamma(self, log_weight_t: torch.Tensor, advantage_t: torch.Tensor, mask_t: torch.Tensor) -> torch.Tensor:
        """φ(w) = w^k e^{λ(1 − w)}, w the ratio of the whole response (VESPO, as TRL has it)."""
        log_w = (log_weight_t.clamp(-20.0, 20.0) * mask_t).sum(-1, keepdim=True).clamp(-18.420680743952367, 20.0)
        (k, slope), (k_below, slope_below) = self.gammas
        is_up = advantage_t >= 0
        k_t, slope_t = torch.where(is_up, k, k_below), torch.where(is_up, slope, slope_below)
        return (slope_t + k_t * log_w - slope_t * log_w.exp()).exp().nan_to_num(posinf=0.0)


@torch.enable_grad()
def token_credit(
    log_weight_t: torch.Tensor,
    *,
    logp_t: torch.Tensor,
    advantage_t: torch.Tensor,
    term: PolicyTerm,
    factor_t: torch.Tensor | None = None,
    kept_t: torch.Tensor,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """c, the credit of each token.

    Args:
        log_weight_t (`torch.Tensor`):
            W, shape (B, T), nats, a function of `logp_t`.
        logp_t (`torch.Tensor`):
            ℓ, shape (B, T), nats. Without a gradient c is 0.
        advantage_t (`torch.Tensor`):
            A, shape (B, T). It may have a graph: of a loss, or of a loss weight.
        term ([`PolicyTerm`]):
            f.
        factor_t (`torch.Tensor`, *optional*):
            What the loss multiplies f by besides M, such as the correction for the engine, shape (B, T) or (B, 1).
        kept_t (`torch.Tensor`):
            M, shape (B, T).
        mask_t (`torch.Tensor`):
            The tokens of the loss, shape (B, T). Outside of them W may be anything.

    Returns:
        `torch.Tensor`: c, shape (B, T), detached; of A's unit.
    """
    weight_t = torch.where(mask_t.bool(), log_weight_t, 0.0)
    advantage_t = torch.where(kept_t.bool(), advantage_t, 0.0)
    gain_t = term(weight_t, advantage_t=advantage_t, logp_t=logp_t, mask_t=mask_t)
    return slope(gain_t if factor_t is None else gain_t * factor_t, logp_t)


@torch.enable_grad()
def kl_credit(
    log_weight_t: torch.Tensor | None,
    *,
    logp_t: torch.Tensor,
    ref_logp_t: torch.Tensor,
    beta: float,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """−∂/∂ℓ_k of β Σ_t k3_t, k3 = e^r − r − 1, r = ℓ_ref − ℓ; with W, of β Σ_t k3_t exp(W_t) (unbiased KL).

    Shapes (B, T), detached, in the unit of [`token_credit`]. `mask_t` multiplies k3_t, and may hold other factors.
    """
    inside = mask_t.bool()
    difference_t = torch.where(inside, ref_logp_t - logp_t, 0.0)
    kl_t = difference_t.exp() - difference_t - 1
    weight_t = 1.0 if log_weight_t is None else torch.where(inside, log_weight_t, 0.0).exp()
    return slope(-beta * kl_t * weight_t * mask_t, logp_t)


@torch.enable_grad()
def travelled(
    log_weight_t: torch.Tensor, *, logp_t: torch.Tensor, coefficient_t: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ_{t,k} c_t ∂W_t/∂ℓ_k (t − k) and Σ_{t,k} c_t ∂W_t/∂ℓ_k, for W with ∂W/∂ℓ ≥ 0.

    Their ratio is the effective horizon: how many tokens back the credit of a token travels on average, weighted by c.
    What stays at its own token travels 0 tokens, so GRPO has 0, and P-trace with g = γλ has g/(1 − g) at the end of a
    long response. It is meaningless where credit also travels forward (GSPO gives all tokens the same).

    Args:
        log_weight_t (`torch.Tensor`):
            W, shape (B, T), a function of `logp_t`.
        logp_t (`torch.Tensor`):
            ℓ, shape (B, T).
        coefficient_t (`torch.Tensor`):
            c ≥ 0, shape (B, T), |A|·M.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: two scalars; the first in tokens times the unit of c.
    """
    coefficient_t = coefficient_t.to(log_weight_t.dtype)
    position = torch.arange(coefficient_t.size(-1), device=coefficient_t.device, dtype=coefficient_t.dtype)
    landed_t = slope(log_weight_t * coefficient_t, logp_t)
    return (slope(log_weight_t * coefficient_t * position, logp_t) - position * landed_t).sum(), landed_t.sum()


def slope(gain_t: torch.Tensor, logp_t: torch.Tensor) -> torch.Tensor:
    """∂/∂ℓ of the sum of a gain, shapes (B, T), detached; 0 where it does not depend on ℓ."""
    if not (gain_t.requires_grad and logp_t.requires_grad):
        return torch.zeros_like(logp_t)
    return torch.autograd.grad(gain_t.sum(), logp_t, retain_graph=True, materialize_grads=True)[0]
