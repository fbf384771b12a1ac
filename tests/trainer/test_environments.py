"""Rewards and states of environments in TRL's own tool loop, driven by scripts."""

import functools

import numpy as np
import pytest
import torch
import trl
from agent_helpers import ANSWER, CALL, GRPO, PROMPT, TWO, Bare, Counting, batch_of, by_turn

from trl_credit import SPOChainConfig, SPOChainTrainer, StepRewards
from trl_credit.credit.returns import returns_to_go, state_group_advantages
from trl_credit.demo import Calculator, StepCalculator, agent_dataset, agent_reward
from trl_credit.loss import keys
from trl_credit.rewards.guard import RewardError
from trl_credit.trainer.environments import _comparable


pytest_plugins = ["agent_helpers"]

RAISES = "K<call>calc op=9 x=4</call><eos>"
UNKNOWN = "K<call>calc y=1</call><eos>"


@pytest.fixture
def play(make_agent):
    """A trainer of GRPO with rewards to go."""
    return functools.partial(make_agent, algo=GRPO, returns="to_go")


@pytest.mark.parametrize(
    ("turns", "wanted"),
    [
        ([[CALL, ANSWER], [ANSWER]], [[(0, 1.0)], []]),
        ([[TWO, CALL], [CALL, ANSWER], [ANSWER]], [[(0, 3.0), (1, 3.0)], [(0, 1.0)]]),
        ([[RAISES, UNKNOWN], [CALL, CALL], [ANSWER, ANSWER]], [[(0, 1.0), (1, 2.0)], [(1, 1.0)]]),
    ],
    ids=["one call", "parallel calls", "calls that raise"],
)
def test_rewards_belong_to_the_turn_that_called(play, turns, wanted):
    """However many calls it made, whether they raised, and whether TRL refused them before the environment."""
    trainer = play(*turns, environment=Counting, max_completion_length=200)
    generation = batch_of(trainer)
    assert by_turn(generation) == wanted
    names = trainer.reward_func_names
    assert names == ["agent_reward", "step_rewards"]
    totals = generation.batch.rewards_per_func[:, 1].tolist()
    assert totals == [sum(x for _, x in row) for row in wanted]
    assert trainer._metrics["train"]["rewards/step_rewards/mean"] == [sum(totals) / 2]


def test_a_result_that_is_rolled_back_leaves_its_reward_with_the_turn(play):
    """TRL drops the message of a call whose result does not fit. The environment was called all the same."""
    trainer = play([RAISES, CALL], [ANSWER], environment=Counting, max_completion_length=24)
    generation = batch_of(trainer)
    assert by_turn(generation) == [[(0, 1.0)], [(0, 1.0)]]
    assert generation.batch.turn_ids[0].max() == 0 and generation.batch.turn_ids[1].max() == 1


def test_equal_states_are_compared(play):
    """Both responses begin in one state; after different calls they are in two, then in one again."""
    first = ["K<call>calc op=+ x=4</call><eos>", "K<call>calc op=+ x=2</call><eos>"]
    second = ["B<call>calc op=+ x=0</call><eos>", "B<call>calc op=+ x=2</call><eos>"]
    last = ["7<eos>", "9<eos>"]
    trainer = play(first, second, last, environment=Calculator, returns="state_groups", step_gamma=0.5)
    generation = batch_of(trainer)
    assert generation.batch.rewards.tolist() == [0.0, 1.0]
    rewards, count = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64), torch.tensor([3, 3])
    states = torch.tensor([[0, 1, 3], [0, 2, 3]])
    groups = {"states_k": states, "num_generations": 2, "steps": count}
    returns = returns_to_go(rewards, gamma=0.5, steps=count)
    wanted = state_group_advantages(returns, outcome=rewards.sum(-1), **groups)
    assert wanted[1].tolist() == [0.5 + 0.25 / 2, 0.5, 0.5 + 1.0 / 2]
    turns = generation.batch.turn_ids
    for i in range(2):
        for turn in range(3):
            assert torch.allclose(generation.advantages[i][turns[i] == turn], wanted[i, turn].float(), atol=1e-6)
    assert trainer._metrics["train"]["credit/steps/shared_states"] == pytest.approx([4 / 6])


