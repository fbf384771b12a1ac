"""`check_credit`: checks a custom credit function against the contract that the trainer relies on."""

import re
from collections.abc import Callable, Collection
from copy import copy, deepcopy
from dataclasses import fields, replace
from functools import partial
from inspect import isclass
from typing import Any

import torch

from .config import CreditConfig
from .config.algorithm import algorithm_of, is_algorithm, settings_of
from .credit.tokens import Credit, Tokens, turn_numbers, wide
from .loss.contract import (
    credit_problem,
    largest_change_by_cut,
    no_credit,
    received,
    tensors_of,
    without_gradient,
    written_into,
)
from .loss.loss_pass import policy_credit
from .loss.statistics import with_statistics
from .support.digests import function_label


# each is a method of `_Case`
PROPERTIES = (
    *("inputs unchanged", "form", "learning", "inputs", "masked tokens", "padding", "row order", "micro-batches"),
    *("float32", "evaluation", "batch statistics"),
)
_RAISED = (TypeError, AttributeError, RuntimeError, ValueError, IndexError)  # by a function that lacks an input


def check_credit(
    function: Any,
    *,
    config: CreditConfig | None = None,
    is_grpo_when: dict[str, Any] | None = None,
    skip: Collection[str] = (),
    seed: int = 0,
) -> list[str]:
    """Runs a credit function on synthetic tokens and checks what must hold for every algorithm.

    * `form`: returns a [`Credit`] of the right shapes and types, finite at loss tokens, with a graph where needed.
    * `learning`: some token is kept by M, has an advantage, and gets a gradient.
    * `inputs unchanged`: writes nothing into the tokens.
    * `inputs`: accepts advantages per token (equal ones give the same gradient), a run without reference or engine
      log-probabilities, unknown engine log-probabilities (NaN), and a mask that leaves tokens out.
    * `masked tokens`: tokens outside `mask_t` get no gradient, and their values (NaN, infinity) have no effect.
    * `padding`: further columns of padding have no effect either.
    * `row order`, `micro-batches`: a row's gradient depends neither on its place nor on the rows beside it.
    * `float32`: the gradient equals that of float64 to 1e-3 of its size.
    * `evaluation`: W, A and M are the same without a graph.
    * `batch statistics`: its `statistics` depend neither on padding nor on values outside of the mask, and draw from
      the generator alone. The other properties use their result for all rows.
    * `GRPO`, with `is_grpo_when`: under these knobs the gradient is GRPO's.

    Args:
        function (`Callable`, `type` or object):
            `f(config, tokens) -> Credit`, or an object with a method `credit`, or its class
            ([`~trl_credit.config.algorithm.Algorithm`]).
        config ([`CreditConfig`], *optional*):
            Defaults to a configuration with all knobs at their defaults.
        is_grpo_when (`dict`, *optional*):
            Knobs, such as `{"trace_lambda": 0.0}`.
        skip (collection of `str`, *optional*):
            Properties that the function lacks by design, such as `"micro-batches"` for one that compares rows.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the tokens. The random state is the same before every call of the function. If its random draws
            depend on the shape, skip `"padding"`, `"row order"` and `"micro-batches"`.

    Returns:
        `list[str]`: the properties that were checked.

    Raises:
        AssertionError: a property fails. The message names the first one, and how it fails.
        ValueError: `skip` names no property, or `is_grpo_when` no knob.
    """
    if unknown := set(skip) - set(PROPERTIES):
        raise ValueError(f"skip: no property {sorted(unknown)[0]!r}, choose among {', '.join(PROPERTIES)}")
    config = CreditConfig(output_dir="check_credit", report_to="none") if config is None else config
    case = _Case(function, config, made_up_tokens(seed=seed))
    checks = {name: getattr(case, re.sub(r"\W", "_", name)) for name in PROPERTIES if name not in skip}
    if is_grpo_when is not None:
        checks["GRPO"] = partial(case.is_grpo, is_grpo_when)
    for name, check in checks.items():
        if (problem := check()) is not None:
            raise AssertionError(f"{function_label(function)} fails {name!r}: {problem}")
    return list(checks)


