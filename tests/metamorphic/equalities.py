"""What must come to the same weights and logged rewards, when, and why."""

import itertools
import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import NamedTuple

from trl import GRPOConfig

from trl_credit.config import CreditConfig

from .configurations import OF_TRL, SHAPE, Case, draw, updates
from .training import Refused, Trained, train


TOLERANCE = 1e-5  # of the largest change of a weight
SHIFT = 3.0
FIELDS_OF_TRL = {f.name for f in fields(GRPOConfig)}


class Equality(NamedTuple):
    """`change(case)` learns what `case` does, if `holds(case, config)`.

    `logs`: whether it logs the same rewards by step too.
    """

    name: str
    change: Callable[[Case], Case]
    holds: Callable[[Case, CreditConfig], bool]
    logs: bool = True


def _reaches_a_checkpoint(case: Case, config: CreditConfig) -> bool:
    """TRL saves no synchronised reference model; a warning says so."""
    return updates(config) < config.max_steps and not config.sync_ref_model


def _sums_over_rows(case: Case, config: CreditConfig) -> bool:
    """Whether the gradient of an update is a sum over its rows: nothing is compared or averaged in a micro-batch."""
    window, batch = config.gradient_accumulation_steps, config.steps_per_generation
    return (
        (batch % window == 0 or window % batch == 0)
        and config.loss_type != "bnpo"
        and config.entropy_coef == 0.0
        and config.top_entropy_quantile == 1.0
        and config.whiten_advantages != "microbatch"
        and config.selector != "random"
        and getattr(config, "cov_statistics", "batch") == "batch"
    )


def _halved(case: Case) -> Case:
    """Half as many rows in a pass, and twice as many passes in an update and in a generation batch."""
    factors = dict(zip(SHAPE, (0.5, 2, 2), strict=True))
    return case.with_settings(**{name: int(case.settings[name] * k) for name, k in factors.items()})


def _takes_any_order(case: Case, config: CreditConfig) -> bool:
    """Whether the rows of a generation batch are those of an update, in any order. Trees draw leaves by number."""
    one_update = config.steps_per_generation == config.gradient_accumulation_steps
    return _sums_over_rows(case, config) and one_update and config.rollouts != "tree"


def _compares(case: Case, config: CreditConfig) -> bool:
    """Whether a constant falls out of every advantage. What maps rewards to [0, 1] or replaces some reads their size;
    sums of steps have as many constants as there are steps."""
    return (
        case.rewards != "steps"
        and config.difficulty == "none"
        and config.prompt_sampler == "data"
        and config.process_reward_weight == 0.0
        and config.truncated_value is None
    )


def _is_of_trl(case: Case, config: CreditConfig) -> bool:
    if case.settings.get("sync_ref_model", False) != config.sync_ref_model:  # TRL's trainer refuses it with β = 0
        return False
    return case.algo in OF_TRL and {*case.settings} <= FIELDS_OF_TRL | {"shared_prefix"}


PLAIN = {"length_sort": "off", "shared_prefix": "off", "skip_zero_advantage": "off"}
LOGS = {"log_credit": 1, "log_completions": True}
ALWAYS = lambda case, config: True  # noqa: E731
EQUALITIES = (
    # the same rows in the same updates: sorting, trimming and sharing change rounding, and what is skipped is 0
    Equality("speed-ups off", lambda case: case.with_settings(**PLAIN), ALWAYS),
    # what is logged is read, not changed
    Equality("logs", lambda case: case.with_settings(**LOGS), ALWAYS),
    Equality("no logs", lambda case: case.with_settings(logging_steps=10), ALWAYS, logs=False),
    # a checkpoint has the whole state of a run
    Equality("resumed", lambda case: replace(case, resumes=True), _reaches_a_checkpoint),
    # a generation batch keeps its rows and their order, and a sum does not depend on how it is cut
    Equality("micro-batches", _halved, _sums_over_rows),
    # group statistics do not depend on the order, and the update sums over all rows of the batch
    Equality("permuted", lambda case: replace(case, reverses=True), _takes_any_order),
    # r − mean r does not change
    Equality("shifted rewards", lambda case: replace(case, shift=SHIFT), _compares, logs=False),
    # with every knob at its default the trainer is TRL's
    Equality("stock TRL", lambda case: replace(case, stock=True), _is_of_trl),
)


def checked(seed: int, number: int, model: str, *, most: int = len(EQUALITIES)) -> tuple[Case, dict[str, str]]:
    """Configuration `number`, and by the name of each equality that does not hold, what is unequal. What the trainer
    refuses is drawn again. `most`: of more equalities, so many are drawn."""
    for attempt in itertools.count():
        case = draw(seed, number, attempt)
        try:
            plain = train(case, model)
            break
        except Refused:
            continue
        except Exception as error:  # whatever it is, the configuration is to be printed, also below
            return case, {"plain": f"{type(error).__name__}: {error}"}
    claimed = [equality for equality in EQUALITIES if equality.holds(case, case.config())]
    problems = {}
    for name, change, _, logs in random.Random(f"{seed} {number}").sample(claimed, min(most, len(claimed))):
        try:
            problems[name] = difference(plain, train(change(case), model), logs=logs)
        except Exception as error:
            problems[name] = f"{type(error).__name__}: {error}"
    return case, {name: problem for name, problem in problems.items() if problem}


def difference(left: Trained, right: Trained, *, logs: bool) -> str | None:
    error, size = (left.change - right.change).abs().max().item(), left.change.abs().max().item()
    if not error <= TOLERANCE * size:  # also where one is NaN
        return f"weights by {error:.3g} of a change of {size:.3g}"
    if not logs:
        return None
    for key, value in right.rewards.items():
        if not abs(left.rewards.get(key, float("nan")) - value) <= TOLERANCE * max(1.0, abs(value)):
            return f"step {key[0]}, {key[1]}: {left.rewards.get(key)} and {value}"
    return None
