"""The contract of an algorithm, checked in training and by [`~trl_credit.testing.check_credit`]."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from ..config import CreditConfig
from ..config.algorithm import Algorithm
from ..credit.gradient import slope
from ..credit.tokens import Credit, Tokens, kept_tokens, wide
from ..credit.turns import TurnTable
from ..support.digests import seed_from
from ..support.functions import errors_named
from .assignment import assign_credit, described, policy_iteration


PATIENCE = 5  # micro-batches with an advantage, none of which had a gradient, before a run is stopped
_CUT_TOLERANCE = 1e-3  # of a row's credit, relative to the largest


def algorithm(config: CreditConfig) -> Algorithm:
    """The algorithm of a run, newly made: the custom one, or that of the knobs."""
    if (custom := config.algorithm()) is not None:
        return custom
    if config.policy_loss == "clip":
        return Algorithm(credit=assign_credit)
    return Algorithm(credit=policy_iteration, carries_loss=True, replaces_kl=True, replaces_correction=True)


def credit_problem(
    credit: object, tokens: Tokens, algorithm: Algorithm, config: CreditConfig, *, values: bool = True
) -> str | None:
    """What is wrong with the result of an algorithm for `tokens`, or `None`.

    Checks types, shapes and graphs. A may have a graph if it carries a loss, or with a loss weight that has a gradient.
    With `values`, which synchronises with the device, also checks that W and A are finite and masks hold zeros and ones
    at all loss tokens.
    """
    if not isinstance(credit, Credit):
        return f"returned a {type(credit).__name__}: return trl_credit.Credit(log_weight=…, advantage=…)"
    carries_loss, weight = algorithm.carries_loss, credit.log_weight
    shape, inside = tokens.logp_t.shape, tokens.mask_t.bool()
    has_weight_gradient = config.loss_weight != "none" and config.loss_weight_confidence.endswith("_grad")
    for name in ("log_weight", "advantage", "mask", "selected"):
        x, is_mask, is_advantage = getattr(credit, name), name in ("mask", "selected"), name == "advantage"
        if x is None and not is_advantage:
            continue
        shapes = [shape, shape[:1], (shape[0], 1)] if is_advantage else [shape]
        has_form = isinstance(x, torch.Tensor) and x.shape in shapes and x.device == inside.device
        if not has_form or not (is_mask or x.is_floating_point()):
            kind = "zeros and ones" if is_mask else "floating numbers"
            return f"returned {name} as {described(x)}: return {kind} of shape {tuple(shape)} on {inside.device}"
        may_have_graph = carries_loss or has_weight_gradient if is_advantage else not is_mask
        if x.requires_grad and not may_have_graph:
            fix = "detach it, or declare carries_loss = True if it is minus a loss"
            return f"returned {name} with a graph, whose gradient would be lost: {fix}"
        if values:
            x_t = wide(x.detach()).expand(shape)[inside]
            if not ((x_t == 0) | (x_t == 1) if is_mask else x_t.isfinite()).all():
                kind = "values other than 0 and 1" if is_mask else "NaN or infinity"
                return f"returned {name} with {kind} at loss tokens (mask_t = 1)"
    if carries_loss and values and weight is not None and weight.detach()[inside].any():
        return "declares carries_loss and returned a log_weight other than 0: return None or zeros"
    if not carries_loss and weight is not None and tokens.logp_t.requires_grad and not weight.requires_grad:
        fix = "let the gradient of tokens.logp_t flow through it, or return None for TRL's importance weight"
        return f"returned log_weight without a graph, so that nothing would be learned: {fix}"
    return None


def received(credit: Credit, tokens: Tokens, *, carries_loss: bool = False) -> torch.Tensor:
    """∂/∂ℓ of Σ |A|·M·W (Σ A·M with `carries_loss`), shape (B, T): whether and how much a function teaches each token,
    whatever the ratio is. `tokens.logp_t` must have a graph."""
    kept_t = kept_tokens(credit, tokens)
    carried_t = torch.where(kept_t, wide(credit.advantage), 0.0)
    if not carries_loss:
        weight_t = tokens.logp_t if credit.log_weight is None else credit.log_weight
        carried_t = torch.where(kept_t, weight_t, 0.0) * carried_t.abs()
    return slope(carried_t, tokens.logp_t)


def without_gradient(carries_loss: bool) -> str:
    """What is wrong where [`received`] is 0 at all tokens, and the fix."""
    name = "an advantage (minus a loss)" if carries_loss else "a log_weight"
    fix = "let it depend on tokens.logp_t without a factor of 0 and without .detach()"
    return f"returned {name} whose gradient is 0, so that nothing is learned: {fix}"


def tensors_of(tokens: Tokens) -> dict[str, torch.Tensor]:
    """The tensors of `tokens` by name."""
    return {f.name: x for f in fields(tokens) if isinstance(x := getattr(tokens, f.name), torch.Tensor)}


def apart(tokens: Tokens, rows: Sequence[int]) -> Tokens:
    """Some rows of a micro-batch, whose tensors are leaves."""
    leaves = {name: x.detach()[rows].requires_grad_(x.requires_grad) for name, x in tensors_of(tokens).items()}
    return replace(tokens, **leaves)


class Contract:
    """The algorithm of a run, and whether a custom one keeps its contract.

    Args:
        algorithm ([`~trl_credit.config.algorithm.Algorithm`]):
            A built-in one has no name, and is not checked.
        max (`Callable`):
            A collective call: the largest number of all processes.
    """

    def __init__(self, algorithm: Algorithm, *, max: Callable[[int], int]) -> None:
        self.algorithm, self._max, self._label = algorithm, max, f"credit function {algorithm.name!r}"
        self._first: dict[str, Any] = {}  # the parts of a `Credit` and the names of metrics in the first call
        self._has_gradient, self._without = False, 0  # whether there was one, and micro-batches without one before

    def credit(self, tokens: Tokens, config: CreditConfig) -> Credit:
        """The credit of a micro-batch, with A = 0 outside of the loss.

        A custom function gets copies of the tensors, so that it cannot write into TRL's buffers. The first call is
        collective: it checks values, and compares the parts of `Credit` between processes. Training calls are looked at
        until one has a gradient. If the algorithm does not say whether it compares rows, it is then called for parts of
        this micro-batch as well.

        Raises:
            ValueError: the function broke its contract, or its W (or loss) had no gradient in the first `PATIENCE`
                micro-batches with advantages; the message names it and the fix.
            FunctionRaised: the function raised an error.
        """
        if self.algorithm.name is None:
            return self.algorithm.credit(config, tokens)
        credit = self._checked(self._called(config, _copy(tokens)), tokens, config)
        if tokens.is_training and tokens.logp_t.requires_grad and not self._has_gradient:
            self._look(credit, tokens, config)
        return credit

    def _error(self, problem: str) -> ValueError:
        return ValueError(f"{self._label} {problem} (see trl-credit help your_own_algorithm).")

    def _called(self, config: CreditConfig, tokens: Tokens) -> Any:
        with errors_named(self.algorithm.source, self._label):
            return self.algorithm.credit(config, tokens)

    def _differs(self, name: str, value: object) -> bool:
        """Whether a value of plain types differs from that of the first call. That call is collective, and compares
        between processes."""
        if name in self._first:
            return value != self._first[name]
        self._first[name], code = value, seed_from(value)
        return -self._max(-code) != self._max(code)

    def _look(self, credit: Credit, tokens: Tokens, config: CreditConfig) -> None:
        """Looks for a gradient, which waits for the device."""
        carries_loss = self.algorithm.carries_loss
        if received(credit, tokens, carries_loss=carries_loss).any():
            self._has_gradient = True
            if self.algorithm.by_row is None and len(tokens.logp_t) > 1:
                self._check_cut(tokens, config)
        elif torch.where(kept_tokens(credit, tokens), wide(credit.advantage), 0.0).any():  # else it is no fault of W
            self._without += 1
            if self._without == PATIENCE:
                raise self._error(f"{without_gradient(carries_loss)} (in {PATIENCE} micro-batches)")

    def _check_cut(self, tokens: Tokens, config: CreditConfig) -> None:
        """Raises if the credit of a row depends on the rows beside it. What differs from call to call is left out: it
        draws random numbers, whose number depends on the shape, or it counts. The algorithm's state and torch's random
        numbers stay as they are."""
        algorithm, n, device = self.algorithm, len(tokens.logp_t), tokens.logp_t.device
        state = None if algorithm.state_dict is None else copy.deepcopy(algorithm.state_dict())

        def taught(rows: range, seed: int = tokens.seed) -> torch.Tensor:
            part = replace(apart(tokens, rows), seed=seed)
            with torch.enable_grad():
                return received(self._called(config, part), part, carries_loss=algorithm.carries_loss)

        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            whole_t, cut_t = taught(range(n)), torch.cat([taught(range(n // 2)), taught(range(n // 2, n))])
            change, size = (x.abs().max().item() for x in (cut_t - whole_t, whole_t))
            differs = change > _CUT_TOLERANCE * size
            differs = differs and torch.equal(taught(range(n)), taught(range(n), tokens.seed + 1))
        if state is not None:
            algorithm.load_state_dict(state)
        if differs:
            what = f"gives a row other credit beside other rows (by {change:.2g}, where credit is of size {size:.2g})"
            fix = "compare rows in the method `statistics`, which sees the whole batch, or declare by_row = False"
            raise self._error(f"{what}: {fix}")

    def _checked(self, credit: object, tokens: Tokens, config: CreditConfig) -> Credit:
        problem = credit_problem(credit, tokens, self.algorithm, config, values="parts" not in self._first)
        problem = problem or self._conflict(config, credit)
        # these parts decide which metrics exist, and all processes log the same metrics
        names = ("log_weight", "mask", "selected") if problem is None else ()
        parts = [getattr(credit, name) is not None for name in names]
        if self._differs("parts", [*parts, parts and credit.log_weight is credit.traced]) and problem is None:
            problem = "returned other parts of a Credit than in its first call, or than on another process"
        if problem is not None:
            raise self._error(problem)
        inside, advantage = tokens.mask_t.bool(), wide(credit.advantage)
        # keeps its shape, since some losses of TRL need one advantage per row
        counted = inside if advantage.size(1) > 1 else inside.any(-1, keepdim=True)
        credit = replace(credit, advantage=torch.where(counted, advantage, 0.0))
        if self.algorithm.carries_loss and credit.log_weight is None:  # or TRL's ratio would multiply the loss
            return replace(credit, log_weight=torch.zeros_like(tokens.logp_t))
        return credit

    def _conflict(self, config: CreditConfig, credit: Credit) -> str | None:
        """Why the configuration would lose a custom W or loss, or `None`."""
        is_loss, kind = self.algorithm.carries_loss, config.loss_type
        if not is_loss and credit.log_weight is None:
            return None
        is_weight, is_tree = not is_loss, config.rollouts == "tree" and config.tree_rows != "nodes"
        weighs_kl = config.beta != 0.0 and config.use_bias_correction_kl and not self.algorithm.replaces_kl
        # losses without the clipped weight, or with one weight per response
        bypasses = kind in ("cispo", "vespo", "sapo") or (is_weight and kind == "luspo")
        conflicts = {
            "loss_type": (bypasses, "'dapo', 'grpo', 'bnpo' or 'dr_grpo'"),
            "use_bias_correction_kl": (weighs_kl, "False"),
            "clip_form": (is_loss and config.clip_form == "ratio", "'surrogate'"),
            "tree_rows": (is_weight and is_tree, "'nodes'"),  # a weight may run across the nodes of a row
            "importance": (is_weight and config.importance == "sequence", "'token'"),
        }
        for setting, (is_met, fix) in conflicts.items():
            if is_met:
                what = f"{'a custom loss' if is_loss else 'a log_weight'} with {setting}={getattr(config, setting)!r}"
                return f"returned {what}, which would change its meaning. Set {setting} to {fix}"
        return None

    def metrics(
        self, config: CreditConfig, tokens: Tokens, credit: Credit
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """The algorithm's own metrics as sums and counts: (B, T) over the tokens of the loss, (B,) over rows. The first
        call is collective.

        Raises:
            ValueError: they are no tensors of these shapes, or have other names than in the first call.
            FunctionRaised: the function raised an error.
        """
        if self.algorithm.metrics is None:
            return {}
        label = f"metrics of {self._label}"
        with errors_named(self.algorithm.source, label), torch.no_grad():
            values = self.algorithm.metrics(config, _copy(tokens), credit)  # as in `credit`
        names = tuple(values) if isinstance(values, Mapping) else None
        if self._differs("metrics", names) or names is None:  # all processes log the same metrics, in the same order
            rule = "return a dict of tensors with the same names in every call and on every process"
            raise ValueError(f"{label} returned {type(values).__name__ if names is None else names}: {rule}.")
        inside_t, sums = tokens.mask_t.bool(), {}
        for name, x in values.items():
            if not isinstance(x, torch.Tensor) or x.shape not in (inside_t.shape, inside_t.shape[:1]):
                rule = f"of shape {tuple(inside_t.shape)} by token, or ({len(inside_t)},) by row"
                raise ValueError(f"{label} returned {name!r} as {described(x)}: return one {rule}.")
            counted = inside_t if x.dim() == 2 else inside_t.any(-1)
            sums[name] = torch.where(counted, x.detach().float(), 0.0).sum(), counted.sum()
        return sums


def check_uniform(credit: Credit, tokens: Tokens, *, importance: str) -> None:
    """Refuses advantages that a weight per sequence or per turn would average away.

    Raises:
        ValueError: advantages differ from token to token of a response, or of a turn if `importance` is "turn".
    """
    of_turns = importance == "turn" and credit.log_weight is credit.traced is not None  # else it is a custom weight
    if not (importance == "sequence" or of_turns) or wide(credit.advantage).size(1) == 1:
        return
    parts = TurnTable(tokens.turn_ids if of_turns else torch.zeros_like(tokens.turn_ids), tokens.mask_t)
    low, high = parts.bounds(credit.advantage)
    if (high > low).any():
        what = f"importance={importance!r} would average away advantages that differ from token to token"
        raise ValueError(f"{what}: set importance='{importance}_token'.")


def _copy(tokens: Tokens) -> Tokens:
    """Tokens with copies of all tensors; that of `logp_t` passes its gradient on."""
    tensors = tensors_of(tokens)
    copies = {id(x): x.clone() for x in tensors.values()}  # by identity: masks may be one tensor
    return replace(tokens, **{name: copies[id(x)] for name, x in tensors.items()})