def made_up_tokens(*, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tokens:
    """A synthetic micro-batch with all special cases: tool tokens between three turns of a row, short rows, one token,
    and none."""
    g = torch.Generator().manual_seed(seed)
    rows, length = 6, 12
    mask_t = torch.ones(rows, length, dtype=dtype)
    mask_t[1, 7:] = mask_t[3, 1:] = mask_t[4] = 0
    mask_t[2, 4:6] = mask_t[2, 8] = 0

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(rows, length, generator=g, dtype=dtype)

    logp_t = (-2.0 * torch.rand(rows, length, generator=g, dtype=dtype) - 0.01).requires_grad_()
    old_logp_t = (logp_t.detach() + normal(0.1)).clamp(max=0.0)
    segment_ids = torch.arange(length).expand(rows, length) // 4
    own = torch.Generator().manual_seed(seed + 1)
    ref_entropy_t = torch.rand(rows, length, generator=own, dtype=dtype)
    return Tokens(
        logp_t=logp_t,
        old_logp_t=old_logp_t,
        ref_logp_t=old_logp_t + normal(0.05),
        sampling_logp_t=old_logp_t + normal(0.01),
        entropy_t=torch.rand(rows, length, generator=g, dtype=dtype),
        ref_entropy_t=ref_entropy_t,
        advantages=torch.tensor([1.0, -0.5, 0.7, -1.2, 0.4, 0.0], dtype=dtype),
        token_ids=torch.randint(3, 50, (rows, length), generator=g),
        segment_ids=segment_ids.masked_fill(mask_t == 0, -1),
        turn_ids=turn_numbers(mask_t),
        policy_mask_t=mask_t,
        mask_t=mask_t,
    )


class _Case:
    """An algorithm, its configuration, and tokens. A check returns what is wrong, or `None`."""

    def __init__(self, function: Any, config: CreditConfig, tokens: Tokens) -> None:
        self.source = function
        self.algorithm, self.config = algorithm_of(function, config, name=function_label(function)), config
        groups = torch.arange(len(tokens.mask_t)) // 3
        self.rows = {"group_ids": groups, "rewards": (tokens.advantages > 0).to(tokens.advantages.dtype)}
        self.rows |= {"reward_columns": self.rows["rewards"].unsqueeze(1), "columns": [{}] * len(groups)}
        if "hidden" in self.algorithm.needs:
            states_t = torch.randn(*tokens.logp_t.shape, 4, generator=torch.Generator().manual_seed(2))
            tokens = replace(tokens, hidden_t=states_t.to(tokens.logp_t.dtype))
        self.state = None if self.algorithm.state_dict is None else deepcopy(self.algorithm.state_dict())
        self.tokens = self.with_statistics(tokens)
        self.carries_loss = self.algorithm.carries_loss
        self.graph = {"carries_loss": self.carries_loss, "has_weight_gradient": config.has_weight_gradient}
        self.size = 1.0

    def batch_statistics(self) -> str | None:
        def statistics(tokens: Tokens) -> torch.Tensor | None:
            return self.with_statistics(tokens).statistics_t

        plain, inside = statistics(self.tokens), self.tokens.mask_t.bool()
        if plain is None:
            return None
        if not torch.equal(statistics(self.tokens), plain):
            return "differs in a second call: draw from batch.generator"
        if not torch.equal(statistics(self.changed(_padded))[:, : plain.size(1)][inside], plain[inside]):
            return "columns of padding change it: use batch.mask_t"
        dirty = self.changed(lambda name, x: torch.where(inside, x, 7.0) if name == "old_logp_t" else x)
        if not torch.equal(statistics(dirty)[inside], plain[inside]):
            return "values outside of the mask change it: use batch.mask_t"
        return None

    def form(self) -> str | None:
        problem = credit_problem(self.call(self.tokens), self.tokens, **self.graph)
        if problem is None:
            self.size = self.gradient(self.tokens).abs().max().clamp(min=1e-12).item()
        return problem

    def learning(self) -> str | None:
        credit = self.call(self.tokens)
        if problem := no_credit(credit, self.tokens):
            return problem
        learns = received(credit, self.tokens, carries_loss=self.carries_loss).any()
        return None if learns else without_gradient(self.carries_loss)

    def inputs(self) -> str | None:
        t = self.tokens
        by_token = replace(t, advantages=t.advantages.unsqueeze(1).expand_as(t.mask_t).clone())
        unknown = t.sampling_logp_t.clone()
        unknown[:, 1] = torch.nan
        others = {
            "ref_logp_t=None": replace(t, ref_logp_t=None),
            "sampling_logp_t=None": replace(t, sampling_logp_t=None),
            "sampling_logp_t that is NaN at loss tokens": replace(t, sampling_logp_t=unknown),
            "a policy_mask_t that leaves tokens out": replace(
                t, policy_mask_t=t.mask_t * (torch.arange(t.mask_t.size(1)) % 3 > 0)
            ),
        }
        if self.config.beta != 0.0:  # then there is a reference
            del others["ref_logp_t=None"]
        name = "advantages of shape (B, T)"
        try:
            if problem := self.differs(self.gradient(by_token), self.gradient(t)):
                return f"advantages by token, all equal in a row, change the gradient {problem}"
            for name, tokens in others.items():
                if problem := credit_problem(self.call(tokens), tokens, **self.graph):
                    return f"with {name}, {problem}"
        except _RAISED as error:
            return f"with {name}, it raised {type(error).__name__}: {error}"
        return None

    def inputs_unchanged(self) -> str | None:
        given = self.changed(lambda _, x: x.clone())
        self.call(given)
        return written_into(given, self.tokens)

    def masked_tokens(self) -> str | None:
        inside = self.tokens.mask_t.bool()
        plain = self.gradient(self.tokens)
        if plain[~inside].any():
            return "tokens outside of mask_t get a gradient: multiply sums over tokens by mask_t"
        per_token = ("logp_t", "old_logp_t", "ref_logp_t", "sampling_logp_t", "entropy_t", "ref_entropy_t", "hidden_t")
        for fill in (7.0, torch.nan, torch.inf, -torch.inf):
            dirty = self.changed(lambda name, x, fill=fill: _filled(x, inside, fill) if name in per_token else x)
            if problem := self.differs(self.gradient(dirty)[inside], plain[inside]):
                fix = "use torch.where(mask_t.bool(), x, 0), since 0 · NaN is NaN"
                return f"{fill} at tokens outside of mask_t changes the gradient of others ({problem}): {fix}"
        return None

    def padding(self) -> str | None:
        gradient = self.gradient(self.changed(_padded))
        if gradient[:, -5:].any():
            return "columns of padding get a gradient: multiply sums over tokens by mask_t"
        return self.differs(gradient[:, :-5], self.gradient(self.tokens))

    def row_order(self) -> str | None:
        order = torch.tensor([3, 5, 0, 4, 2, 1])
        return self.differs(self.gradient(self.changed(lambda _, x: x[order])), self.gradient(self.tokens)[order])

    def micro_batches(self) -> str | None:
        parts = ([0, 1], [2], [3, 4, 5])
        change, _ = largest_change_by_cut(self.gradient, self.tokens, parts)
        problem = self.problem(change, 1e-9)
        return problem and f"{problem}: a row's credit depends on the rows beside it"

    def float32(self) -> str | None:
        narrow = self.changed(lambda _, x: x.float() if x.is_floating_point() else x)
        return self.differs(self.gradient(narrow).double(), self.gradient(self.tokens), tolerance=1e-3)

    def evaluation(self) -> str | None:
        with torch.no_grad():
            without = self.call(replace(self.tokens, logp_t=self.tokens.logp_t.detach()))
        trained, inside = self.call(self.tokens), self.tokens.mask_t.bool()
        for name in ("log_weight", "advantage", "mask"):
            pair = getattr(without, name), getattr(trained, name)
            present = [x for x in pair if x is not None]
            if len(present) == 1:
                return f"{name} is None with a graph or without one, but not both"
            if present:
                left, right = (wide(x.detach()).expand(inside.shape)[inside].double() for x in pair)
                if problem := self.differs(left, right):
                    return f"{name} has other values without a graph: {problem}"
        return None

    def is_grpo(self, knobs: dict[str, Any]) -> str | None:
        config, source = copy(self.config), self.source
        own = {f.name for f in settings_of(source)} if is_algorithm(source) else set()
        if own:
            settings = {name: value for name, value in knobs.items() if name in own}
            source = source(**settings) if isclass(source) else replace(source, **settings)
        for name, value in knobs.items():
            if name not in own | {f.name for f in fields(config)}:
                raise ValueError(f"is_grpo_when: there is no knob {name!r}")
            setattr(config, name, value)
        plain = copy(config)
        plain.importance = "token"
        grpo = _Case(lambda config, tokens: Credit(None, tokens.advantages), plain, self.tokens)
        limit = _Case(source, config, self.tokens)
        return self.differs(limit.gradient(self.tokens), grpo.gradient(self.tokens))

    def changed(self, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Tokens:
        """The tokens with `change(name, tensor)` for each tensor, and a graph of their own."""
        changed = {name: change(name, value.detach()) for name, value in tensors_of(self.tokens).items()}
        changed["logp_t"].requires_grad_()
        changed["policy_mask_t"] = changed["mask_t"]
        return replace(self.tokens, **changed)

    def restore(self) -> None:
        """Gives the algorithm the state that it began with."""
        if self.state is not None:
            self.algorithm.load_state_dict(deepcopy(self.state))

    def with_statistics(self, tokens: Tokens) -> Tokens:
        self.restore()
        return with_statistics(self.algorithm, self.config, tokens, **self.rows)

    def call(self, tokens: Tokens) -> Credit:
        self.restore()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.algorithm.credit(self.config, tokens)

    def gradient(self, tokens: Tokens) -> torch.Tensor:
        """The credit of each token, shape (B, T)."""
        credit = self.call(tokens)
        if self.carries_loss:
            credit = replace(credit, log_weight=torch.zeros_like(tokens.logp_t))
        return policy_credit(self.config, tokens, credit)

    def differs(self, found: torch.Tensor, expected: torch.Tensor, *, tolerance: float = 1e-9) -> str | None:
        return self.problem((found - expected).abs().max().item(), tolerance)

    def problem(self, error: float, tolerance: float) -> str | None:
        if error <= tolerance * max(self.size, 1.0):
            return None
        return f"by up to {error:.3g}, where credit is of size {self.size:.3g}"


def _padded(name: str, x: torch.Tensor) -> torch.Tensor:
    """With five more columns."""
    fill = -1 if name in ("segment_ids", "turn_ids") else 0
    return torch.nn.functional.pad(x, (*(0, 0) * (x.dim() - 2), 0, 5), value=fill) if x.dim() > 1 else x


def _filled(x: torch.Tensor, inside: torch.Tensor, fill: float) -> torch.Tensor:
    """With other values outside of the mask (B, T), for shapes (B, T) and (B, T, H)."""
    return torch.where(inside if x.dim() == 2 else inside.unsqueeze(-1), x, fill)
