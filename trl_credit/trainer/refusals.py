"""Refuses what a trainer cannot do, before a model is loaded if possible."""

import inspect
import warnings
from typing import Any

import trl
from accelerate.logging import get_logger
from datasets import IterableDataset
from packaging.version import Version

from ..config import CreditConfig
from ..config.knobs import in_words, number, unmet, values_of, when
from ..presets import PRESETS
from ..rewards.signature import Rows
from ..support.errors import raise_together
from ..support.retired import meant_by
from .before_run import FirstRows


logger = get_logger(__name__)

TESTED_TRL_MINORS = ("1.12", "1.13", "1.14", "1.16")  # the only 1.15 is 1.15.0, which needs Triton to train
_MAKE_TURNS = ("rollout_func", "tools", "environment_factory")  # arguments of GRPOTrainer
# local variables of a trainer's `__init__` that `known_to_trl` leaves out; the others are arguments of GRPOTrainer
_OURS = ("self", "__class__", "model", "reward_funcs", "args", "newer")


def check_trl_version(version: str) -> None:
    """Warns if TRL is newer than the newest release that the contract test of `_compute_loss` covers."""
    release = Version(version)
    newest = max(map(Version, TESTED_TRL_MINORS))
    if (release.major, release.minor) > (newest.major, newest.minor):
        message = f"trl {version} is newer than {newest}, the newest that trl_credit was tested with. Before a long run"
        warnings.warn(f"{message}, run `pytest tests/loss/test_contract.py`, or install an older trl.", stacklevel=3)


def check_arguments(args: Any, kwargs: dict[str, Any], *, expected: type[CreditConfig]) -> None:
    """Checks the arguments of a trainer whose configuration class should be `expected`.

    Raises:
        TypeError: `args` is a plain `GRPOConfig`, or the configuration of another algorithm.
        ValueError: liger bypasses the loss, segments or `td_upper_bound` go with tools, environments or a rollout
            function, rows of a stream are drawn by number, or a function of the configuration is missing.
    """
    if not isinstance(args, CreditConfig):
        what = f"args is a {type(args).__name__}, which has no credit knobs"
        raise TypeError(
            f"{what}: pass {expected.__name__}.from_trl(args), or a {expected.__name__} with the same fields."
        )
    known = [preset.config for preset in PRESETS.values()]
    own = next(of for of in type(args).__mro__ if of is CreditConfig or of in known)
    if expected in known and own is not expected:  # the card would name another algorithm than the one that trains
        what = f"args is a {type(args).__name__}, which is not of this trainer's algorithm"
        named = own.__name__.replace("Config", "Trainer")
        raise TypeError(f"{what}: build a {expected.__name__}, or train with {named}.")
    if args.use_liger_kernel and Version(trl.__version__) < Version("1.14"):
        what = f"use_liger_kernel=True bypasses the loss in trl {trl.__version__}, and all credit with it"
        raise ValueError(f"{what}: set use_liger_kernel=False, or install trl>=1.14.")
    if args.draws_prompts and isinstance(kwargs.get("train_dataset"), IterableDataset):
        name = "prompt_sampler" if args.prompt_sampler != "data" else "groups"
        what = f"{name}={getattr(args, name)!r} draws rows by number, and train_dataset is a stream"
        fix = "load it without streaming=True, or set prompt_sampler='data' and groups to 'keep' or 'replace'"
        raise ValueError(f"{what}: {fix}.")
    has_turns = any(kwargs.get(name) for name in _MAKE_TURNS)
    by_turn = {"trace_unit": args.has_trace and args.trace_unit == "turn", "turn_average": args.turn_average}
    if idle := [name for name, acts in by_turn.items() if acts and not has_turns]:
        what = f"{values_of(args, idle)} does nothing for responses of one turn"
        raise ValueError(f"{what}: give the trainer tools, environment_factory or rollout_func, or leave it out.")
    for name in args.custom_functions():  # a saved configuration may name a function that is missing here
        args.custom_function(name)
    environment, others = kwargs.get("environment_factory"), kwargs.get("tools") or kwargs.get("rollout_func")
    divides_turns = args.rollouts == "chain" and args.segmentation == "turns"
    if divides_turns and environment is None:
        what = "segmentation='turns' divides conversations with environments"
        raise ValueError(f"{what}: give the trainer environment_factory, or set another segmentation.")
    if args.rollouts != "none" and has_turns and (others or not divides_turns):
        what = f"{values_of(args, ['rollouts', 'segmentation'])}: their responses cannot be continued from the middle"
        fix = "set rollouts='none', or with an environment alone rollouts='chain' and segmentation='turns'"
        raise ValueError(f"tools, environment_factory or rollout_func with {what}: {fix}.")
    if args.td_upper_bound and has_turns:
        what = "td_upper_bound=True with tools, environment_factory or rollout_func"
        raise ValueError(f"{what}: an EOS token may end a turn there and not the response. Set td_upper_bound=False.")


