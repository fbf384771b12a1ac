"""`check_credit`: checks a custom credit function against the contract that the trainer relies on."""

from collections.abc import Callable, Collection
from copy import copy, deepcopy
from dataclasses import replace
from inspect import isclass
from typing import Any

import torch
from torch.nn.functional import pad

from .config import CreditConfig
from .config.algorithm import algorithm_of, is_algorithm, settings_of
from .credit.tokens import Credit, Tokens, turn_numbers, wide
from .loss.contract import apart, credit_problem, received, tensors_of, without_gradient
from .loss.loss_pass import policy_credit
from .loss.statistics import with_statistics
from .support.digests import function_label


Change = Callable[[str, torch.Tensor], torch.Tensor]  # of a tensor of the tokens, by its name


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
        ValueError: `skip` names no property.
    """
    config = CreditConfig(output_dir="check_credit", report_to="none") if config is None else config
    case = _Case(function, config, made_up_tokens(seed=seed))
    checks = case.checks() | ({} if is_grpo_when is None else {"GRPO": lambda: case.is_grpo(is_grpo_when)})
    if unknown := set(skip) - checks.keys():
        raise ValueError(f"skip: no property {min(unknown)!r}, choose among {', '.join(checks)}")
    checks = {name: check for name, check in checks.items() if name not in skip}
    for name, check in checks.items():
        if (problem := check()) is not None:
            raise AssertionError(f"{function_label(function)} fails {name!r}: {problem}")
    return list(checks)


def made_up_tokens(*, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tokens:
    """A synthetic micro-batch with all special cases: tool tokens between three turns of a row, short rows, one token,
    and none."""
    generators = [torch.Generator().manual_seed(seed + k) for k in range(4)]
    g, shape = generators[0], (6, 12)
    mask_t = torch.ones(shape, dtype=dtype)
    mask_t[1, 7:] = mask_t[3, 1:] = mask_t[4] = 0
    mask_t[2, 4:6] = mask_t[2, 8] = 0
    logp_t = (-2.0 * torch.rand(shape, generator=g, dtype=dtype) - 0.01).requires_grad_()
    noise = [scale * torch.randn(shape, generator=g, dtype=dtype) for scale in (0.1, 0.05, 0.01)]
    old_logp_t = (logp_t.detach() + noise[0]).clamp(max=0.0)
    teacher_logp_t = -2.0 * torch.rand(shape, generator=generators[3], dtype=dtype)
    teacher_logp_t[1] = torch.nan  # without a context
    return Tokens(
        logp_t=logp_t,
        old_logp_t=old_logp_t,
        ref_logp_t=old_logp_t + noise[1],
        sampling_logp_t=old_logp_t + noise[2],
        entropy_t=torch.rand(shape, generator=g, dtype=dtype),
        ref_entropy_t=torch.rand(shape, generator=generators[1], dtype=dtype),
        advantages=torch.tensor([1.0, -0.5, 0.7, -1.2, 0.4, 0.0], dtype=dtype),
        token_ids=torch.randint(3, 50, shape, generator=g),
        hidden_t=torch.randn(*shape, 4, generator=generators[2], dtype=dtype),
        teacher_logp_t=teacher_logp_t,
        segment_ids=(torch.arange(shape[1]) // 4).expand(shape).masked_fill(mask_t == 0, -1),
        turn_ids=turn_numbers(mask_t),
        policy_mask_t=mask_t,
        mask_t=mask_t,
    )


class _Case:
    """An algorithm, its configuration, and tokens. A check returns what is wrong, or `None`."""

    def __init__(self, function: Any, config: CreditConfig, tokens: Tokens) -> None:
        self.source, self.config, self.inside = function, config, tokens.mask_t.bool()
        self.algorithm = algorithm_of(function, config, name=function_label(function))
        rewards = (tokens.advantages > 0).to(tokens.advantages.dtype)
        self.rows = {"group_ids": torch.arange(len(rewards)) // 3, "columns": [{}] * len(rewards)}
        self.rows |= {"rewards": rewards, "reward_columns": rewards.unsqueeze(1)}
        self.state = None if self.algorithm.state_dict is None else deepcopy(self.algorithm.state_dict())
        needed = {"hidden": "hidden_t", "teacher": "teacher_logp_t"}
        missing = {x: None for need, x in needed.items() if need not in self.algorithm.needs}
        self.tokens = self.with_statistics(replace(tokens, **missing))
        self.size = 1.0

    def checks(self) -> dict[str, Callable[[], str | None]]:
        order, parts = torch.tensor([3, 5, 0, 4, 2, 1]), ([0, 1], [2], [3, 4, 5])
        return {
            "inputs unchanged": self.inputs_unchanged,
            "form": lambda: self.form(self.tokens),
            "learning": self.learning,
            "inputs": self.inputs,
            "masked tokens": self.masked_tokens,
            "padding": lambda: self.compare(_padded, lambda x: pad(x, (0, 5))),
            "row order": lambda: self.compare(lambda _, x: x[order], lambda x: x[order]),
            "micro-batches": lambda: self.differs(
                torch.cat([self.gradient(apart(self.tokens, rows)) for rows in parts]), self.gradient(self.tokens)
            ),
            "float32": lambda: self.compare(
                lambda _, x: x.float() if x.is_floating_point() else x, torch.Tensor.float, tolerance=1e-3
            ),
            "batch statistics": self.batch_statistics,
        }

    def inputs_unchanged(self) -> str | None:
        copies = self.changed(lambda _, x: x.clone())
        self.call(copies)
        pairs = {name: (getattr(copies, name), x) for name, x in tensors_of(self.tokens).items()}
        # NaN stays NaN
        written = [name for name, two in pairs.items() if not torch.allclose(*two, rtol=0, atol=0, equal_nan=True)]
        return f"it writes into tokens.{written[0]}: make a new tensor" if written else None

    def form(self, tokens: Tokens) -> str | None:
        return credit_problem(self.call(tokens), tokens, self.algorithm, self.config)

    def learning(self) -> str | None:
        carries_loss = self.algorithm.carries_loss
        self.size = max(self.gradient(self.tokens).abs().max().item(), 1.0)
        if received(self.call(self.tokens), self.tokens, carries_loss=carries_loss).any():
            return None
        return f"{without_gradient(carries_loss)}. Or no token has both a mask of 1 and an advantage"

    def inputs(self) -> str | None:
        t = self.tokens
        is_second = torch.arange(t.mask_t.size(1)) == 1
        by_token = replace(t, advantages=wide(t.advantages).expand_as(t.mask_t).clone())
        unknown = replace(t, sampling_logp_t=t.sampling_logp_t.masked_fill(is_second, torch.nan))
        ref_logp_t = None if self.config.beta == 0.0 else t.ref_logp_t
        fewer = replace(t, sampling_logp_t=None, ref_logp_t=ref_logp_t, policy_mask_t=t.mask_t * ~is_second)
        inputs = "advantages of shape (B, T), no reference, no or NaN sampling_logp_t, or a token mask"
        try:
            problem = self.form(by_token) or self.differs(self.gradient(by_token), self.gradient(t))
            return problem or self.form(unknown) or self.form(fewer)
        except (TypeError, AttributeError, RuntimeError, ValueError, IndexError) as error:
            return f"with {inputs}, it raised {type(error).__name__}: {error}"

    def masked_tokens(self) -> str | None:
        kept, plain = ("advantages", "token_ids", "segment_ids", "turn_ids", "mask_t"), self.gradient(self.tokens)
        for fill in (7.0, torch.nan):
            dirty = self.changed(lambda name, x, fill=fill: x if name in kept else _filled(x, self.inside, fill))
            if plain[~self.inside].any() or self.differs(self.gradient(dirty)[self.inside], plain[self.inside]):
                fix = "use torch.where(mask_t.bool(), x, 0), since 0 · NaN is NaN"
                return f"tokens outside of mask_t have a gradient, or their values change that of others: {fix}"
        return None

    def batch_statistics(self) -> str | None:
        if (plain := self.tokens.statistics_t) is None:
            return None
        changes = _padded, lambda name, x: _filled(x, self.inside, 7.0) if name == "old_logp_t" else x
        again = [self.with_statistics(self.changed(change)).statistics_t[:, : plain.size(1)] for change in changes]
        is_same = all(torch.equal(x[self.inside], plain[self.inside]) for x in again)
        return None if is_same else "padding or another call changes it: use batch.mask_t, and batch.generator"

    def is_grpo(self, knobs: dict[str, Any]) -> str | None:
        config, source = copy(self.config), self.source
        fields = {f.name: knobs[f.name] for f in settings_of(source) if f.name in knobs} if is_algorithm(source) else {}
        if fields:
            source = source(**fields) if isclass(source) else replace(source, **fields)
        vars(config).update(knobs)
        plain = copy(config)
        plain.importance = "token"
        grpo = _Case(lambda config, tokens: Credit(None, tokens.advantages), plain, self.tokens)
        own = _Case(source, config, self.tokens)  # with statistics of these knobs
        return self.differs(own.gradient(own.tokens), grpo.gradient(grpo.tokens))

    def changed(self, change: Change) -> Tokens:
        """The tokens with `change(name, tensor)` for each tensor, and a graph of their own."""
        changed = {name: change(name, value.detach()) for name, value in tensors_of(self.tokens).items()}
        changed["logp_t"].requires_grad_()
        changed["policy_mask_t"] = changed["mask_t"]
        return replace(self.tokens, **changed)

    def with_statistics(self, tokens: Tokens) -> Tokens:
        self.restore()
        return with_statistics(self.algorithm, self.config, tokens, **self.rows)

    def call(self, tokens: Tokens) -> Credit:
        self.restore()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.algorithm.credit(self.config, tokens)

    def restore(self) -> None:
        """Gives the algorithm the state that it began with."""
        if self.state is not None:
            self.algorithm.load_state_dict(deepcopy(self.state))

    def gradient(self, tokens: Tokens) -> torch.Tensor:
        """The credit of each token, shape (B, T)."""
        credit = self.call(tokens)
        if self.algorithm.carries_loss:
            credit = replace(credit, log_weight=torch.zeros_like(tokens.logp_t))
        return policy_credit(self.config, tokens, credit)

    def compare(self, change: Change, of: Callable[[torch.Tensor], torch.Tensor], **tolerance: float) -> str | None:
        """Whether the gradient of changed tokens is what `of` makes of the gradient of the tokens as they are."""
        return self.differs(self.gradient(self.changed(change)), of(self.gradient(self.tokens)), **tolerance)

    def differs(self, gradient: torch.Tensor, expected: torch.Tensor, *, tolerance: float = 1e-9) -> str | None:
        error = (gradient - expected).abs().max().item()
        is_small = error <= tolerance * self.size  # not if it is NaN
        return None if is_small else f"by up to {error:.3g}, where credit is of size {self.size:.3g}"


def _padded(name: str, x: torch.Tensor) -> torch.Tensor:
    """Adds five columns of padding to a tensor of the tokens."""
    fill = -1 if name in ("segment_ids", "turn_ids") else 0
    return pad(x, (*(0, 0) * (x.dim() - 2), 0, 5), value=fill) if x.dim() > 1 else x


def _filled(x: torch.Tensor, inside: torch.Tensor, fill: float) -> torch.Tensor:
    """Replaces the values outside of the mask (B, T) in a tensor of shape (B, T) or (B, T, H)."""
    return torch.where(inside if x.dim() == 2 else inside.unsqueeze(-1), x, fill)