@pytest.mark.parametrize(("kind", "of_one"), [("mean", 0.5), ("loo", 1.0), ("std", 0.5 / (0.5**0.5 + 1e-6))])
@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_baseline_and_weight_of_states_act(play, weight, kind, of_one):
    knobs = {"returns": "state_groups", "state_weight": weight, "state_advantage": kind}
    generation = batch_of(play([ANSWER, "7<eos>"], environment=Calculator, **knobs))
    a = of_one * (1 + weight)
    assert generation.advantages[:, 0].tolist() == pytest.approx([a, -a], rel=1e-6)


class Restored(StepCalculator):
    """With methods in place of properties."""

    def snapshot(self) -> dict:
        """Copies the state.

        Returns:
            The copy.
        """
        return dict(vars(self))

    def restore(self, state: dict) -> None:
        """Sets the state back.

        Args:
            state: The copy.
        """
        vars(self).update(state)


@pytest.mark.parametrize("environment", [Calculator, StepCalculator, Restored])
def test_prompts_and_tools_are_those_of_trl_except_where_chains_restore(make_agent, environment):
    trainer = make_agent(algo=GRPO, environment=environment)
    stock = make_agent(algo=(trl.GRPOConfig, trl.GRPOTrainer), environment=environment)
    tools = ["calc", "restore", "snapshot"] if environment is Restored else ["calc"]
    prompts = []
    for one in (trainer, stock):
        assert [tool.__name__ for tool in one.tools] == tools
        batch = one._generate_and_score_completions(one.rows)
        prompts.append(one.processing_class.batch_decode(batch["prompt_ids"]))
        assert [sorted(named) for named in one._sync_tool_dicts] == [tools] * 2
    assert prompts[0] == prompts[1] and ("restore(state)" in prompts[0][0]) is (environment is Restored)


def test_a_chain_that_restores_hides_what_it_uses(make_agent):
    chain = {"algo": (SPOChainConfig, SPOChainTrainer), "segmentation": "turns", "rollouts_per_state": 2}
    script = [["<call>restore state=3</call><eos>", CALL], [ANSWER, ANSWER]]
    trainer = make_agent(*script, environment=Restored, **chain)
    assert [tool.__name__ for tool in trainer.tools] == ["calc"]
    batch = trainer.engine.sample(trainer.rows).data
    texts = trainer.processing_class.batch_decode(batch[keys.COMPLETION_IDS])
    assert "Tool restore not found" in texts[0] or "restore" in texts[0] and "error" in texts[0]
    assert all("restore" not in text for text in trainer.processing_class.batch_decode(batch[keys.PROMPT_IDS]))


class Forgetful(StepCalculator):
    def reset(self, **row):
        kept = self.step_rewards
        super().reset(**row)
        self.step_rewards = [*kept, 1.0]


class Strange(StepCalculator):
    @property
    def state_key(self):
        return object()


class NotANumber(Counting):
    def after(self) -> None:
        self.step_rewards[-1] = float("nan")


class Shrinking(Counting):
    def after(self) -> None:
        self.step_rewards = [1.0, 1.0, 1.0] if len(self.step_rewards) == 1 else [1.0]


class AtTheEnd(Calculator):
    """Scores the whole conversation when it is over: a list that is only then there."""

    values: list = []
    step_rewards: list = []

    def get_reward(self) -> float:
        self.step_rewards = list(type(self).values)
        return 0.0

    def reset(self, **row):
        super().reset(**row)
        self.step_rewards = []


class Odd(AtTheEnd):
    values = [1.0] * 5


class Scored:
    """An environment without tools, which only sets the problem and rewards the answer."""

    step_rewards: list = []

    def reset(self, **row):
        self.step_rewards = []

    def get_reward(self) -> float:
        self.step_rewards = [0.25]
        return 1.0


class Slow(Scored):
    async def get_reward(self) -> float:
        return Scored.get_reward(self)