def check_overrides(trainer_class: type, ours: type) -> None:
    """Refuses methods of a subclass that carried a custom algorithm in earlier releases, and would do nothing now."""
    for base in trainer_class.__mro__[: trainer_class.__mro__.index(ours)]:
        for name in ("credit", "credit_state", "load_credit_state"):
            if name in vars(base):
                fix = "make it an object with credit, state_dict and load_state_dict, and give it as credit=…"
                raise TypeError(f"{base.__name__}.{name} has no effect: {fix} (see trl-credit help credit_contract).")


def known_to_trl(variables: dict[str, Any]) -> dict[str, Any]:
    """The local variables of a trainer's `__init__` that are further arguments of `GRPOTrainer` in the installed TRL.

    Raises:
        TypeError: an argument was given that the installed TRL lacks.
    """
    known = inspect.signature(trl.GRPOTrainer.__init__).parameters
    arguments = {name: value for name, value in variables.items() if name not in _OURS}
    unknown = [name for name, value in arguments.items() if name not in known and value is not None]
    what = f"trl {trl.__version__} has no such argument of GRPOTrainer"
    raise_together([TypeError(f"{name}: {what}{meant_by(name, known) or ': leave it out'}") for name in unknown])
    return {name: value for name, value in arguments.items() if name in known}


def reward_rows(args: CreditConfig, kwargs: dict[str, Any], first_rows: list[FirstRows]) -> list[Rows]:
    """The names that the rows of each data set of a trainer pass to the reward functions."""
    environments = ("environments",) if kwargs.get("environment_factory") is not None else ()
    is_known = kwargs.get("rollout_func") is None  # which adds columns
    rows_of = []
    for what, _, rows in first_rows:
        columns = tuple(rows[0])
        if args.remove_unused_columns:
            what += " with remove_unused_columns=True (set it to False)"
            columns = tuple(name for name in columns if name in ("prompt", "image", "images"))
        rows_of.append(Rows(what, columns if is_known else None, environments))
    return rows_of


def warn_about_updates(args: CreditConfig, *, needs_drift: bool) -> None:
    """Warns if the number of updates per generation batch does not fit: OPO's baseline is derived for exactly on-policy
    learning without KL, and a credit function that `needs_drift` changes nothing with one update."""
    if needs_drift and args.is_aligned:
        updates = values_of(args, ["steps_per_generation", "gradient_accumulation_steps", "num_iterations"])
        what = f"credit={args.credit!r} changes nothing while the policy that is trained is the one that sampled"
        fix = "raise steps_per_generation or num_iterations"
        logger.warning(f"{what}, and {updates} is one update per batch of responses: {fix}")
    window = args.gradient_accumulation_steps
    one_update = number(f"{window} (gradient_accumulation_steps) or less", lambda x: x <= window)
    wrong = unmet(args, when(steps_per_generation=one_update, num_iterations=1, beta=0.0))
    if args.baseline == "optimal" and wrong:
        what = "baseline='optimal' (OPO) is derived for one update per batch of responses and no KL"
        fix = f"set {in_words(wrong)}, unless you intend this"
        logger.warning(f"{what}, and this run has {values_of(args, wrong)}: {fix}")


def check_sharding(state: Any, args: CreditConfig, *, reference: Any) -> None:
    """Checks the accelerator's state, given the reference model or `None`.

    Raises:
        ValueError: the reference model would be random on every process but the first.
    """
    fsdp = getattr(state, "fsdp_plugin", None)
    if fsdp is not None and fsdp.cpu_ram_efficient_loading and reference is not None:
        raise ValueError(
            f"fsdp_cpu_ram_efficient_loading: true with beta={args.beta} leaves the reference model random on all "
            "processes but the first: set it to false in the accelerate configuration, or beta=0."
        )
