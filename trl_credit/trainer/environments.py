"""The environments of TRL's tool loop: their rewards per step, and the states that turns begin in."""

import copy
import functools
import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from trl import GRPOTrainer

from ..config import CreditConfig
from ..credit.tokens import turn_numbers
from ..rewards.guard import RewardError, guard_rewards
from ..rewards.steps import StepLedger, StepRewards, as_number
from ..support.digests import short_digest
from ..support.errors import one_line
from ..support.functions import errors_named, unique_names
from .before_run import FirstRows
from .refusals import reward_rows


REWARD = "step_rewards"  # attribute of an environment, and the name of its column of rewards
# methods that are no tools of the policy where conversations are continued; other public methods are
HIDDEN = ("snapshot", "restore")
NOT_TOOLS = ("reset", "get_reward", *HIDDEN)


def guarded_rewards(
    trainer: GRPOTrainer, reward_funcs: Any, args: CreditConfig, given: dict[str, Any], first: list[FirstRows]
) -> tuple[Any, "Environments"]:
    """The reward functions of a trainer that is being made with the arguments `given`, guarded, and its environments.
    `first` has the first rows of its data.

    Raises what [`guard_rewards`] does.
    """
    rows, ledger = reward_rows(args, given, first), StepLedger(of_states=args.returns == "difference")
    reads = {"reads_states": args.returns == "state_groups", "keeps_snapshots": args.segmentation == "turns"}
    environments = Environments(trainer, ledger, **reads)
    guarded = guard_rewards(reward_funcs, timeout=args.reward_timeout, data=rows, ledger=ledger)
    if not reward_funcs and given.get("environment_factory") is not None:
        guarded = [environments.step_rewards]  # until it is known whether the environments have any
    return guarded, environments


