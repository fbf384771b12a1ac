"""Log importance weights W of shape (B, T) by turns of the policy in a conversation with tools or environments.

τ(t) is the turn of token t, and n_τ the number of loss tokens of turn τ. Arguments are those of
[`~trl_credit.credit.weights`], and `turn_ids`, int64, shape (B, T): the number of each token's turn, −1 for none. Turns
keep their numbers: a turn without a loss token counts nothing, and a trace still decays across it. Tokens without a
turn have weight 0. All functions take O(T).

They are ours, after the ratio per segment of ROLL: the exponential of a *sum* over a turn collapses over 40 to 60
turns, that of the mean does not (NeMo-RL #2269).
"""

from dataclasses import dataclass
from functools import cached_property

import torch

from .scan import discounted_scan
from .weights import masked, sequence_log_weight, traced_sum


@dataclass(frozen=True)
class TurnTable:
    """Tables (B, K) with a column for each turn, from tensors (B, T) with a column for each token, and back.

    K is the largest number of a turn in the batch, plus one.

    Attributes:
        turn_ids: Number of each token's turn, int64, shape (B, T); −1 for none.
        mask_t: 1 for the tokens that count, shape (B, T).
        inside_t: Which tokens count and have a turn: bool, shape (B, T).
        columns: K.
        count: n, the tokens that count in each turn, int64, shape (B, K).
    """

    turn_ids: torch.Tensor
    mask_t: torch.Tensor

    inside_t = cached_property(lambda self: self.mask_t.bool() & (self.turn_ids >= 0))
    # the last column is for all other tokens
    _index = cached_property(lambda self: torch.where(self.inside_t, self.turn_ids, self.columns))
    count = cached_property(lambda self: self._added(self.inside_t.long()))

    @cached_property
    def columns(self) -> int:
        return int(self.turn_ids.max().clamp(min=0)) + 1 if self.turn_ids.numel() else 1

    def _added(self, x_t: torch.Tensor) -> torch.Tensor:
        rows = x_t.new_zeros(x_t.size(0), self.columns + 1)
        return rows.scatter_add(-1, self._index, x_t)[:, :-1]

    def sum(self, x_t: torch.Tensor) -> torch.Tensor:
        """Σ x over the tokens of each turn that count, (B, T) → (B, K), in float32 or wider."""
        x_t = torch.where(self.inside_t, x_t, 0.0)
        return self._added(x_t.to(torch.promote_types(x_t.dtype, torch.float32)))

    def mean(self, x_t: torch.Tensor) -> torch.Tensor:
        """The mean over the tokens of each turn that count, 0 for a turn without one. (B, T) → (B, K)."""
        return self.sum(x_t) / self.count.clamp(min=1)

    def bounds(self, x_t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest and the largest value of each turn, 0 without a token that counts. (B, T) → (B, K)."""
        rows = x_t.new_zeros(x_t.size(0), self.columns + 1)
        low, high = (rows.scatter_reduce(-1, self._index, x_t, bound, include_self=False) for bound in ("amin", "amax"))
        return low[:, :-1], high[:, :-1]

    def by_token(self, x: torch.Tensor) -> torch.Tensor:
        """The value of each token's turn, 0 at tokens that do not count. (B, K) → (B, T)."""
        return torch.nn.functional.pad(x, (0, 1)).gather(-1, self._index)


def turn_log_weight(
    logp_t: torch.Tensor, *, old_logp_t: torch.Tensor, turn_ids: torch.Tensor, mask_t: torch.Tensor
) -> torch.Tensor:
    """W_t = (1/n_τ) Σ_{k∈τ(t)} (ℓ_k − ℓ°_k): the mean log-ratio of the token's turn (GSPO per turn; ours).

    Shapes (B, T), nats, constant in each turn. The gradient flows through the mean. With one turn in every row it is
    [`~trl_credit.credit.weights.sequence_log_weight`], to the last bit, and with one token per turn ℓ_t − ℓ°_t.
    """
    turns = TurnTable(turn_ids, mask_t)
    if turns.columns == 1:
        return sequence_log_weight(logp_t, old_logp_t=old_logp_t, mask_t=mask_t)
    return turns.by_token(turns.mean(logp_t - old_logp_t))


def turn_token_log_weight(
    logp_t: torch.Tensor, *, old_logp_t: torch.Tensor, turn_ids: torch.Tensor, mask_t: torch.Tensor
) -> torch.Tensor:
    """W_t = sg(W^turn) + ℓ_t − sg(ℓ_t), W^turn of [`turn_log_weight`] (GSPO-token per turn; ours). Shapes (B, T), nats.

    It allows an advantage per token. Its limits are those of [`turn_log_weight`], with
    [`~trl_credit.credit.weights.sequence_token_log_weight`] for one turn in every row.
    """
    value = turn_log_weight(logp_t.detach(), old_logp_t=old_logp_t, turn_ids=turn_ids, mask_t=mask_t)
    return value + masked(logp_t - logp_t.detach(), mask_t)


def eligible_log_weight(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    decay: float,
    selected_t: torch.Tensor | None = None,
    leave_own_out: bool = True,
    turn_ids: torch.Tensor,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """S-trace by turns (ours).

    `W_t = sg(ℓ_t − ℓ°_t) + (ℓ_t − sg ℓ_t) + Σ_{σ<τ(t)} g^{τ(t)−σ} z_σ (L_σ − sg L_σ)`

    L_σ is the mean of ℓ over the loss tokens of turn σ. A turn leaves a trace as a whole, and the tokens of one turn do
    not reach each other. With one turn in a row it is GRPO's weight, and with one token per turn
    [`~trl_credit.credit.weights.eligible_log_weight`]. With `leave_own_out=False` the token's own term is multiplied by
    z of its turn.

    Args:
        logp_t, old_logp_t (`torch.Tensor`):
            Shape (B, T), nats.
        decay (`float`):
            g = γλ in [0, 1], per turn.
        selected_t (`torch.Tensor`, *optional*):
            z of shape (B, T), the same at all loss tokens of a turn, 1 for the turns that leave a trace.
        leave_own_out (`bool`, *optional*, defaults to `True`):
            Whether a token's own gradient is exempt from the selection.
        turn_ids, mask_t (`torch.Tensor`):
            Shape (B, T).

    Returns:
        `torch.Tensor`: shape (B, T).

    Source: the eligible weight of S-trace (arXiv 2605.05965), Sec. 4, with turns in place of tokens.
    """
    turns = TurnTable(turn_ids, mask_t)
    value = masked((logp_t - old_logp_t).detach(), mask_t)
    own = masked(logp_t - logp_t.detach(), mask_t)
    left = turns.mean(own)
    if selected_t is not None:
        left = left * turns.mean(selected_t.to(left.dtype))
        own = own if leave_own_out else own * selected_t.to(own.dtype)
    return value + own + turns.by_token(discounted_scan(left, decay=decay) - left)


def lambda_trace_log_weight(
    logp_t: torch.Tensor,
    *,
    old_logp_t: torch.Tensor,
    decay: float,
    style: str = "recent",
    turn_ids: torch.Tensor,
    mask_t: torch.Tensor,
) -> torch.Tensor:
    """The ε-trace of GRPO-λ by turns (ours). Shapes (B, T).

    `W_t = (ℓ_t − ℓ°_t) + Σ_{σ<τ(t)} tr(τ(t),σ) (L_σ − L°_σ)`

    L is as in [`eligible_log_weight`], and tr as in [`~trl_credit.credit.weights.lambda_trace_log_weight`], with
    numbers of turns in place of positions. With one turn in a row it is GRPO's weight.
    """
    turns = TurnTable(turn_ids, mask_t)
    difference = masked(logp_t - old_logp_t, mask_t)
    means = turns.mean(difference)
    return difference + turns.by_token(traced_sum(means, decay=decay, style=style) - means)


def turn_average_factor(turn_ids: torch.Tensor, *, mask_t: torch.Tensor) -> torch.Tensor | None:
    """f_t = n / (K n_τ): turns a mean over the n tokens of a row into the mean over its K turns of their means (ours).

    K counts the turns with a token of `mask_t`; tokens of the others get 0. Shapes (B, T) → (B, T), floating, without a
    gradient. `None` if no row has a second turn: f is then 1.
    """
    turns = TurnTable(turn_ids, mask_t)
    if turns.columns == 1:
        return None
    count = turns.count.to(mask_t.dtype if mask_t.is_floating_point() else torch.float32)
    n_turns = (count > 0).sum(-1, keepdim=True)
    share = count.sum(-1, keepdim=True) / (n_turns * count).clamp(min=1)
    # a token outside of the mask has the factor of its turn: its KL term is divided as the turn's other tokens are
    return TurnTable(turn_ids, torch.ones_like(mask_t)).by_token(torch.where(count > 0, share, 0.0))
