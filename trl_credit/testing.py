"""`check_credit`: a credit function of one's own through the contract that the trainer relies on."""

from collections.abc import Callable, Collection
from copy import copy
from dataclasses import fields, replace
from typing import Any

import torch

from .assignment import CreditFunction
from .config import CreditConfig
from .credit.tokens import Credit, Tokens, turn_numbers
from .names import declared, function_label
from .trainer.own_credit import credit_problem


PROPERTIES = (
    "form",
    "inputs unchanged",
    "inputs",
    "masked tokens",
    "padding",
    "row order",
    "micro-batches",
    "float32",
    "evaluation",
)
_CLIP = (0.8, 1.2)
_RAISED = (TypeError, AttributeError, RuntimeError, ValueError, IndexError)  # by a function that was given too little


def check_credit(
    function: CreditFunction,
    *,
    config: CreditConfig | None = None,
    is_grpo_when: dict[str, Any] | None = None,
    skip: Collection[str] = (),
    seed: int = 0,
) -> list[str]:
    """Runs a credit function on made-up tokens and checks what must hold for every algorithm.

    * `form`: a [`Credit`] of the right shapes and types, finite at loss tokens, with a graph where it must have one.
    * `inputs`: it takes advantages by token (the same ones give the same gradient), a run without reference or without
      log-probabilities of the engine, unknown ones (NaN) among these, and a mask that leaves tokens out.
    * `inputs unchanged`: nothing is written into the tokens.
    * `masked tokens`: tokens outside of `mask_t` get no gradient, and what stands there (NaN, infinity) has no effect.
    * `padding`: neither have further columns of padding.
    * `row order`, `micro-batches`: a row's gradient depends neither on its place nor on the rows beside it.
    * `float32`: the gradient is that of float64, to 1e-3 of its size.
    * `evaluation`: the same W, A and M without a graph.
    * `GRPO`, with `is_grpo_when`: under these knobs the gradient is GRPO's.

    Args:
        function ([`~trl_credit.assignment.CreditFunction`]):
            `f(config, tokens) -> Credit`.
        config ([`CreditConfig`], *optional*):
            Defaults to one with all knobs at their defaults.
        is_grpo_when (`dict`, *optional*):
            Knobs, such as `{"trace_lambda": 0.0}`.
        skip (collection of `str`, *optional*):
            Properties that the function does not have by design, such as `"micro-batches"` for one that compares rows.
        seed (`int`, *optional*, defaults to `0`):
            Of the tokens. A function that draws at random is seeded alike before every call; where its draws depend on
            the shape, skip `"padding"`, `"row order"` and `"micro-batches"`.

    Returns:
        `list[str]`: the properties that were checked.

    Raises:
        AssertionError: the first property that fails, and how.
        ValueError: `skip` names no property, or `is_grpo_when` no knob.
    """
    if unknown := set(skip) - set(PROPERTIES):
        raise ValueError(f"skip: no property {sorted(unknown)[0]!r}, choose among {', '.join(PROPERTIES)}")
    config = CreditConfig(output_dir="check_credit", report_to="none") if config is None else config
    case = _Case(function, config, made_up_tokens(seed=seed))
    checks: dict[str, Callable[[], str | None]] = {
        "form": case.form,
        "inputs unchanged": case.inputs_unchanged,
        "inputs": case.inputs,
        "masked tokens": case.masked_tokens,
        "padding": case.padding,
        "row order": case.row_order,
        "micro-batches": case.micro_batches,
        "float32": case.float32,
        "evaluation": case.evaluation,
    }
    if is_grpo_when is not None:
        checks["GRPO"] = lambda: case.is_grpo(is_grpo_when)
    done = [name for name in checks if name not in skip]
    for name in done:
        problem = checks[name]()
        if problem is not None:
            raise AssertionError(f"{function_label(function)} fails {name!r}: {problem}")
    return done


