"""Refuses what a trainer cannot do, before a model is loaded if possible, and overrides that leave out the credit."""

import warnings
from typing import Any

import trl
from accelerate.logging import get_logger
from datasets import IterableDataset
from packaging.version import Version
from transformers import TrainerCallback

from ..config import CreditConfig
from ..config.knobs import values_of
from ..presets import PRESETS
from ..rewards.signature import Rows
from .before_run import FirstRows


logger = get_logger(__name__)

TESTED_TRL_MINORS = ("1.12", "1.13", "1.14", "1.16")  # the only 1.15 is 1.15.0, which needs Triton to train
OF_LOSS = ("compute_loss", "_compute_loss")


def check_trl_version(version: str) -> None:
    """Warns if TRL is newer than the newest release that the contract test of `_compute_loss` covers."""
    if Version(version).release[:2] > max(Version(minor).release for minor in TESTED_TRL_MINORS):
        text = f"trl {version} is newer than all that trl_credit was tested with: {', '.join(TESTED_TRL_MINORS)}"
        warnings.warn(f"{text}. Before a long run, run `pytest tests/loss/test_contract.py`.", stacklevel=3)


def check_arguments(args: Any, kwargs: dict[str, Any], *, expected: type[CreditConfig]) -> None:
    """Checks the arguments of a trainer whose configuration class should be `expected`.

    Raises:
        TypeError: `args` is a plain `GRPOConfig`, or the configuration of another algorithm.
        ValueError: liger bypasses the loss, rows of a stream are drawn by number, a function of the configuration is
            missing, or a knob does not go with responses of one turn or of several.
    """
    kind, wanted, argument = type(args).__name__, expected.__name__, kwargs.get
    if not isinstance(args, CreditConfig):
        raise TypeError(f"args is a {kind}, which has no credit knobs: pass {wanted}.from_trl(args), or a {wanted}.")
    known = [preset.config for preset in PRESETS.values()]
    own = next(of for of in type(args).__mro__ if of is CreditConfig or of in known)
    if expected in known and own is not expected:  # the card would name another algorithm than the one that trains
        fix = f"build a {wanted}, or train with {own.__name__.replace('Config', 'Trainer')}"
        raise TypeError(f"args is a {kind}, which is not of this trainer's algorithm: {fix}.")
    if args.use_liger_kernel and Version(trl.__version__) < Version("1.14"):
        raise ValueError("use_liger_kernel=True bypasses the loss before trl 1.14: set it to False, or update trl.")
    if args.draws_prompts and isinstance(argument("train_dataset"), IterableDataset):
        what = values_of(args, ["prompt_sampler" if args.prompt_sampler != "data" else "groups"])
        fix = "load it without streaming=True, or set prompt_sampler='data' and groups to 'keep' or 'replace'"
        raise ValueError(f"{what} draws rows by number, and train_dataset is a stream: {fix}.")
    has_turns = any(map(argument, ("rollout_func", "tools", "environment_factory")))
    by_turn = {"trace_unit": args.has_trace and args.trace_unit == "turn", "turn_average": args.turn_average}
    if idle := [name for name, acts in by_turn.items() if acts and not has_turns]:
        fix = "give the trainer tools, environment_factory or rollout_func, or leave it out"
        raise ValueError(f"{values_of(args, idle)} does nothing for responses of one turn: {fix}.")
    for name in args.custom_functions():  # a saved configuration may name a function that is missing here
        args.custom_function(name)
    divides_turns = args.rollouts == "chain" and args.segmentation == "turns"
    if divides_turns and argument("environment_factory") is None:
        raise ValueError("segmentation='turns' divides conversations with environments: give environment_factory.")
    if args.rollouts != "none" and has_turns and (argument("tools") or argument("rollout_func") or not divides_turns):
        what = f"{values_of(args, ['rollouts', 'segmentation'])}: their responses cannot be continued from the middle"
        fix = "set rollouts='none', or with an environment alone rollouts='chain' and segmentation='turns'"
        raise ValueError(f"tools, environment_factory or rollout_func with {what}: {fix}.")
    if args.td_upper_bound and has_turns:
        raise ValueError("td_upper_bound=True with turns, which EOS may end before the response: set it to False.")


def check_overrides(trainer_class: type, ours: type) -> None:
    """Refuses methods of a subclass that carried a custom algorithm in earlier releases, and would do nothing now."""
    bases, removed = trainer_class.__mro__, ("credit", "credit_state", "load_credit_state")
    for base in bases[: bases.index(ours)]:
        for name in vars(base).keys() & removed:
            fix = "make it an object with credit, state_dict and load_state_dict, and give it as credit=…"
            raise TypeError(f"{base.__name__}.{name} has no effect: {fix} (see trl-credit help your_own_algorithm).")


