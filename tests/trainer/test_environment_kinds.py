"""Environments of many kinds: without tools, asynchronous, mixed, with rewards that come late, and failing ones."""

import asyncio

import numpy as np
import pytest
from agent_helpers import ANSWER, CALL, GRPO, PROMPT, TWO, Bare, Counting, batch_of, by_turn

from trl_credit import StepRewards
from trl_credit.demo import Calculator, agent_dataset, agent_reward
from trl_credit.loss import keys
from trl_credit.rewards.guard import RewardError
from trl_credit.support.functions import FunctionRaised


pytest_plugins = ["agent_helpers"]

TO_GO = {"returns": "to_go"}


class NoTools:
    """An environment that only sets the problem and rewards the answer."""

    def reset(self, **row):
        return None

    def get_reward(self) -> float:
        return 0.5


class Scored(NoTools):
    step_rewards: list = []

    def reset(self, **row):
        self.step_rewards = []

    def get_reward(self) -> float:
        self.step_rewards = [0.25]
        return 1.0


def test_a_list_that_get_reward_fills_is_read_after_it(make_agent):
    for rewards in (None, agent_reward):
        trainer = make_agent([ANSWER, "7<eos>"], environment=Scored, algo=GRPO, rewards=rewards, returns="to_go")
        assert trainer.reward_func_names[-2:] == ["Scored", "step_rewards"]
        first = 1.0 if rewards else 0.0
        assert batch_of(trainer).batch.rewards.tolist() == [1.25 + first, 1.25]


class Slow(Scored):
    async def get_reward(self) -> float:
        return Scored.get_reward(self)


def test_what_an_async_get_reward_adds_too_late_is_not_lost_silently(make_agent):
    trainer = make_agent([ANSWER, ANSWER], environment=Slow, algo=GRPO, returns="to_go")
    with pytest.raises(RewardError, match="changed after it was read.*make get_reward a plain function"):
        batch_of(trainer)


class Waits(Counting):
    async def calc(self, op: str, x: int) -> str:
        """Counts, and lets others run.

        Args:
            op: The operation.
            x: The operand.

        Returns:
            The value.
        """
        await asyncio.sleep(0)
        return Counting.calc(self, op, x)


def test_async_tools(make_agent):
    trainer = make_agent([TWO, CALL], [ANSWER, ANSWER], environment=Waits, algo=GRPO, **TO_GO, max_completion_length=90)
    assert by_turn(batch_of(trainer)) == [[(0, 3.0)], [(0, 1.0)]]


def test_several_environments_of_which_some_have_rewards_and_states(make_agent):
    """A row's environment is by its name; the other one takes no part in rewards of steps, nor in equal states."""
    data = agent_dataset(8).map(lambda row, i: {"environment": "plain" if i % 2 else "steps"}, with_indices=True)
    factories = {"steps": Counting, "plain": Bare}
    given = {"environment": factories, "algo": GRPO, "data": data}
    trainer = make_agent([CALL, CALL], [ANSWER, ANSWER], returns="to_go", **given)
    trainer.rows = [{"prompt": PROMPT, "answer": "9", "environment": name} for name in factories]
    made = batch_of(trainer)
    assert by_turn(made) == [[(0, 1.0)], []]
    assert made.batch.rewards_per_func[:, 1].isnan().tolist() == [False, True]
    trainer = make_agent([CALL, CALL], [ANSWER, ANSWER], returns="state_groups", **given)
    trainer.rows = [{"prompt": PROMPT, "answer": "9", "environment": name} for name in factories]
    batch_of(trainer)
    assert trainer._metrics["train"]["credit/steps/shared_states"] == [0.0]  # a state that is not known is no equal


@pytest.mark.parametrize(("key", "other"), [(1, 1.0), (True, 1), (np.int64(3), 3), ((1, "a"), (1.0, "a"))])
def test_equal_keys_are_equal_states(make_agent, key, other):
    class Keyed(Calculator):
        made = 0

        def __init__(self):
            super().__init__()
            type(self).made += 1
            self.own = key if type(self).made == 1 else other

        @property
        def state_key(self):
            return self.own

    trainer = make_agent([ANSWER, "7<eos>"], environment=Keyed, algo=GRPO, returns="state_groups")
    batch_of(trainer)
    assert trainer._metrics["train"]["credit/steps/shared_states"] == [1.0]


def test_a_batch_after_one_that_failed_has_its_own_rewards(make_agent):
    failing = [True]

    def steps_once(completions, **kwargs):
        return [StepRewards([1], [100.0 * (1 - 2 * i)], unit="turn") for i in range(2)] if failing else [0.0, 1.0]

    def raises_once(completions, **kwargs):
        if failing:
            failing.clear()
            raise OSError("once")
        return [0.0, 0.0]

    trainer = make_agent(
        *[[ANSWER, ANSWER]] * 2, environment=Bare, algo=GRPO, rewards=[steps_once, raises_once], **TO_GO
    )
    with pytest.raises(FunctionRaised, match="raises_once"):
        batch_of(trainer)
    made = batch_of(trainer)
    assert made.advantages[:, 0].tolist() == [-1.0, 1.0] and keys.STEP_REWARDS not in made.batch.data
