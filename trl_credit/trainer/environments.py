"""The environments of TRL's tool loop: their rewards per step, and the states that turns begin in."""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from trl import GRPOTrainer

from ..config import CreditConfig
from ..credit.tokens import turn_numbers
from ..rewards.guard import RewardError
from ..rewards.steps import StepLedger, StepRewards, as_number
from ..support.digests import short_digest
from ..support.functions import unique_names
from .step_rewards import merged


REWARD = "step_rewards"  # attribute of an environment, and the name of its column of rewards
# methods that are no tools of the policy where conversations are continued; other public methods are
HIDDEN = ("snapshot", "restore")


class Environments:
    """Reads the environments of a trainer while it samples a batch.

    An environment may have `step_rewards`, a list that its tools append to and `reset` empties, and `state_key`, a
    property that says which state it is in. What a tool appended belongs to the turn that called it, however many calls
    that turn made. If the list is only made at the end, it has one value per turn, or else one per call.

    Args:
        trainer (`GRPOTrainer`):
            With its environments. TRL resets them before each batch.
        args ([`CreditConfig`]):
            Says whether states are compared, and whether conversations are continued from where their turns begin.

    Attributes:
        ledger ([`StepLedger`]):
            Gets the rewards.
        snapshots (`list[list]`):
            Per turn of the last batch: what `snapshot` of each environment returned.
        totals_alone (`bool`):
            Whether rewards are of other conversations than those of the batch.
    """

    def __init__(self, trainer: GRPOTrainer, args: CreditConfig) -> None:
        self._trainer, self.ledger = trainer, StepLedger(of_states=args.returns == "difference")
        self._reads_states, self._keeps_snapshots = args.returns == "state_groups", args.segmentation == "turns"
        self._column: int | None = None
        self._lengths_read: list[int] = []  # number of step rewards of each environment when they were read
        self.totals_alone = False
        self.begin_batch()

    def begin_batch(self) -> None:
        """Forgets the last batch."""
        self._begun: list[list[int]] = []  # per turn: number of step rewards of each environment
        self._ended: list[int] = []  # the same after the last tool
        self._states: list[list[int]] = []  # per turn: state of each environment
        self.snapshots: list[list[Any]] = []

    def settle(self) -> None:
        """Hides `snapshot` and `restore` where they are used, makes names unique, and adds a column for `step_rewards`,
        once TRL has made its environments.

        Raises:
            ValueError: nothing gives a reward, an environment lacks what is read of it, it goes with a rollout
                function, or processes that share an engine would have to wait for each other.
        """
        trainer = self._trainer
        pool = [instances[0] for instances in (getattr(trainer, "_environment_pool", None) or {}).values()]
        has_rewards = any(_has(one, REWARD) for one in pool)
        if self._reads_states and not any(_has(one, "state_key") for one in pool):
            raise ValueError("returns='state_groups': give environment_factory a class with a property `state_key`.")
        if getattr(trainer, "rollout_func", None) is not None and (has_rewards or self._reads_states):
            what = "rollout_func with step_rewards or state_key of environments, which are read in TRL's tool loop"
            raise ValueError(f"{what}: leave one of the two out, and return StepRewards from a reward function.")
        if self._keeps_snapshots:
            self._check_continuing(pool)
            for tools in (*trainer._env_tools.values(), trainer.tools):
                tools[:] = [tool for tool in tools if tool.__name__ not in HIDDEN]
        columns = trainer.reward_funcs, trainer.reward_func_names, trainer.reward_processing_classes
        if self.step_rewards in trainer.reward_funcs:  # as the first one, in place of none
            for column in columns:
                del column[0]
            trainer.reward_weights = trainer.reward_weights[1:]
        if has_rewards:  # after `get_reward`, which may fill the list; of weight 1, as TRL adds that
            self._column = len(trainer.reward_funcs)
            for column, value in zip(columns, (self.step_rewards, REWARD, None), strict=True):
                column.append(value)
            trainer.reward_weights = torch.cat([trainer.reward_weights, torch.ones(1)])
        trainer.reward_func_names[:] = unique_names(trainer.reward_func_names)  # TRL logs equal names as one reward
        if not trainer.reward_funcs:
            raise ValueError("there is no reward: give reward_funcs or environments with get_reward or step_rewards.")

    def _check_continuing(self, pool: list[Any]) -> None:
        if lacking := [type(one).__name__ for one in pool if not all(_has(one, name) for name in HIDDEN)]:
            what = f"segmentation='turns', and {lacking[0]} has no snapshot() and restore(state)"
            raise ValueError(f"{what}: add them, or set rollouts='none'.")
        trainer, args = self._trainer, self._trainer.args
        shares_engine = args.use_vllm and (args.vllm_mode == "server" or args.vllm_tensor_parallel_size > 1)
        if trainer.accelerator.num_processes > 1 and (shares_engine or trainer.layout in ("ZeRO-3", "FSDP")):
            raise ValueError("segmentation='turns': give each process its own engine and weights (no ZeRO-3, no FSDP).")

    # While a batch is sampled

    def begin_turn(self) -> None:
        """Notes what the environments hold before the policy writes its next turn.

        Raises:
            RewardError: `step_rewards` is not empty after `reset`, or was not there when the trainer was made, or a
                `state_key` cannot be compared.
        """
        environments, lengths, turn = self._instances, self._lengths(), len(self._begun)
        for one, length in zip(environments, lengths, strict=True):
            if turn == 0 and _has(one, REWARD) and (self._column is None or length):
                fix = "set it in __init__ too" if self._column is None else "empty it in reset()"
                what = f"{type(one).__name__}.{REWARD} has {length} values before the first turn of a rollout"
                raise RewardError(f"{what}: {fix}.")
        self._begun.append(lengths)
        if self._keeps_snapshots:
            for tools in (*self._trainer._sync_tool_dicts, *self._trainer._async_tool_dicts):
                for name in HIDDEN:
                    tools.pop(name, None)
            self.snapshots.append([copy.deepcopy(one.snapshot()) for one in environments])
        if self._reads_states:
            self._states.append([self._state(one, (i, turn)) for i, one in enumerate(environments)])

    def end_turns(self) -> None:
        """Notes what the environments hold when the last tool has run, before their rewards are asked for."""
        self._ended = self._lengths()

    @property
    def _instances(self) -> list[Any]:  # of the batch that is sampled
        return getattr(self._trainer, "environments", None) or []

    def _lengths(self) -> list[int]:
        return [len(getattr(one, REWARD, None) or ()) for one in self._instances]

    def _state(self, one: Any, place: tuple[int, int]) -> int:
        key = one.state_key if _has(one, "state_key") else None
        unknown = "unknown", self._trainer.processes.rank, *place
        state = unknown if key is None else ("known", _comparable(key, type(one).__name__))
        return int(short_digest([repr(state)])[:15], 16)

    def check_read(self) -> None:
        """Checks that all rewards were read. TRL awaits an `async` `get_reward` after the other functions.

        Raises:
            RewardError: a list has changed after it was read.
        """
        if self._column is not None and self._lengths_read != self._lengths():
            what = f"{REWARD} of an environment changed after it was read, by an `async` function"
            raise RewardError(f"{what}: fill it in the tools, or make get_reward a plain function.")

    def states(self, written: Sequence[Sequence[int]]) -> list[list[int]] | None:
        """The state before each turn of each response, as a number; `None` if nothing compares states."""
        if not self._reads_states:
            return None
        return [[states[i] for states in self._states[: _turns(row)]] for i, row in enumerate(written)]

    def step_rewards(self, completions: list, environments: list, **kwargs: Any) -> list[float | None]:
        """A reward function: the total of each environment's `step_rewards`, `None` for one without."""
        self._lengths_read = self._lengths()
        rewards: list[StepRewards | None] = [None] * len(environments)
        for i, one in enumerate(environments):
            if (values := getattr(one, REWARD, None)) is None:
                continue
            name = f"{type(one).__name__}.{REWARD}"
            numbers = [x if x is None else as_number(x) for x in values]
            if numbers.count(None) > sum(x is None for x in values):
                raise RewardError(f"{name} is {[*values]!r:.200}: give finite numbers, or None for not scored.")
            turns = [0] * len(numbers)
            if not self.totals_alone:
                turns = self._turn_of_each(i, len(numbers), _turns(self.ledger.written[i]), completions[i], name)
            by_turn = merged(turns, numbers, of_states=self.ledger.of_states) or ({0: None} if numbers else {})
            rewards[i] = StepRewards([turn + 1 for turn in by_turn], [*by_turn.values()], unit="turn")
        return self.ledger.note(self._column, rewards)

    def _turn_of_each(self, i: int, count: int, turns: int, completion: list[dict], name: str) -> list[int]:
        """The turn, from 0, that each of the `count` values of environment `i` belongs to."""
        begun = [lengths[i] for lengths in self._begun[:turns]]
        if self._ended and self._ended[i]:  # it grew while the policy and its tools were at work
            if sorted([*begun, count]) != [*begun, count]:
                raise RewardError(f"{name} lost values during a rollout: only append to it.")
            return [sum(length <= n for length in begun) - 1 for n in range(count)]
        if count in (0, turns):
            return [*range(count)]
        messages = [message for message in completion if message.get("role") == "assistant"]
        calls = [turn for turn, message in enumerate(messages) for _ in message.get("tool_calls") or ()]
        if count == len(calls):
            return [min(turn, turns - 1) for turn in calls]
        if turns > 1:
            what = f"{name} has {count} values for {turns} turns with {len(calls)} calls"
            raise RewardError(f"{what}: give one value per turn or per call, or append to it in the tools.")
        return [0] * count


def _turns(written: Sequence[int]) -> int:
    return int(turn_numbers(torch.tensor([written])).max()) + 1


def _has(one: Any, name: str) -> bool:
    """Whether an environment has an attribute or a property, which is not read here: it may need `reset`."""
    return inspect.getattr_static(one, name, inspect) is not inspect


def _comparable(key: Any, environment: str) -> Any:
    """A key of which equal values have one text."""
    if isinstance(key, tuple):
        return tuple(_comparable(part, environment) for part in key)
    if isinstance(key, (str, int)):
        return str(key) if isinstance(key, str) else int(key)
    if (number := as_number(key)) is None:
        what = f"{environment}.state_key has {key!r:.80} (a {type(key).__name__})"
        raise RewardError(f"{what}: return a string, a number, or a tuple of these, equal for equal states.")
    return int(number) if number.is_integer() else number