def made_up_tokens(*, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tokens:
    """A micro-batch of all that occurs: tool tokens inside a row, short rows, one of a single token, one of none."""
    g = torch.Generator().manual_seed(seed)
    rows, length = 6, 12
    mask_t = torch.ones(rows, length, dtype=dtype)
    mask_t[1, 7:] = mask_t[3, 1:] = mask_t[4] = 0
    mask_t[2, 4:6] = 0

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(rows, length, generator=g, dtype=dtype)

    logp_t = (-2.0 * torch.rand(rows, length, generator=g, dtype=dtype) - 0.01).requires_grad_()
    old_logp_t = (logp_t.detach() + normal(0.1)).clamp(max=0.0)
    segment_ids = torch.arange(length).expand(rows, length) // 4
    return Tokens(
        logp_t=logp_t,
        old_logp_t=old_logp_t,
        ref_logp_t=old_logp_t + normal(0.05),
        sampling_logp_t=old_logp_t + normal(0.01),
        entropy_t=torch.rand(rows, length, generator=g, dtype=dtype),
        advantages=torch.tensor([1.0, -0.5, 0.7, -1.2, 0.4, 0.0], dtype=dtype),
        token_ids=torch.randint(3, 50, (rows, length), generator=g),
        segment_ids=segment_ids.masked_fill(mask_t == 0, -1),
        turn_ids=turn_numbers(mask_t),
        policy_mask_t=mask_t,
        mask_t=mask_t,
    )


class _Case:
    """A function, its configuration, and tokens with the gradient that they should always give."""

    def __init__(self, function: CreditFunction, config: CreditConfig, tokens: Tokens) -> None:
        self.function, self.config, self.tokens = function, config, tokens
        self.carries_loss = bool(declared(function, "carries_loss"))
        self.size = 1.0

    def form(self) -> str | None:
        problem = credit_problem(self.call(self.tokens), self.tokens, carries_loss=self.carries_loss)
        if problem is None:
            self.size = self.gradient(self.tokens).abs().max().clamp(min=1e-12).item()
        return problem

    def inputs(self) -> str | None:
        t = self.tokens
        by_token = replace(t, advantages=t.advantages.unsqueeze(1).expand_as(t.mask_t).clone())
        try:
            problem = self.differs(self.gradient(by_token), self.gradient(t))
        except _RAISED as error:
            return f"with advantages of shape (B, T), it raised {type(error).__name__}: {error}"
        if problem is not None:
            return f"advantages by token, all equal in a row, change the gradient {problem}"
        kept_t = t.mask_t * (torch.arange(t.mask_t.size(1)) % 3 > 0)
        unknown = t.sampling_logp_t.clone()
        unknown[:, 1] = torch.nan
        for name, other in (
            ("ref_logp_t=None", {"ref_logp_t": None}),
            ("sampling_logp_t=None", {"sampling_logp_t": None}),
            ("sampling_logp_t that is NaN at loss tokens", {"sampling_logp_t": unknown}),
            ("a policy_mask_t that leaves tokens out", {"policy_mask_t": kept_t}),
        ):
            if name.startswith("ref") and self.config.beta != 0.0:
                continue  # then there is one
            tokens = replace(t, **other)
            try:
                problem = credit_problem(self.call(tokens), tokens, carries_loss=self.carries_loss)
            except _RAISED as error:
                problem = f"it raised {type(error).__name__}: {error}"
            if problem is not None:
                return f"with {name}, {problem}"
        return None

    def inputs_unchanged(self) -> str | None:
        before = {f.name: value.detach().clone() for f, value in _tensors(self.tokens)}
        self.call(self.tokens)
        changed = [f.name for f, value in _tensors(self.tokens) if not torch.equal(before[f.name], value.detach())]
        return f"it writes into tokens.{changed[0]}: make a new tensor" if changed else None

    def masked_tokens(self) -> str | None:
        inside = self.tokens.mask_t.bool()
        plain = self.gradient(self.tokens)
        if plain[~inside].any():
            return "tokens outside of mask_t get a gradient: multiply sums over tokens by mask_t"
        for value in (7.0, torch.nan, torch.inf, -torch.inf):
            dirty = {
                name: torch.where(inside, getattr(self.tokens, name).detach(), value)
                for name in ("logp_t", "old_logp_t", "ref_logp_t", "sampling_logp_t", "entropy_t")
            }
            dirty["logp_t"].requires_grad_()
            problem = self.differs(self.gradient(replace(self.tokens, **dirty))[inside], plain[inside])
            if problem is not None:
                return (
                    f"{value} at tokens outside of mask_t changes the gradient of others ({problem}): use "
                    "torch.where(mask_t.bool(), x, 0), since 0 · NaN is NaN"
                )
        return None

    def padding(self) -> str | None:
        wide = {}
        for f, value in _tensors(self.tokens):
            if value.dim() == 2:
                fill = -1 if f.name in ("segment_ids", "turn_ids") else 0
                wide[f.name] = torch.nn.functional.pad(value.detach(), (0, 5), value=fill)
        wide["logp_t"].requires_grad_()
        wide["policy_mask_t"] = wide["mask_t"]
        gradient = self.gradient(replace(self.tokens, **wide))
        if gradient[:, -5:].any():
            return "columns of padding get a gradient: multiply sums over tokens by mask_t"
        return self.differs(gradient[:, :-5], self.gradient(self.tokens))

    def row_order(self) -> str | None:
        order = torch.tensor([3, 5, 0, 4, 2, 1])
        return self.differs(self.gradient(_rows(self.tokens, order)), self.gradient(self.tokens)[order])

    def micro_batches(self) -> str | None:
        parts = [torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([3, 4, 5])]
        gradients = torch.cat([self.gradient(_rows(self.tokens, part)) for part in parts])
        problem = self.differs(gradients, self.gradient(self.tokens))
        return problem and f"{problem}: a row's credit depends on the rows beside it"

    def float32(self) -> str | None:
        narrow = {f.name: value.detach().float() for f, value in _tensors(self.tokens) if value.is_floating_point()}
        narrow["logp_t"].requires_grad_()
        narrow["policy_mask_t"] = narrow["mask_t"]
        gradient = self.gradient(replace(self.tokens, **narrow))
        return self.differs(gradient.double(), self.gradient(self.tokens), tolerance=1e-3)

    def evaluation(self) -> str | None:
        with torch.no_grad():
            without = self.call(replace(self.tokens, logp_t=self.tokens.logp_t.detach()))
        trained, inside = self.call(self.tokens), self.tokens.mask_t.bool()
        for name in ("log_weight", "advantage", "mask"):
            left, right = getattr(without, name), getattr(trained, name)
            if (left is None) != (right is None):
                return f"{name} is None with a graph or without one, but not both"
            if left is None:
                continue
            left, right = (_wide(x.detach(), inside)[inside].double() for x in (left, right))
            if (problem := self.differs(left, right)) is not None:
                return f"{name} has other values without a graph: {problem}"
        return None

    def is_grpo(self, knobs: dict[str, Any]) -> str | None:
        plain = self.gradient(self.tokens, function=lambda config, tokens: Credit(None, tokens.advantages))
        config = copy(self.config)
        for name, value in knobs.items():
            if name not in {f.name for f in fields(config)}:
                raise ValueError(f"is_grpo_when: there is no knob {name!r}")
            setattr(config, name, value)
        return self.differs(self.gradient(self.tokens, config=config), plain)

    def call(
        self, tokens: Tokens, *, function: CreditFunction | None = None, config: CreditConfig | None = None
    ) -> Credit:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return (function or self.function)(config or self.config, tokens)

    def gradient(
        self, tokens: Tokens, *, function: CreditFunction | None = None, config: CreditConfig | None = None
    ) -> torch.Tensor:
        """∂/∂logp_t of the clipped loss, summed over tokens, shape (B, T)."""
        credit, inside = self.call(tokens, function=function, config=config), tokens.mask_t.bool()
        weight = tokens.logp_t - tokens.old_logp_t if credit.log_weight is None else credit.log_weight
        if self.carries_loss and function is None:
            weight = torch.zeros_like(weight)
        ratio = torch.where(inside, weight, 0.0).exp()
        kept = inside if credit.mask is None else inside & credit.mask.bool()
        advantage = torch.where(kept, _wide(credit.advantage, inside), 0.0)
        loss = -torch.minimum(ratio * advantage, ratio.clamp(*_CLIP) * advantage)
        return torch.autograd.grad(torch.where(inside, loss, 0.0).sum(), tokens.logp_t)[0]

    def differs(self, found: torch.Tensor, wanted: torch.Tensor, *, tolerance: float = 1e-9) -> str | None:
        error = (found - wanted).abs().max().item()
        if error <= tolerance * max(self.size, 1.0):
            return None
        return f"by up to {error:.3g}, where gradients are of size {self.size:.3g}"


def _tensors(tokens: Tokens) -> list[tuple[Any, torch.Tensor]]:
    return [(f, value) for f in fields(tokens) if (value := getattr(tokens, f.name)) is not None]


def _rows(tokens: Tokens, order: torch.Tensor) -> Tokens:
    chosen = {f.name: value.detach()[order] for f, value in _tensors(tokens)}
    chosen["logp_t"].requires_grad_()
    chosen["policy_mask_t"] = chosen["mask_t"]
    return replace(tokens, **chosen)


def _wide(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return (x.unsqueeze(1) if x.dim() == 1 else x).expand(like.shape)