@pytest.mark.parametrize(
    ("environment", "returns", "message"),
    [
        (Forgetful, "to_go", r"Forgetful.step_rewards has 1 values before the first turn .*empty it in reset"),
        (NotANumber, "to_go", r"NotANumber.step_rewards is \[nan, nan\]: give finite numbers"),
        (Shrinking, "to_go", r"Shrinking.step_rewards lost values during a rollout: only append to it"),
        (Strange, "state_groups", r"Strange.state_key has <object .*return a string, a number, or a tuple of these"),
        (Odd, "to_go", r"Odd.step_rewards has 5 values for 3 turns with 2 calls: give one value"),
        (Slow, "to_go", "changed after it was read.*make get_reward a plain function"),
    ],
)
def test_what_an_environment_does_wrong_names_it(play, environment, returns, message):
    trainer = play([CALL, CALL], [CALL, CALL], [ANSWER, ANSWER], environment=environment, returns=returns)
    with pytest.raises((RewardError, ValueError), match=message):
        batch_of(trainer)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([0.5, 1.0], [(0, 0.5), (1, 1.0)]), ([0.25, 0.5, 2.0], [(0, 2.75)]), ([None, 1.0], [(1, 1.0)])],
    ids=["per turn", "per call", "not scored"],
)
def test_a_list_made_at_the_end_has_a_value_per_turn_or_per_call(play, values, wanted):
    AtTheEnd.values = values
    call = CALL if len(values) == 2 else TWO.replace("<eos>", CALL[1:])  # three calls
    trainer = play([call, call], [ANSWER, ANSWER], environment=AtTheEnd, max_completion_length=200)
    assert trainer.reward_func_names == ["agent_reward", "AtTheEnd", "step_rewards"]
    assert by_turn(batch_of(trainer)) == [wanted, wanted]


def test_an_environment_may_be_the_only_reward(play):
    with pytest.raises(ValueError, match="there is no reward"):
        play(environment=Calculator, rewards=None)
    trainer = play([CALL, ANSWER], [ANSWER], environment=Counting, rewards=None)
    assert trainer.reward_func_names == ["step_rewards"] and trainer.reward_weights.tolist() == [1.0]
    assert batch_of(trainer).batch.rewards.tolist() == [1.0, 0.0]


def test_a_judge_of_turns_beside_the_environment(play):
    """Two functions that score turns add up, each with its weight."""

    def judge(completions, **kwargs):
        turns = [sum(m["role"] == "assistant" for m in messages) for messages in completions]
        return [StepRewards(range(1, n + 1), [10.0] * n, unit="turn") for n in turns]

    trainer = play([CALL, ANSWER], [ANSWER], environment=Counting, rewards=[judge], reward_weights=[0.5])
    generation = batch_of(trainer)
    assert by_turn(generation) == [[(0, 6.0), (1, 5.0)], [(0, 5.0)]]
    assert generation.batch.rewards.tolist() == [11.0, 5.0]


# Other kinds of environments


def test_a_list_that_get_reward_fills_is_read_after_it(play):
    for rewards in (None, agent_reward):
        trainer = play([ANSWER, "7<eos>"], environment=Scored, rewards=rewards)
        assert trainer.reward_func_names[-2:] == ["Scored", "step_rewards"]
        first = 1.0 if rewards else 0.0
        assert batch_of(trainer).batch.rewards.tolist() == [1.25 + first, 1.25]


def test_several_environments_of_which_some_have_rewards_and_states(play):
    """A row's environment is by its name; the other one takes no part in rewards of steps, nor in equal states."""
    data = agent_dataset(8).map(lambda row, i: {"environment": "plain" if i % 2 else "steps"}, with_indices=True)
    factories = {"steps": Counting, "plain": Bare}
    trainer = play([CALL, CALL], [ANSWER, ANSWER], environment=factories, data=data)
    trainer.rows = [{"prompt": PROMPT, "answer": "9", "environment": name} for name in factories]
    generation = batch_of(trainer)
    assert by_turn(generation) == [[(0, 1.0)], []]
    assert generation.batch.rewards_per_func[:, 1].isnan().tolist() == [False, True]
    trainer = play([CALL, CALL], [ANSWER, ANSWER], environment=factories, data=data, returns="state_groups")
    trainer.rows = [{"prompt": PROMPT, "answer": "9", "environment": "plain"}] * 2
    batch_of(trainer)
    assert trainer._metrics["train"]["credit/steps/shared_states"] == [0.0]  # an unknown state equals no other


@pytest.mark.parametrize(("key", "other"), [(1, 1.0), (True, 1), (np.int64(3), 3), ((1, "a"), (1.0, "a"))])
def test_equal_keys_are_equal_states(key, other):
    assert repr(_comparable(key, "Game")) == repr(_comparable(other, "Game")) != repr(_comparable("1", "Game"))
