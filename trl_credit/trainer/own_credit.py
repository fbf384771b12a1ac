"""Holds a credit function of one's own to its contract, in words that end in the fix."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ..config import CreditConfig
from ..credit.tokens import Credit, Tokens
from ..names import declared


_GUIDE = "see docs/your_own_algorithm.md"


def credit_problem(credit: object, tokens: Tokens, *, carries_loss: bool = False, values: bool = True) -> str | None:
    """What is wrong with what a credit function returned for `tokens`, or `None`.

    Types, shapes and graphs always; with `values`, which costs a synchronisation with the device, also that at all loss
    tokens W and A are finite and masks hold zeros and ones.
    """
    if not isinstance(credit, Credit):
        return f"returned a {type(credit).__name__}: return trl_credit.Credit(log_weight=…, advantage=…)"
    shape, rows = tokens.logp_t.shape, tokens.logp_t.size(0)
    a_shapes = {tuple(shape), (rows, 1), (rows,)}
    for name, shapes, optional in (
        ("log_weight", {tuple(shape)}, True),
        ("advantage", a_shapes, False),
        ("mask", {tuple(shape)}, True),
        ("selected", {tuple(shape)}, True),
    ):
        x = getattr(credit, name)
        if x is None and optional:
            continue
        if not isinstance(x, torch.Tensor):
            return f"returned {name} as a {type(x).__name__}: return a tensor{' or None' * optional}"
        if tuple(x.shape) not in shapes:
            wanted = " or ".join(map(str, sorted(shapes, key=len)))
            return f"returned {name} of shape {tuple(x.shape)}: return one of shape {wanted}"
        if name in ("log_weight", "advantage") and not x.is_floating_point():
            return f"returned {name} of type {x.dtype}: return a floating tensor, such as x.to(tokens.logp_t.dtype)"
        if x.device != tokens.logp_t.device:
            return f"returned {name} on {x.device}: make it on tokens.logp_t.device"
        if x.requires_grad and name != "log_weight" and not (name == "advantage" and carries_loss):
            hint = ", or declare f.carries_loss = True if it is (minus) a loss" * (name == "advantage")
            return f"returned {name} with a graph, whose gradient nobody asked for: detach it{hint}"
    weight = credit.log_weight
    if weight is not None and not carries_loss and tokens.logp_t.requires_grad and not weight.requires_grad:
        return (
            "returned log_weight without a graph, so that nothing would be learned: let the gradient of tokens.logp_t "
            "flow through it, or return None for TRL's own importance weight"
        )
    return _value_problem(credit, tokens, carries_loss) if values else None


def _value_problem(credit: Credit, tokens: Tokens, carries_loss: bool) -> str | None:
    inside = tokens.mask_t.bool()
    advantage = credit.advantage if credit.advantage.dim() == 2 else credit.advantage.unsqueeze(1)
    for name, x in (("log_weight", credit.log_weight), ("advantage", advantage)):
        if x is not None and not torch.isfinite(x.detach().expand_as(inside)[inside]).all():
            return f"returned {name} with NaN or infinity at loss tokens (mask_t = 1): make it finite there"
    for name in ("mask", "selected"):
        x = getattr(credit, name)
        if x is not None and not ((x[inside] == 0) | (x[inside] == 1)).all():
            return f"returned {name} with other values than 0 and 1 at loss tokens: return a mask"
    if carries_loss and credit.log_weight is not None and credit.log_weight.detach()[inside].any():
        return "declares carries_loss and returned a log_weight other than 0: return None or zeros"
    return None


class OwnCredit:
    """The credit function of a run: what it declares, and, where it is not built in, whether it keeps its contract.

    Args:
        functions (sequence of `Callable`):
            A [`~trl_credit.assignment.CreditFunction`], after the method that takes its place, if there is one. The
            first that declares something is heard.
        name (`str` or `None`):
            For the messages; `None` for a built-in function, which is not checked.
        largest (`Callable`):
            A collective call: the largest number of all processes.
    """

    def __init__(self, functions: Sequence[Callable], *, name: str | None, largest: Callable[[int], int]) -> None:
        self.name, self._largest = name, largest

        def said(what: str) -> bool:
            return bool(next((value for f in functions if (value := declared(f, what)) is not None), False))

        self.carries_loss = said("carries_loss")
        self.replaces_kl = said("replaces_kl")
        self.replaces_correction = said("replaces_correction")
        self._parts: int | None = None

    def checked(self, credit: object, tokens: Tokens, config: CreditConfig) -> Credit:
        """The credit, with 0 for what is not in the loss.

        Collective in the first call, in which values are looked at too, and parts compared between processes.

        Raises:
            ValueError: the function broke its contract; the message names it and the fix.
        """
        if self.name is None:
            return credit
        first = self._parts is None
        problem = credit_problem(credit, tokens, carries_loss=self.carries_loss, values=first)
        parts = 0
        if problem is None:
            # which metrics there are depends on these: they must be the same in all processes and calls
            names = ("log_weight", "mask", "selected")
            parts = sum(2**k for k, name in enumerate(names) if getattr(credit, name) is not None)
            parts += 8 * (credit.log_weight is credit.traced is not None)
            problem = self._refused_with(config, credit)
        if first:
            code = -1 if problem is not None else parts
            failed = self._largest(int(problem is not None)) > 0
            uneven = self._largest(code) != -self._largest(-code)
            if problem is None and failed:
                problem = "failed on another process: see its message"
            elif problem is None and uneven:
                problem = "returned other parts of a Credit on another process: return the same of them everywhere"
            self._parts = parts
        elif problem is None and parts != self._parts:
            problem = (
                "returned other parts of a Credit than in its first call: return the same of log_weight (its own or "
                "that of assign_credit), mask and selected every time, since all processes log the same metrics"
            )
        if problem is not None:
            raise ValueError(f"credit function {self.name!r} {problem} ({_GUIDE}).")
        return self._cleaned(credit, tokens)

    def _cleaned(self, credit: Credit, tokens: Tokens) -> Credit:
        inside = tokens.mask_t.bool()
        advantage = credit.advantage if credit.advantage.dim() == 2 else credit.advantage.unsqueeze(1)
        # of its own shape, since some losses of TRL want one advantage per row
        counted = inside if advantage.size(1) > 1 else inside.any(-1, keepdim=True)
        advantage = torch.where(counted, advantage, 0.0)
        if self.carries_loss and credit.log_weight is None:  # or TRL's ratio would multiply the loss
            return replace(credit, advantage=advantage, log_weight=torch.zeros_like(tokens.logp_t))
        return replace(credit, advantage=advantage)

    def _refused_with(self, config: CreditConfig, credit: Credit) -> str | None:
        """Where a W is refused, as a trace is, and a loss."""
        if config.loss_type in ("cispo", "vespo", "sapo") and (self.carries_loss or credit.log_weight is not None):
            what = "a loss of its own" if self.carries_loss else "a log_weight"
            return (
                f"returned {what} with loss_type={config.loss_type!r}, which does not take its gradient through "
                "the clipped importance weight: set loss_type to 'dapo', 'grpo', 'bnpo' or 'dr_grpo'"
            )
        if self.carries_loss or credit.log_weight is not None:
            if config.beta != 0.0 and config.use_bias_correction_kl and not self.replaces_kl:
                return (
                    "sets the importance weight with use_bias_correction_kl=True, by which TRL multiplies the KL term: "
                    "set use_bias_correction_kl=False"
                )
        if self.carries_loss and config.clip_form == "ratio":
            return "returned a loss of its own with clip_form='ratio', which clips none: set clip_form='surrogate'"
        if self.carries_loss or credit.log_weight is None:
            return None
        if config.loss_type == "luspo":
            return "returned a log_weight with loss_type='luspo', which has one weight per response: set loss_type"
        if config.rollouts == "tree" and config.tree_rows != "nodes":
            return (
                f"returned a log_weight with tree_rows={config.tree_rows!r}, where rows hold several nodes, across "
                "which it may run: set tree_rows='nodes'"
            )
        if config.importance == "sequence":
            return (
                "returned a log_weight with importance='sequence', which would average it over the response: set "
                "importance='token'"
            )
        return None


def check_uniform(credit: Credit, tokens: Tokens, *, level: str) -> None:
    """Refuses advantages that TRL's weight per sequence (`level`) would average away.

    Raises:
        ValueError: they differ from token to token.
    """
    a_t, inside = credit.advantage, tokens.mask_t.bool()
    if level != "sequence" or a_t.dim() < 2 or a_t.size(1) == 1:
        return
    low = torch.where(inside, a_t, torch.inf).amin(-1)
    high = torch.where(inside, a_t, -torch.inf).amax(-1)
    if (high > low).any():
        raise ValueError(
            "importance='sequence' averages over the response, so advantages that differ from token to token would be "
            "averaged away: set importance='sequence_token'."
        )
