"""Checks that a custom credit function keeps its contract. Every message names the fix."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from ..config import CreditConfig
from ..config.rules import batch_statistics_of
from ..credit.tokens import Credit, Tokens
from ..credit.turns import TurnTable
from ..support.functions import declared, errors_named
from .assignment import wide


_GUIDE = "see trl-credit help credit_contract"
PATIENCE = 5  # micro-batches with an advantage, none of which had a gradient, before a run is stopped
LOOK_AGAIN = 100  # micro-batches between two looks that find a gradient, since a look waits for the device


def credit_problem(
    credit: object,
    tokens: Tokens,
    *,
    carries_loss: bool = False,
    has_weight_gradient: bool = False,
    values: bool = True,
) -> str | None:
    """What is wrong with the result of a credit function for `tokens`, or `None`.

    Checks types, shapes and graphs. A may have a graph if it carries a loss, or with a loss weight that has a gradient
    (`CreditConfig.has_weight_gradient`). With `values`, which synchronises with the device, also checks that W and A
    are finite and masks hold zeros and ones at all loss tokens.
    """
    if not isinstance(credit, Credit):
        return f"returned a {type(credit).__name__}: return trl_credit.Credit(log_weight=…, advantage=…)"
    shape, rows = tuple(tokens.logp_t.shape), tokens.logp_t.size(0)
    for name in ("log_weight", "advantage", "mask", "selected"):
        x, is_advantage = getattr(credit, name), name == "advantage"
        shapes = [(rows,), (rows, 1), shape] if is_advantage else [shape]
        if x is None and not is_advantage:
            continue
        if not isinstance(x, torch.Tensor):
            return f"returned {name} as a {type(x).__name__}: return a tensor{' or None' * (not is_advantage)}"
        if tuple(x.shape) not in shapes:
            return f"returned {name} of shape {tuple(x.shape)}: return one of shape {' or '.join(map(str, shapes))}"
        if name in ("log_weight", "advantage") and not x.is_floating_point():
            return f"returned {name} of type {x.dtype}: return a floating tensor, such as x.to(tokens.logp_t.dtype)"
        if x.device != tokens.logp_t.device:
            return f"returned {name} on {x.device}: make it on tokens.logp_t.device"
        if x.requires_grad and name != "log_weight" and not (is_advantage and (carries_loss or has_weight_gradient)):
            hint = ", or declare f.carries_loss = True if it is minus a loss" * is_advantage
            return f"returned {name} with a graph, whose gradient would be lost: detach it{hint}"
    weight = credit.log_weight
    if weight is not None and not carries_loss and tokens.logp_t.requires_grad and not weight.requires_grad:
        fix = "let the gradient of tokens.logp_t flow through it, or return None for TRL's importance weight"
        return f"returned log_weight without a graph, so that nothing would be learned: {fix}"
    return _value_problem(credit, tokens, carries_loss) if values else None


def _value_problem(credit: Credit, tokens: Tokens, carries_loss: bool) -> str | None:
    inside = tokens.mask_t.bool()
    for name, x in (("log_weight", credit.log_weight), ("advantage", wide(credit.advantage))):
        if x is not None and not torch.isfinite(x.detach().expand_as(inside)[inside]).all():
            return f"returned {name} with NaN or infinity at loss tokens (mask_t = 1): make it finite there"
    for name, x in (("mask", credit.mask), ("selected", credit.selected)):
        if x is not None and not ((x[inside] == 0) | (x[inside] == 1)).all():
            return f"returned {name} with values other than 0 and 1 at loss tokens: return a mask"
    if carries_loss and credit.log_weight is not None and credit.log_weight.detach()[inside].any():
        return "declares carries_loss and returned a log_weight other than 0: return None or zeros"
    return None


def no_credit(credit: Credit, tokens: Tokens) -> str | None:
    """Why no token has credit, although tokens have advantages, or `None`. Synchronises with the device."""
    kept_t = _kept(credit, tokens)
    if not torch.where(tokens.policy_mask_t.bool(), wide(tokens.advantages), 0.0).any():
        return None
    if not kept_t.any():
        return "returned a mask without a one: keep some tokens"
    if not torch.where(kept_t, wide(credit.advantage), 0.0).any():
        return "returned an advantage of 0 everywhere: scale tokens.advantages"
    return None


def has_gradient(credit: Credit, tokens: Tokens, *, carries_loss: bool = False) -> bool:
    """Whether Σ |A|·M·W (Σ A·M with `carries_loss`) has a derivative by `tokens.logp_t` other than 0.

    `tokens.logp_t` must have a graph. Synchronises with the device.
    """
    kept_t = _kept(credit, tokens)
    carried_t = torch.where(kept_t, wide(credit.advantage), 0.0)
    if not carries_loss:
        weight_t = tokens.logp_t if credit.log_weight is None else credit.log_weight
        carried_t = torch.where(kept_t, weight_t, 0.0) * carried_t.abs()
    if not carried_t.requires_grad:
        return False
    (gradient,) = torch.autograd.grad(carried_t.sum(), tokens.logp_t, retain_graph=True, allow_unused=True)
    return gradient is not None and bool(gradient.any())


def without_gradient(carries_loss: bool) -> str:
    """What is wrong where [`has_gradient`] is false, and the fix."""
    name = "an advantage (minus a loss)" if carries_loss else "a log_weight"
    fix = "let it depend on tokens.logp_t without a factor of 0 and without .detach()"
    return f"returned {name} whose gradient is 0, so that nothing is learned: {fix}"


def written_into(given: Tokens, tokens: Tokens) -> str | None:
    """What is wrong if `given` no longer equals `tokens`, of which it was a copy. Synchronises with the device."""
    for name, x in tensors_of(tokens).items():
        found, x = getattr(given, name).detach(), x.detach()
        if not ((found == x) | ((found != found) & (x != x))).all():  # NaN is not equal to itself
            return f"writes into tokens.{name}: make a new tensor"
    return None


def tensors_of(tokens: Tokens) -> dict[str, torch.Tensor]:
    """The tensors of `tokens` by name."""
    return {f.name: x for f in fields(tokens) if isinstance(x := getattr(tokens, f.name), torch.Tensor)}


def _kept(credit: Credit, tokens: Tokens) -> torch.Tensor:
    kept_t = tokens.policy_mask_t.bool()
    return kept_t if credit.mask is None else kept_t & credit.mask.bool()


class CustomCredit:
    """The credit function of a run: what it declares, and whether a custom one keeps its contract.

    Attributes:
        declaring: The function that declares `batch_statistics`, or `None`.

    Args:
        functions (sequence of `Callable`):
            The [`~trl_credit.loss.assignment.CreditFunction`], after the method that replaces it, if any. The first
            one that declares an attribute decides it.
        name (`str` or `None`):
            For the messages; `None` for a built-in function, which is not checked.
        max (`Callable`):
            A collective call: the largest number of all processes.
    """

    def __init__(self, functions: Sequence[Callable], *, name: str | None, max: Callable[[int], int]) -> None:
        self.name, self._max, self._function = name, max, functions[0]

        def declares(what: str) -> bool:
            return bool(next((value for f in functions if (value := declared(f, what)) is not None), False))

        self.needs_drift = declares("needs_drift")
        self.declaring = next((f for f in functions if declared(f, "batch_statistics") is not None), None)
        self.carries_loss = declares("carries_loss")
        self.replaces_kl = declares("replaces_kl")
        self.replaces_correction = declares("replaces_correction")
        self._parts: int | None = None
        self._next_look, self._without = 0, 0  # micro-batches until the next look, and looks without a gradient

    def of(self, function: Callable[[Tokens], object], tokens: Tokens, config: CreditConfig) -> Credit:
        """The credit that `function` gives to a micro-batch, with A = 0 outside of the loss.

        A custom function gets copies of the tensors, so that it cannot write into TRL's buffers. The first call is
        collective: it checks values, and compares the parts of `Credit` between processes. The first calls, and later
        every `LOOK_AGAIN`-th one, are looked at for a gradient and for such writes.

        Raises:
            ValueError: the function broke its contract, or its W (or loss) had no gradient in `PATIENCE` looks with
                advantages; the message names it and the fix.
            FunctionRaised: the function raised an error.
        """
        if self.name is None:
            return function(tokens)
        if tokens.statistics_t is None and batch_statistics_of(self.declaring, config) is not None:
            raise ValueError(
                f"credit function {self.name!r} declares batch_statistics, and this batch was made without."
            )
        with errors_named(self._function, f"credit function {self.name!r}"):
            credit = function(given := _copy(tokens))
        credit = self._checked(credit, tokens, config)
        if tokens.logp_t.requires_grad:
            if self._next_look == 0:
                self._look(credit, tokens, given)
            else:
                self._next_look -= 1
        return credit

    def _look(self, credit: Credit, tokens: Tokens, given: Tokens) -> None:
        if (written := written_into(given, tokens)) is not None:
            raise ValueError(f"credit function {self.name!r} {written} ({_GUIDE}).")
        if has_gradient(credit, tokens, carries_loss=self.carries_loss):
            self._next_look, self._without = LOOK_AGAIN, 0
        elif torch.where(_kept(credit, tokens), wide(credit.advantage), 0.0).any():  # else it is no fault of W
            self._without += 1
            if self._without == PATIENCE:
                problem = f"{without_gradient(self.carries_loss)} (in {PATIENCE} micro-batches; {_GUIDE})"
                raise ValueError(f"credit function {self.name!r} {problem}.")

    def _checked(self, credit: object, tokens: Tokens, config: CreditConfig) -> Credit:
        first, parts = self._parts is None, 0
        graph = {"carries_loss": self.carries_loss, "has_weight_gradient": config.has_weight_gradient}
        problem = credit_problem(credit, tokens, **graph, values=first)
        if problem is None:
            # these parts decide which metrics exist, and all processes log the same metrics
            names = ("log_weight", "mask", "selected")
            parts = sum(2**k for k, name in enumerate(names) if getattr(credit, name) is not None)
            parts += 8 * (credit.log_weight is credit.traced is not None)
            problem = self._conflict(config, credit)
        if first:
            code = parts if problem is None else -1
            low, high = -self._max(-code), self._max(code)
            if problem is None and low < 0:
                problem = "failed on another process: see its message"
            elif low != high and problem is None:
                problem = "returned other parts of a Credit on another process: return the same parts everywhere"
            self._parts = parts
        elif problem is None and parts != self._parts:
            fix = "return the same of log_weight (its own or that of assign_credit), mask and selected every time"
            problem = f"returned other parts of a Credit than in its first call: {fix}"
        if problem is not None:
            raise ValueError(f"credit function {self.name!r} {problem} ({_GUIDE}).")
        inside, advantage = tokens.mask_t.bool(), wide(credit.advantage)
        # keeps its shape, since some losses of TRL need one advantage per row
        counted = inside if advantage.size(1) > 1 else inside.any(-1, keepdim=True)
        credit = replace(credit, advantage=torch.where(counted, advantage, 0.0))
        if self.carries_loss and credit.log_weight is None:  # or TRL's ratio would multiply the loss
            return replace(credit, log_weight=torch.zeros_like(tokens.logp_t))
        return credit

    def _conflict(self, config: CreditConfig, credit: Credit) -> str | None:
        """Why the configuration does not go with a custom W or loss, or `None`."""
        loss, weight = self.carries_loss, credit.log_weight is not None
        if not loss and not weight:
            return None
        returned = f"returned {'a custom loss' if loss else 'a log_weight'} with"
        if (kind := config.loss_type) in ("cispo", "vespo", "sapo"):
            why = f"{kind!r}, whose gradient does not go through the clipped importance weight"
            return f"{returned} loss_type={why}: set loss_type to 'dapo', 'grpo', 'bnpo' or 'dr_grpo'"
        if config.beta != 0.0 and config.use_bias_correction_kl and not self.replaces_kl:
            why = "where TRL multiplies the KL term by the importance weight"
            return f"{returned} use_bias_correction_kl=True, {why}: set use_bias_correction_kl=False"
        if loss:
            clips = config.clip_form == "ratio"
            return f"{returned} clip_form='ratio', which does not clip it: set clip_form='surrogate'" if clips else None
        if kind == "luspo":
            return f"{returned} loss_type='luspo', which has one weight per response: set loss_type to 'dapo' or 'grpo'"
        if config.rollouts == "tree" and config.tree_rows != "nodes":
            why = "where a row holds several nodes and a weight may run across them"
            return f"{returned} tree_rows={config.tree_rows!r}, {why}: set tree_rows='nodes'"
        if config.importance == "sequence":
            why = "which would average it over the response"
            return f"{returned} importance='sequence', {why}: set importance='token'"
        return None


def check_uniform(credit: Credit, tokens: Tokens, *, importance: str) -> None:
    """Refuses advantages that a weight per sequence or per turn would average away.

    Raises:
        ValueError: advantages differ from token to token of a response, or of a turn if `importance` is "turn".
    """
    of_turns = importance == "turn" and credit.log_weight is credit.traced is not None  # else it is a custom weight
    a_t = credit.advantage
    if not (importance == "sequence" or of_turns) or a_t.dim() < 2 or a_t.size(1) == 1:
        return
    parts = TurnTable(tokens.turn_ids if of_turns else torch.zeros_like(tokens.turn_ids), tokens.mask_t)
    low, high = parts.bounds(a_t)
    if (high > low).any():
        what = f"importance={importance!r} would average away advantages that differ from token to token"
        raise ValueError(f"{what}{' of a turn' * of_turns}: set importance='{importance}_token'.")


def _copy(tokens: Tokens) -> Tokens:
    """Tokens with copies of all tensors; that of `logp_t` passes its gradient on."""
    copies: dict[int, torch.Tensor] = {}  # by identity: masks may be one tensor
    found = tensors_of(tokens)
    for x in found.values():
        copies.setdefault(id(x), x.clone())
    return replace(tokens, **{name: copies[id(x)] for name, x in found.items()})


class CustomState:
    """The state of a trainer's custom `credit` method, kept in its checkpoints.

    Args:
        trainer_name (`str`):
            Name of the trainer's class, for messages.
        read (`Callable`):
            Returns the state as JSON types.
        write (`Callable`):
            Restores what `read` returned.
    """

    name = "credit"

    def __init__(self, trainer_name: str, read: Callable[[], dict], write: Callable[[dict], None]) -> None:
        self.setting, self._read, self._write = f"{trainer_name}.credit_state", read, write

    def state_dict(self, folder: Path) -> dict[str, Any]:
        """The state as JSON types."""
        return self._read()

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        """Restores the state."""
        self._write(state)