class Environments:
    """Reads the environments of a trainer while it samples a batch.

    An environment may have `step_rewards`, a list that its tools append to and `reset` empties, and `state_key`, a
    property that says which state it is in. What a tool appended belongs to the turn that called it, however many calls
    that turn made. If the list is only made at the end, it has one value per turn, or else one per call.

    Args:
        trainer (`GRPOTrainer`):
            With its environments. TRL resets them before each batch.
        ledger ([`StepLedger`]):
            Gets the rewards.
        reads_states (`bool`, *optional*, defaults to `False`):
            Whether states are compared.
        keeps_snapshots (`bool`, *optional*, defaults to `False`):
            Whether conversations are continued from where their turns begin.
    """

    def __init__(
        self, trainer: GRPOTrainer, ledger: StepLedger, *, reads_states: bool = False, keeps_snapshots: bool = False
    ) -> None:
        self._trainer, self.ledger = trainer, ledger
        self._column: int | None = None
        self._begun: list[list[int]] = []  # per turn: number of step rewards of each environment
        self._ended: list[int] = []  # the same after the last tool
        self._read: list[int] = []  # the same when they were read
        self._states: list[list[int]] = []  # per turn: state of each environment
        self._reads_states, self._keeps_snapshots = reads_states, keeps_snapshots
        self.snapshots: list[list[Any]] = []  # per turn: what `snapshot` of each environment returned
        self.totals_alone = False  # whether rewards are of other conversations than those of the batch

        @functools.wraps(Environments._step_rewards)  # a run is identified by the code, not by this object
        def step_rewards(**kwargs: Any) -> list[float | None]:
            return self._step_rewards(**kwargs)

        step_rewards.__name__ = REWARD  # TRL logs by it
        self.step_rewards = step_rewards

    def settle(self) -> None:
        """Hides `snapshot` and `restore` where they are used, makes names unique, and adds a column for `step_rewards`,
        once TRL has made its environments.

        Raises:
            ValueError: nothing gives a reward, an environment lacks what is read of it, it goes with a rollout
                function, or processes that share an engine would have to wait for each other.
        """
        trainer = self._trainer
        if (factories := getattr(trainer, "environment_factories", None)) is not None:
            guarded = {name: lambda factory=x: _guard_reset(factory()) for name, x in factories.items()}
            trainer.environment_factories = guarded
        pool = [instances[0] for instances in (getattr(trainer, "_environment_pool", None) or {}).values()]
        has_rewards = any(_has(one, REWARD) for one in pool)
        if self._reads_states and not any(_has(one, "state_key") for one in pool):
            what = "returns='state_groups' compares states of environments"
            raise ValueError(f"{what}: give environment_factory a class with a property `state_key`.")
        if getattr(trainer, "rollout_func", None) is not None and (has_rewards or self._reads_states):
            what = "rollout_func with step_rewards or state_key of environments, which are read in TRL's tool loop"
            raise ValueError(f"{what}: leave one of the two out, and return StepRewards from a reward function.")
        if self._keeps_snapshots:
            self._check_continuing(pool)
            named = trainer._env_tools
            trainer._env_tools = {name: [t for t in tools if not _is_hidden(t)] for name, tools in named.items()}
            trainer.tools = [tool for tool in trainer.tools if not _is_hidden(tool)]
        if self.step_rewards in trainer.reward_funcs:  # as the first one, see `guarded_rewards`
            for column in (trainer.reward_funcs, trainer.reward_func_names, trainer.reward_processing_classes):
                del column[0]
            trainer.reward_weights = trainer.reward_weights[1:]
        if has_rewards:  # after `get_reward`, which may fill the list; of weight 1, as TRL adds that
            self._column = len(trainer.reward_funcs)
            trainer.reward_funcs.append(self.step_rewards)
            trainer.reward_func_names.append(REWARD)
            trainer.reward_processing_classes.append(None)
            trainer.reward_weights = torch.cat([trainer.reward_weights, torch.ones(1)])
        trainer.reward_func_names[:] = unique_names(trainer.reward_func_names)  # TRL logs equal names as one reward
        if not trainer.reward_funcs:
            what = "there is no reward: give reward_funcs, or environments with get_reward() or step_rewards"
            raise ValueError(f"{what}.")

    def _check_continuing(self, pool: list[Any]) -> None:
        for one in pool:
            if not _is_restored(one):
                what = f"segmentation='turns' continues from where turns begin, and {type(one).__name__} has no"
                raise ValueError(f"{what} snapshot() and restore(state): add them, or set rollouts='none'.")
        trainer, args = self._trainer, self._trainer.args
        shares_engine = args.use_vllm and (args.vllm_mode == "server" or args.vllm_tensor_parallel_size > 1)
        shares_weights = trainer.layout in ("ZeRO-3", "FSDP")
        if trainer.accelerator.num_processes > 1 and (shares_engine or shares_weights):
            what = "segmentation='turns' on several processes that share an engine, or weights (ZeRO-3, FSDP)"
            why = "each makes another number of calls, and all would have to generate together"
            raise ValueError(f"{what}: {why}. Give each process an engine and weights of its own.")

    # While a batch is sampled

    def begin_batch(self) -> None:
        """Forgets the last batch. The next `reset` of an environment names it and the row if it fails."""
        for one in (one for pool in (getattr(self._trainer, "_environment_pool", None) or {}).values() for one in pool):
            _guard_reset(one)
        self._begun, self._ended, self._states, self.snapshots = [], [], [], []

    def begin_turn(self) -> None:
        """Notes what the environments hold before the policy writes its next turn.

        Raises:
            RewardError: `step_rewards` is not empty after `reset`, or was not there when the trainer was made, or a
                `state_key` fails or cannot be compared.
        """
        trainer = self._trainer
        environments = getattr(trainer, "environments", None) or []
        if not environments:
            return
        if self._keeps_snapshots and not self._begun and trainer.tools:
            for tools in (*trainer._sync_tool_dicts, *trainer._async_tool_dicts):
                for name in [name for name, tool in tools.items() if _is_hidden(tool)]:
                    del tools[name]
        for one, length in zip(environments, self._lengths(), strict=True) if not self._begun else ():
            if _has(one, REWARD) and (self._column is None or length):
                what = f"{type(one).__name__}.{REWARD}"
                fix = "set it in __init__ too" if self._column is None else "empty it in reset()"
                raise RewardError(f"{what} has {length} values before the first turn of a rollout: {fix}.")
        self._begun.append(self._lengths())
        if self._keeps_snapshots:
            self.snapshots.append([_copied_snapshot(one) for one in environments])
        if self._reads_states:
            turn = len(self._states)
            self._states.append([self._state(one, (i, turn)) for i, one in enumerate(environments)])

    def end_turns(self) -> None:
        """Notes what the environments hold when the last tool has run, before their rewards are asked for."""
        self._ended = self._lengths()

    def _lengths(self) -> list[int]:
        found = (getattr(one, REWARD, None) for one in getattr(self._trainer, "environments", None) or ())
        return [0 if values is None else len(values) for values in found]

    def _state(self, one: Any, place: tuple[int, int]) -> int:
        name = type(one).__name__
        try:
            key = one.state_key if _has(one, "state_key") else None
        except Exception as error:
            raise RewardError(f"{name}.state_key raised {type(error).__name__}: {one_line(error)}") from error
        try:
            own = ("unknown", self._trainer.processes.rank, *place) if key is None else ("known", _plain(key))
        except TypeError:
            what = f"{name}.state_key is {key!r:.80} (a {type(key).__name__})"
            raise RewardError(
                f"{what}: return a string, a number, or a tuple of these, equal for equal states."
            ) from None
        return int(short_digest([repr(own)])[:15], 16)

    def check_read(self) -> None:
        """Checks that all rewards were read. TRL awaits an `async` `get_reward` after the other functions.

        Raises:
            RewardError: a list has changed after it was read.
        """
        if self._column is None or self._read == self._lengths():
            return
        what = f"{REWARD} of an environment changed after it was read, by an `async` function"
        raise RewardError(f"{what}: fill it in the tools, or make get_reward a plain function.")

    def states(self, written: Sequence[Sequence[int]]) -> list[list[int]] | None:
        """The state before each turn of each response, as a number; `None` if nothing compares states."""
        if not self._reads_states:
            return None
        turns = [_turns(row) for row in written]
        return [[states[i] for states in self._states[:count]] for i, count in enumerate(turns)]

    def _step_rewards(
        self, completions: list, completion_ids: list, environments: list, **kwargs: Any
    ) -> list[float | None]:
        """A reward function: the total of each environment's `step_rewards`, `None` for one without."""
        written = self.ledger.written or [[1] * len(ids) for ids in completion_ids]
        self._read = self._lengths()
        found: list[StepRewards | None] = []
        for i, one in enumerate(environments):
            values = getattr(one, REWARD, None)
            if values is None:
                found.append(None)
                continue
            name = type(one).__name__
            numbers = [x if x is None else as_number(x) for x in values]
            if any(x is None and y is not None for x, y in zip(numbers, values, strict=True)):
                raise RewardError(
                    f"{name}.{REWARD} is {[*values]!r:.200}: give finite numbers, or None for not scored."
                )
            of_each = [0] * len(numbers)
            if not self.totals_alone:
                of_each = self._turn_of_each(i, numbers, _turns(written[i]), completions[i], name)
            found.append(_per_turn(numbers, of_each, self.ledger))
        self.ledger.note(self._column, found)
        return [self.ledger.total(x, i) for i, x in enumerate(found)]

    def _turn_of_each(
        self, i: int, values: list[float | None], turns: int, completion: list[dict], name: str
    ) -> list[int]:
        """The turn, from 0, that each value belongs to."""
        begun = [lengths[i] for lengths in self._begun[:turns]]
        if self._ended and self._ended[i]:  # it grew while the policy and its tools were at work
            if sorted([*begun, len(values)]) != [*begun, len(values)]:
                raise RewardError(f"{name}.{REWARD} lost values during a rollout: only append to it.")
            return [sum(length <= n for length in begun) - 1 for n in range(len(values))]
        if len(values) in (0, turns):
            return [*range(turns)][: len(values)]
        written = [message for message in completion if message.get("role") == "assistant"]
        calls = [turn for turn, message in enumerate(written) for _ in message.get("tool_calls") or ()]
        if len(values) != len(calls) and turns > 1:
            what = f"{name}.{REWARD} has {len(values)} values for {turns} turns with {len(calls)} calls"
            raise RewardError(f"{what}: give one value per turn or per call, or append to it in the tools.")
        return [min(turn, turns - 1) for turn in calls] if len(values) == len(calls) else [0] * len(values)


