"""The contract of an algorithm, checked in training and by [`~trl_credit.testing.check_credit`]."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from accelerate.logging import get_logger

from ..config import CreditConfig
from ..config.algorithm import Algorithm
from ..credit.gradient import slope
from ..credit.tokens import Credit, Tokens, kept_tokens, wide
from ..credit.turns import TurnTable
from ..support.digests import seed_from
from ..support.functions import errors_named
from .assignment import assign_credit, policy_iteration


logger = get_logger(__name__)  # logs on the main process only

_GUIDE = "see trl-credit help credit_contract"
PATIENCE = 5  # micro-batches with an advantage, none of which had a gradient, before a run is stopped
LOOK_AGAIN = 100  # micro-batches between two looks that find a gradient, since a look waits for the device
_CUT_TOLERANCE = 1e-3  # of a row's credit, relative to the largest


_POLICY_ITERATION = {"carries_loss": True, "replaces_kl": True, "replaces_correction": True}


def algorithm(config: CreditConfig) -> Algorithm:
    """The algorithm of a run, newly made: the custom one, or that of the knobs."""
    if (custom := config.algorithm()) is not None:
        return custom
    if config.policy_loss == "clip":
        return Algorithm(credit=assign_credit)
    return Algorithm(credit=policy_iteration, **_POLICY_ITERATION)


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
    kept_t = kept_tokens(credit, tokens)
    if not torch.where(tokens.policy_mask_t.bool(), wide(tokens.advantages), 0.0).any():
        return None
    if not kept_t.any():
        return "returned a mask without a one: keep some tokens"
    if not torch.where(kept_t, wide(credit.advantage), 0.0).any():
        return "returned an advantage of 0 everywhere: scale tokens.advantages"
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


def apart(tokens: Tokens, rows: Sequence[int]) -> Tokens:
    """Some rows of a micro-batch, whose tensors are leaves."""
    leaves = {name: x.detach()[rows].requires_grad_(x.requires_grad) for name, x in tensors_of(tokens).items()}
    return replace(tokens, **leaves)


def largest_change_by_cut(
    slope: Callable[[Tokens], torch.Tensor], tokens: Tokens, parts: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """How much a quantity (B, T) of tokens differs if the micro-batch is cut into these rows, and its largest value."""
    whole_t = slope(apart(tokens, range(len(tokens.logp_t))))
    cut_t = torch.cat([slope(apart(tokens, part)) for part in parts])
    return (cut_t - whole_t[[row for part in parts for row in part]]).abs().max().item(), whole_t.abs().max().item()


class Contract:
    """The algorithm of a run, and whether a custom one keeps its contract.

    Args:
        algorithm ([`~trl_credit.config.algorithm.Algorithm`]):
            A built-in one has no name, and is not checked.
        max (`Callable`):
            A collective call: the largest number of all processes.
    """

    def __init__(self, algorithm: Algorithm, *, max: Callable[[int], int]) -> None:
        self.algorithm, self._max = algorithm, max
        self._parts: int | None = None
        self._next_look, self._without = 0, 0  # micro-batches until the next look, and looks without a gradient
        self._compares_rows = algorithm.by_row is not None  # whether it is known if it does
        self._metrics: tuple[str, ...] | None = None
        self._has_looked = False

    def credit(self, tokens: Tokens, config: CreditConfig) -> Credit:
        """The credit of a micro-batch, with A = 0 outside of the loss.

        A custom function gets copies of the tensors, so that it cannot write into TRL's buffers. The first call is
        collective: it checks values, and compares the parts of `Credit` between processes. The first calls, and later
        every `LOOK_AGAIN`-th one, are looked at for a gradient and for such writes. If the algorithm does not say
        whether it compares rows, the first look with a gradient calls it for parts of the micro-batch as well.

        Raises:
            ValueError: the function broke its contract, or its W (or loss) had no gradient in `PATIENCE` looks with
                advantages; the message names it and the fix.
            FunctionRaised: the function raised an error.
        """
        algorithm = self.algorithm
        if algorithm.name is None:
            return algorithm.credit(config, tokens)
        if tokens.statistics_t is None and algorithm.statistics is not None:
            raise ValueError(f"{self._label} takes statistics of the batch, and this batch was made without.")
        given = _copy(tokens)
        credit = self._checked(self._called(config, given), tokens, config)
        if tokens.is_training and tokens.logp_t.requires_grad:
            if self._next_look == 0:
                self._look(credit, tokens, given, config)
            else:
                self._next_look -= 1
        return credit

    @property
    def _label(self) -> str:
        return f"credit function {self.algorithm.name!r}"

    def _called(self, config: CreditConfig, tokens: Tokens) -> Any:
        with errors_named(self.algorithm.source, self._label):
            return self.algorithm.credit(config, tokens)

    def _look(self, credit: Credit, tokens: Tokens, given: Tokens, config: CreditConfig) -> None:
        carries_loss = self.algorithm.carries_loss
        if (written := written_into(given, tokens)) is not None:
            raise ValueError(f"{self._label} {written} ({_GUIDE}).")
        if received(credit, tokens, carries_loss=carries_loss).any():
            self._next_look, self._without = LOOK_AGAIN, 0
            if not self._has_looked:
                self._has_looked = True
                self._warn_of_entropies(tokens, config)
            if not self._compares_rows and len(tokens.logp_t) > 1:
                self._compares_rows = True
                self._check_cut(tokens, config)
        elif torch.where(kept_tokens(credit, tokens), wide(credit.advantage), 0.0).any():  # else it is no fault of W
            self._without += 1
            if self._without == PATIENCE:
                problem = f"{without_gradient(carries_loss)} (in {PATIENCE} micro-batches; {_GUIDE})"
                raise ValueError(f"{self._label} {problem}.")

    def _warn_of_entropies(self, tokens: Tokens, config: CreditConfig) -> None:
        """Warns of a loss that reads entropies as if they had a gradient."""
        if not self.algorithm.carries_loss or "entropy_gradient" in self.algorithm.needs:
            return
        leaves = apart(tokens, range(len(tokens.logp_t)))
        entropy_t = leaves.entropy_t.clone().requires_grad_()
        with self._unnoticed(tokens), torch.enable_grad():
            credit = self._called(config, replace(leaves, entropy_t=entropy_t))
        if slope(wide(credit.advantage), entropy_t).any():
            logger.warning(
                "%s reads tokens.entropy_t, which is detached, so its loss has no gradient through entropies: "
                "declare needs = ('entropy_gradient',), or write tokens.entropy_t.detach() if none is meant",
                self._label,
            )

    @contextlib.contextmanager
    def _unnoticed(self, tokens: Tokens) -> Iterator[None]:
        """Calls inside leave no trace in the algorithm's state and in torch's random numbers."""
        algorithm, device = self.algorithm, tokens.logp_t.device
        state = None if algorithm.state_dict is None else copy.deepcopy(algorithm.state_dict())
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
        if state is not None:
            algorithm.load_state_dict(state)

    def _check_cut(self, tokens: Tokens, config: CreditConfig) -> None:
        """Raises if the credit of a row depends on the rows beside it. What differs from call to call is left out: it
        draws random numbers, whose number depends on the shape, or it counts."""

        def taught(part: Tokens) -> torch.Tensor:
            with torch.enable_grad():
                return received(self._called(config, part), part, carries_loss=self.algorithm.carries_loss)

        rows = len(tokens.logp_t)
        with self._unnoticed(tokens):
            change, size = largest_change_by_cut(taught, tokens, [range(rows // 2), range(rows // 2, rows)])
            if differs := change > _CUT_TOLERANCE * size:
                first, second = (taught(replace(apart(tokens, range(rows)), seed=tokens.seed + k)) for k in (0, 1))
                differs = torch.equal(first, second)
        if differs:
            what = f"gives a row other credit beside other rows (by {change:.2g}, where credit is of size {size:.2g})"
            why = "so per_device_train_batch_size and the number of processes would change the algorithm"
            fix = "compare rows in the method `statistics`, which sees the whole batch, or declare by_row = False"
            raise ValueError(f"{self._label} {what}, {why}: {fix} ({_GUIDE}).")

    def _checked(self, credit: object, tokens: Tokens, config: CreditConfig) -> Credit:
        first, parts = self._parts is None, 0
        carries_loss = self.algorithm.carries_loss
        graph = {"carries_loss": carries_loss, "has_weight_gradient": config.has_weight_gradient}
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
            raise ValueError(f"{self._label} {problem} ({_GUIDE}).")
        inside, advantage = tokens.mask_t.bool(), wide(credit.advantage)
        # keeps its shape, since some losses of TRL need one advantage per row
        counted = inside if advantage.size(1) > 1 else inside.any(-1, keepdim=True)
        credit = replace(credit, advantage=torch.where(counted, advantage, 0.0))
        if carries_loss and credit.log_weight is None:  # or TRL's ratio would multiply the loss
            return replace(credit, log_weight=torch.zeros_like(tokens.logp_t))
        return credit

    def _conflict(self, config: CreditConfig, credit: Credit) -> str | None:
        """Why the configuration does not go with a custom W or loss, or `None`."""
        loss, weight = self.algorithm.carries_loss, credit.log_weight is not None
        if not loss and not weight:
            return None
        returned = f"returned {'a custom loss' if loss else 'a log_weight'} with"
        if (kind := config.loss_type) in ("cispo", "vespo", "sapo"):
            why = f"{kind!r}, whose gradient does not go through the clipped importance weight"
            return f"{returned} loss_type={why}: set loss_type to 'dapo', 'grpo', 'bnpo' or 'dr_grpo'"
        if config.beta != 0.0 and config.use_bias_correction_kl and not self.algorithm.replaces_kl:
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
        with errors_named(self.algorithm.source, f"metrics of {self._label}"), torch.no_grad():
            values = self.algorithm.metrics(config, _copy(tokens), credit)  # as in `credit`
        names = tuple(values) if isinstance(values, Mapping) else None
        if self._metrics is None:  # all processes log the same metrics, in the same order
            self._metrics, code = names, seed_from(names)
            if -self._max(-code) != self._max(code):
                raise ValueError(f"metrics of {self._label} have other names on another process: return the same.")
        if names is None or names != self._metrics:
            got = type(values).__name__ if names is None else ", ".join(map(repr, names))
            before = f", with the names {', '.join(map(repr, self._metrics or ()))} every time" * bool(self._metrics)
            raise ValueError(f"metrics of {self._label} returned {got}: return a dict of tensors{before}.")
        inside_t, found = tokens.mask_t.bool(), {}
        for name, x in values.items():
            shape = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            if shape not in (tuple(inside_t.shape), (len(inside_t),)):
                rule = f"of shape {tuple(inside_t.shape)} by token, or ({len(inside_t)},) by row"
                raise ValueError(f"metrics of {self._label} returned {name!r} of shape {shape}: return one {rule}.")
            counted = inside_t if x.dim() == 2 else inside_t.any(-1)
            found[name] = torch.where(counted, x.detach().float(), 0.0).sum(), counted.sum()
        return found


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