def reward_rows(args: CreditConfig, kwargs: dict[str, Any], first_rows: list[FirstRows]) -> list[Rows]:
    """The names that the rows of each data set of a trainer pass to the reward functions."""
    environments = ("environments",) if kwargs.get("environment_factory") is not None else ()
    is_known = kwargs.get("rollout_func") is None  # which adds columns
    cuts, kept = args.remove_unused_columns, ("prompt", "image", "images")
    note = " with remove_unused_columns=True (set it to False)" * cuts
    columns_of = {what + note: tuple(x for x in rows[0] if x in kept or not cuts) for what, _, rows in first_rows}
    return [Rows(what, columns if is_known else None, environments) for what, columns in columns_of.items()]


def check_made(trainer: trl.GRPOTrainer, *, needs_drift: bool) -> None:
    """Checks a trainer once it is made. Warns if the number of updates per generation batch does not fit: OPO's
    baseline is derived for exactly on-policy learning without KL, and a credit function that `needs_drift` changes
    nothing with one update.

    Raises:
        ValueError: the reference model or a teacher would be random on every process but the first.
    """
    args, sharding = trainer.args, getattr(trainer.accelerator.state, "fsdp_plugin", None)
    has_other = getattr(trainer, "ref_model", None) is not None or (trainer.teacher and trainer.teacher.is_loaded)
    if has_other and sharding is not None and sharding.cpu_ram_efficient_loading:
        what = "fsdp_cpu_ram_efficient_loading: true leaves a second model (the reference, a teacher) random on all"
        raise ValueError(f"{what} processes but the first: set it to false for accelerate.")
    if needs_drift and args.is_aligned:
        what = f"credit={args.credit!r} changes nothing with one update per batch of responses"
        logger.warning(f"{what}: raise steps_per_generation or num_iterations")
    if args.baseline == "optimal" and not (args.is_aligned and args.beta == 0.0):
        has = values_of(args, ["steps_per_generation", "gradient_accumulation_steps", "num_iterations", "beta"])
        logger.warning(f"baseline='optimal' (OPO) is for one update per batch and no KL, and this run has {has}")


def override_of(trainer: trl.GRPOTrainer, name: str) -> str | None:
    """ "Class.method" if a subclass, a mixin or the instance overrides a method of the package, else `None`."""
    owner = next(one for one in type(trainer).__mro__ if name in vars(one))
    if name in vars(trainer):
        where = " (set on the instance)"
    elif owner.__module__.partition(".")[0] in ("transformers", "trl", "trl_credit"):
        return None
    else:
        where = f" (of {owner.__name__})" * (owner is not type(trainer))
    return f"{type(trainer).__name__}.{name}{where}"


class Overrides(TrainerCallback):
    """Refuses a training step in which an override left out what carries credit. Not its source decides, but what ran.

    Args:
        trainer (`GRPOTrainer`):
            Gets this callback. Its methods add their names to `ran`.
    """

    def __init__(self, trainer: trl.GRPOTrainer) -> None:
        self._trainer = trainer
        self.ran: set[str] = set()  # methods of the package that have run in this step
        trainer.add_callback(self)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ran.clear()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name in ("training_step", "_prepare_inputs", "_compute_loss"):
            self.require(name)

    def require(self, name: str) -> None:
        """Checks that a method of the package has run in this step.

        Raises:
            TypeError: it has not. The message names the override and the ways out.
        """
        if name not in self.ran:
            labels = [override_of(self._trainer, one) for one in (OF_LOSS if name in OF_LOSS else (name,))]
            who = " or ".join(filter(None, labels)) or f"{type(self._trainer).__name__}.{name}"
            what = f"{who} did not call super() in this training step, which would leave out the credit of"
            fix = f"call super().{name} and add to what it returns, or train with trl.GRPOTrainer, or write a `credit`"
            raise TypeError(f"{what} {self._trainer.algorithm_name}: {fix} function.")

    def check_forward(self, calls: int) -> None:
        """Checks that the package's forward pass, which writes credit, ran once in a loss.

        Raises:
            RuntimeError: it did not, by an override or by the installed TRL.
        """
        if calls != 1:
            override = override_of(self._trainer, "_get_per_token_logps_and_entropies")
            what = f"computed log-probabilities {calls} times in one loss, not once, by super(), so credit was lost"
            fix = f"install trl {' or '.join(TESTED_TRL_MINORS)}" if override is None else "call super() there, once"
            raise RuntimeError(f"{override or f'TRL {trl.__version__}'} {what}: {fix}.")