def _per_turn(values: list[float | None], turn_of_each: list[int], ledger: StepLedger) -> StepRewards:
    by_turn: dict[int, float] = {}
    for value, turn in zip(values, turn_of_each, strict=True):
        if value is not None:
            by_turn[turn] = value + (0.0 if ledger.of_states else by_turn.get(turn, 0.0))
    if values and not by_turn:
        return StepRewards([1], [None], unit="turn")
    return StepRewards([turn + 1 for turn in sorted(by_turn)], [by_turn[turn] for turn in sorted(by_turn)], "turn")


def _turns(written: Sequence[int]) -> int:
    return int(turn_numbers(torch.tensor([written])).max()) + 1


def _has(one: Any, name: str) -> bool:
    """Whether an environment has an attribute or a property, which is not read here: it may need `reset`."""
    missing = object()
    return inspect.getattr_static(one, name, missing) is not missing


def _copied_snapshot(one: Any) -> Any:
    """A copy of what `snapshot()` returned. Raises [`~trl_credit.rewards.guard.RewardError`] if it has none."""
    state = one.snapshot()
    try:
        return copy.deepcopy(state)
    except Exception as error:
        what = f"{type(one).__name__}.snapshot() returned a {type(state).__name__} that cannot be copied"
        raised = f"copy.deepcopy raised {type(error).__name__}: {one_line(error)}"
        raise RewardError(f"{what} ({raised}): return plain data, without locks, files or connections.") from error


def _guard_reset(one: Any) -> Any:
    """Has the next `reset` of an environment name it and the row if it fails; then the environment is as before."""

    def reset(**row: Any) -> Any:
        del one.reset
        with errors_named(type(one).reset, f"{type(one).__name__}.reset, for the row {row!r:.200},"):
            return one.reset(**row)

    with suppress(AttributeError):  # with __slots__ its own error must do
        one.reset = reset
    return one


def _is_restored(one: Any) -> bool:
    return all(callable(getattr(one, name, None)) for name in HIDDEN)


def _is_hidden(tool: Any) -> bool:
    """Whether a tool is `snapshot` or `restore` of an environment that has both."""
    return getattr(tool, "__name__", "") in HIDDEN and _is_restored(getattr(tool, "__self__", None))


def _plain(key: Any) -> Any:
    """A key of which equal values have one text. Raises `TypeError` for another one."""
    if isinstance(key, tuple):
        return tuple(map(_plain, key))
    if isinstance(key, str):
        return str(key)
    if isinstance(key, int):
        return int(key)
    if (number := as_number(key)) is None:
        raise TypeError
    return int(number) if number.is_integer() else number
