"""Rewards and states of environments in TRL's own tool loop, driven by scripts."""

import copy
import json

import pytest
import torch
from agent_helpers import CALL, PROMPT, TASK

from trl_credit import CreditConfig, CreditTrainer, SPOChainConfig, SPOChainTrainer
from trl_credit.credit.returns import returns_to_go, state_group_advantages, to_go_advantages
from trl_credit.demo import Calculator, StepCalculator, agent_dataset, agent_reward
from trl_credit.demo.agent import right_call, work_out
from trl_credit.loss import keys
from trl_credit.observe.schema import read_shard, steps
from trl_credit.rewards.guard import RewardError


pytest_plugins = ["agent_helpers"]

GRPO = (CreditConfig, CreditTrainer)
WRONG = "K<call>calc op=+ x=4</call><eos>"
RAISES = "K<call>calc op=9 x=4</call><eos>"
UNKNOWN = "K<call>calc y=1</call><eos>"
TWO = "<call>calc op=- x=2</call><call>calc op=+ x=1</call><eos>"
ANSWER = "9<eos>"


class Counting(StepCalculator):
    """Scores the n-th call that it gets with n, also one that raises."""

    def calc(self, op: str, x: int) -> str:
        """Counts.

        Args:
            op: The operation.
            x: The operand.

        Returns:
            The value.
        """
        try:
            return Calculator.calc(self, op, x)
        finally:
            self.step_rewards.append(len(self.step_rewards) + 1.0)


def batch_of(trainer):
    """The generation batch of the scripted rows."""
    return trainer.make_batch(trainer.rows)


def by_turn(made) -> list[list[float]]:
    """Of each row, the step rewards as (turn, reward)."""
    shown, turns = made.batch.data[keys.STEP_REWARDS], made.batch.turn_ids
    found = []
    for row, turn in zip(shown, turns, strict=True):
        places = (~row.isnan()).nonzero().flatten().tolist()
        assert all(t + 1 == len(turn) or turn[t + 1] != turn[t] for t in places)  # at the end of its turn
        found.append([(turn[t].item(), row[t].item()) for t in places])
    return found


@pytest.mark.parametrize(
    ("turns", "wanted"),
    [
        ([[CALL, ANSWER], [ANSWER]], [[(0, 1.0)], []]),
        ([[TWO, CALL], [CALL, ANSWER], [ANSWER]], [[(0, 3.0), (1, 3.0)], [(0, 1.0)]]),
        ([[RAISES, UNKNOWN], [CALL, CALL], [ANSWER, ANSWER]], [[(0, 1.0), (1, 2.0)], [(1, 1.0)]]),
    ],
    ids=["one call", "parallel calls", "calls that raise"],
)
def test_rewards_belong_to_the_turn_that_called(make_agent, turns, wanted):
    """However many calls it made, whether they raised, and whether TRL refused them before the environment."""
    trainer = make_agent(*turns, environment=Counting, algo=GRPO, returns="to_go", max_completion_length=200)
    made = batch_of(trainer)
    assert by_turn(made) == wanted
    names = trainer.reward_func_names
    assert names == ["agent_reward", "step_rewards"]
    totals = made.batch.rewards_per_func[:, 1].tolist()
    assert totals == [sum(x for _, x in row) for row in wanted]
    assert trainer._metrics["train"]["rewards/step_rewards/mean"] == [sum(totals) / 2]


def test_a_result_that_is_rolled_back_leaves_its_reward_with_the_turn(make_agent):
    """TRL drops the message of a call whose result does not fit. The environment was called all the same."""
    trainer = make_agent(
        [RAISES, CALL], [ANSWER], environment=Counting, algo=GRPO, returns="to_go", max_completion_length=24
    )
    made = batch_of(trainer)
    assert by_turn(made) == [[(0, 1.0)], [(0, 1.0)]]
    assert made.batch.turn_ids[0].max() == 0 and made.batch.turn_ids[1].max() == 1


def test_a_first_reward_of_a_call_that_is_rolled_back(make_agent):
    """TRL refuses the first call itself, and the result of the second one does not fit: one value for two calls."""
    long = "B<call>calc op=9 x=4</call><eos>"
    trainer = make_agent(
        [UNKNOWN, ANSWER], [long], environment=Counting, algo=GRPO, returns="to_go", max_completion_length=110
    )
    made = batch_of(trainer)
    texts = [trainer.processing_class.decode(ids) for ids in made.batch.completion_ids]
    assert texts[0].endswith(long) and "unexpected keyword" in texts[0]
    assert by_turn(made) == [[(1, 1.0)], []]


def test_advantages_of_turns_and_none_for_tools(make_agent):
    first, wrong = right_call("K", 3), "K<call>calc op=+ x=4</call><eos>"
    right = f"K<call>calc op={first.op} x={first.x}</call><eos>"
    trainer = make_agent([right, wrong], [ANSWER, ANSWER], algo=GRPO, returns="to_go")
    made = batch_of(trainer)
    assert made.batch.rewards.tolist() == pytest.approx([1 / 3 + 1, 1.0])
    rewards = torch.tensor([[1 / 3, 1.0], [0.0, 1.0]], dtype=torch.float64)
    count = torch.tensor([2, 2])
    wanted = to_go_advantages(returns_to_go(rewards, gamma=1.0, steps=count), num_generations=2, steps=count)
    turns = made.batch.turn_ids
    for i in range(2):
        for turn in (0, 1):
            found = made.advantages[i][turns[i] == turn]
            assert torch.allclose(found, wanted[i, turn].float(), atol=1e-6) and len(found) > 0
        assert not made.advantages[i][turns[i] < 0].any() and (turns[i] < 0).any()


def test_equal_states_are_compared(make_agent):
    """Both responses begin in one state; after different calls they are in two, then in one again."""
    first = ["K<call>calc op=+ x=4</call><eos>", "K<call>calc op=+ x=2</call><eos>"]
    second = ["B<call>calc op=+ x=0</call><eos>", "B<call>calc op=+ x=2</call><eos>"]
    last = ["7<eos>", "9<eos>"]
    trainer = make_agent(first, second, last, environment=Calculator, algo=GRPO, returns="state_groups", step_gamma=0.5)
    made = batch_of(trainer)
    assert made.batch.rewards.tolist() == [0.0, 1.0]
    rewards, count = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64), torch.tensor([3, 3])
    states = torch.tensor([[0, 1, 3], [0, 2, 3]])
    wanted = state_group_advantages(
        returns_to_go(rewards, gamma=0.5, steps=count),
        outcome=rewards.sum(-1),
        states_k=states,
        num_generations=2,
        steps=count,
    )
    assert wanted[1].tolist() == [0.5 + 0.25, 0.5, 0.5 + 1.0]
    turns = made.batch.turn_ids
    for i in range(2):
        for turn in range(3):
            assert torch.allclose(made.advantages[i][turns[i] == turn], wanted[i, turn].float(), atol=1e-6)
    assert trainer._metrics["train"]["credit/steps/shared_states"] == pytest.approx([4 / 6])


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_the_weight_of_states_acts(make_agent, weight):
    given = {"environment": Calculator, "algo": GRPO, "returns": "state_groups", "state_weight": weight}
    made = batch_of(make_agent([ANSWER, "7<eos>"], **given))
    assert made.advantages[:, 0].tolist() == [0.5 + weight, -0.5 - weight]


def test_snapshot_and_restore_are_no_tools(make_agent):
    trainer = make_agent(["<call>restore state=3</call><eos>", CALL], [ANSWER, ANSWER], algo=GRPO, returns="to_go")
    assert [tool.__name__ for tool in trainer.tools] == ["calc"]
    made = batch_of(trainer)
    texts = [trainer.processing_class.decode(ids) for ids in made.batch.data[keys.COMPLETION_IDS]]
    assert "Tool restore not found" in texts[0] or "restore" in texts[0] and "error" in texts[0]
    prompts = [trainer.processing_class.decode(ids) for ids in made.batch.data[keys.PROMPT_IDS]]
    assert all("snapshot" not in prompt and "restore" not in prompt for prompt in prompts)


class Forgetful(StepCalculator):
    def reset(self, **row):
        kept = self.step_rewards
        super().reset(**row)
        self.step_rewards = [*kept, 1.0]


class Late(Calculator):
    def reset(self, **row):
        super().reset(**row)
        self.step_rewards = []


class Strange(StepCalculator):
    @property
    def state_key(self):
        return object()


class NotANumber(StepCalculator):
    def calc(self, op: str, x: int) -> str:
        """Calls.

        Args:
            op: The operation.
            x: The operand.

        Returns:
            The value.
        """
        shown = super().calc(op, x)
        self.step_rewards[-1] = float("nan")
        return shown


class Shrinking(StepCalculator):
    def calc(self, op: str, x: int) -> str:
        """Calls.

        Args:
            op: The operation.
            x: The operand.

        Returns:
            The value.
        """
        shown = super().calc(op, x)
        self.step_rewards = [1.0, 1.0, 1.0] if len(self.step_rewards) == 1 else [1.0]
        return shown


@pytest.mark.parametrize(
    ("environment", "returns", "message"),
    [
        (Forgetful, "to_go", r"Forgetful.step_rewards has 1 values before the first turn .*empty it in reset"),
        (Late, "to_go", r"Late.step_rewards has 0 values before the first turn .*set it in __init__ too"),
        (NotANumber, "to_go", r"NotANumber.step_rewards is \[nan, nan\]: give finite numbers"),
        (Shrinking, "to_go", r"Shrinking.step_rewards lost values during a rollout: only append to it"),
        (Strange, "state_groups", r"Strange.state_key is <object .*return a string, a number, or a tuple of these"),
    ],
)
def test_what_an_environment_does_wrong_names_it(make_agent, environment, returns, message):
    trainer = make_agent(
        [CALL, CALL], [CALL, CALL], [ANSWER, ANSWER], environment=environment, algo=GRPO, returns=returns
    )
    with pytest.raises((RewardError, ValueError), match=message):
        batch_of(trainer)


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


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([0.5, 1.0], [(0, 0.5), (1, 1.0)]), ([0.25, 0.5, 2.0], [(0, 2.75)]), ([None, 1.0], [(1, 1.0)])],
    ids=["per turn", "per call", "not scored"],
)
def test_a_list_made_at_the_end_has_a_value_per_turn_or_per_call(make_agent, values, wanted):
    AtTheEnd.values = values
    call = CALL if len(values) == 2 else TWO.replace("<eos>", CALL[1:])  # three calls
    trainer = make_agent(
        [call, call], [ANSWER, ANSWER], environment=AtTheEnd, algo=GRPO, returns="to_go", max_completion_length=200
    )
    assert trainer.reward_func_names == ["agent_reward", "AtTheEnd", "step_rewards"]
    assert by_turn(batch_of(trainer)) == [wanted, wanted]


def test_of_a_list_that_fits_neither_nothing_is_guessed(make_agent):
    AtTheEnd.values = [1.0] * 5
    trainer = make_agent([CALL, CALL], [ANSWER, ANSWER], environment=AtTheEnd, algo=GRPO, returns="to_go")
    with pytest.raises(
        RewardError, match="AtTheEnd.step_rewards has 5 values for 2 turns with 1 calls: give one value"
    ):
        batch_of(trainer)


def test_an_environment_may_be_the_only_reward(make_agent):
    trainer = make_agent([CALL, ANSWER], [ANSWER], environment=Counting, algo=GRPO, rewards=None, returns="to_go")
    assert trainer.reward_func_names == ["step_rewards"] and trainer.reward_weights.tolist() == [1.0]
    assert batch_of(trainer).batch.rewards.tolist() == [1.0, 0.0]


def test_without_any_reward_a_trainer_is_refused(make_agent):
    with pytest.raises(ValueError, match="there is no reward: give reward_funcs, or environments with"):
        make_agent(environment=Calculator, algo=GRPO, rewards=None)


def test_a_judge_of_turns_beside_the_environment(make_agent):
    """Two functions that score turns add up, each with its weight."""

    def judge(completions, **kwargs):
        return [[None] * 0 or judged(messages) for messages in completions]

    def judged(messages):
        from trl_credit import StepRewards

        own = [m for m in messages if m["role"] == "assistant"]
        return StepRewards(range(1, len(own) + 1), [10.0] * len(own), unit="turn")

    trainer = make_agent(
        [CALL, ANSWER],
        [ANSWER],
        environment=Counting,
        algo=GRPO,
        returns="to_go",
        rewards=[judge],
        reward_weights=[0.5],
    )
    assert by_turn(batch_of(trainer)) == [[(0, 6.0), (1, 5.0)], [(0, 5.0)]]


# Training


SMALL = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 2, "logging_steps": 1}


@pytest.mark.parametrize("groups", ["replace", "refill"])
def test_refilled_groups_keep_the_rewards_of_their_own_call(make_agent, groups):
    """The pool is reset by the next call of the engine, so the rewards of a call are read before."""
    trainer = make_agent(
        algo=GRPO, returns="to_go", groups=groups, data=agent_dataset(64), difficulty_reward=["agent_reward"], **SMALL
    )
    seen, make = [], trainer.make_batch
    trainer.make_batch = lambda inputs: seen.append(make(inputs)) or seen[-1]
    trainer.train()
    assert len(seen) == 2
    calls = [row.get("credit/groups/calls", 1) for row in trainer.state.log_history if "reward" in row]
    assert groups == "replace" or max(calls) > 1
    for made in seen:
        shown = made.batch.data[keys.STEP_REWARDS].nan_to_num(nan=0.0).sum(-1)
        assert torch.allclose(shown, made.batch.rewards_per_func[:, 1], atol=1e-5)
        for i, example in enumerate(made.examples):
            ids = made.batch.completion_ids[i]
            assert replayed(trainer, example, ids) == pytest.approx(shown[i].item(), abs=1e-5)


def replayed(trainer, example, ids) -> float:
    """The step rewards of a response, by playing its calls again."""
    calculator = StepCalculator()
    calculator.reset(**example)
    text = trainer.processing_class.decode(ids)
    for call in text.split("<call>calc op=")[1:]:
        op, _, rest = call.partition(" x=")
        x = rest.partition("</call>")[0]
        try:
            calculator.calc(op, int(x))
        except ValueError:
            pass
    return sum(calculator.step_rewards)


@pytest.mark.parametrize("algo", ["s_trace", "grpo_lambda", "gspo_token", "ha_dw", "opo"])
def test_presets_train_on_turns(make_agent, algo):
    from trl_credit import ALGORITHMS

    given = {"returns": "to_go"} if algo != "opo" else {}
    given |= {"difficulty_reward": ["agent_reward"]} if algo == "ha_dw" else {}
    trainer = make_agent(algo=ALGORITHMS[algo], data=agent_dataset(64), **SMALL, **given)
    trainer.train()
    assert trainer.state.global_step == 2
    assert all(row["loss"] == row["loss"] for row in trainer.state.log_history if "loss" in row)


def test_weights_by_turn_train(make_agent):
    for given in ({"importance": "turn"}, {"importance": "eligible", "trace_unit": "turn"}, {"turn_average": True}):
        trainer = make_agent(algo=GRPO, returns="to_go", loss_type="grpo", data=agent_dataset(64), **SMALL, **given)
        trainer.train()
        assert trainer.state.global_step == 2


def test_a_resumed_run_is_the_uninterrupted_one(make_agent, tmp_path):
    """Rewards, states and the pool of environments need no state of their own in a checkpoint."""
    given = {"algo": GRPO, "returns": "to_go", "data": agent_dataset(64), "environment": StepCalculator}
    given |= {**SMALL, "max_steps": 4, "seed": 5, "save_strategy": "steps", "save_steps": 2}
    whole = make_agent(output_dir=str(tmp_path / "whole"), **given)
    whole.train()
    other = make_agent(output_dir=str(tmp_path / "other"), **given)
    other.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for a, b in zip(whole.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_log_has_turns_tools_and_step_rewards(make_agent, command_said):
    trainer = make_agent(
        algo=GRPO, returns="to_go", data=agent_dataset(64), **SMALL | {"max_steps": 1, "log_credit": 1}
    )
    trainer.train()
    ((_, path),) = steps(trainer.args.output_dir)
    shard = read_shard(path)
    for response in shard.responses:
        turns, rewards = response["turn_ids"], response["step_rewards"]
        text = "".join(response["tokens"])
        assert text.count("<tool>") == sum(turns[i] < 0 and (i == 0 or turns[i - 1] >= 0) for i in range(len(turns)))
        known = [x for x in rewards if x is not None]
        assert sum(known) == pytest.approx(response["rewards"]["step_rewards"], abs=1e-5)
        assert all(credit == 0 for credit, turn in zip(response["credit"], turns, strict=True) if turn < 0)
    for words in (("view", trainer.args.output_dir, "--terminal"), ("explain", trainer.args.output_dir)):
        code, out, said = command_said(*words)
        assert code == 0 and "warning" not in said
    assert json.loads((path.parent.parent / "credit_run.json").read_text())["version"] >= 1


# Chains: conversations that are played on


CHAIN = (SPOChainConfig, SPOChainTrainer)
PLAY = {"segmentation": "turns", "rollouts_per_state": 2, "algo": CHAIN, "environment": StepCalculator}


def test_values_are_those_of_conversations_played_on_from_each_turn(make_agent):
    """Scripted: row 0 calls wrongly and recovers nothing; row 1 calls rightly. Two continuations from each turn."""
    first, second, third = (right_call(letter, value) for letter, value in (("K", 3), ("B", 1), ("E", 2)))
    texts = [
        f"{letter}<call>calc op={c.op} x={c.x}</call><eos>"
        for letter, c in zip("KBE", (first, second, third), strict=True)
    ]
    answer = work_out("KBE3")[-1]["content"] + "<eos>"
    assert (first, second, third) == (("-", 2), ("+", 1), ("-", 1)) and answer == "1<eos>"
    script = [
        [texts[0], WRONG],  # the two responses
        [answer, answer],
        # from the common start, and from the second turn of each: first turns of two continuations each
        ["1<eos>", "7<eos>", "1<eos>", "1<eos>", texts[1], "0<eos>"],
        # the fifth goes on
        [texts[2]],
        ["1<eos>"],
    ]
    trainer = make_agent(*script, rewards=agent_reward, **{**PLAY, "environment": Calculator})
    trainer.rows = [{"prompt": PROMPT, "answer": "1"}] * 2
    made = batch_of(trainer)
    values, final = made.values
    assert final.tolist() == [1.0, 1.0]
    starts = [[0, int((row == 1).nonzero()[0])] for row in made.batch.turn_ids]
    found = [[values[i, t].item() for t in row] for i, row in enumerate(starts)]
    # order of the states: row 0 at 0 (shared), row 0 at its second turn, row 1 at its second turn
    assert found == [[0.5, 1.0], [0.5, 0.5]]
    for i, row in enumerate(made.batch.turn_ids):
        assert made.advantages[i][row == 0].unique().tolist() == [found[i][1] - found[i][0]]
        assert made.advantages[i][row == 1].unique().tolist() == [1.0 - found[i][1]] or found[i][1] == 1.0
        assert not made.advantages[i][row < 0].any()


def test_a_played_conversation_goes_on_in_the_state_of_its_turn(make_agent):
    """The tools' results of continuations are those of an environment that was set back, not of a fresh one."""
    texts = ["K<call>calc op=+ x=4</call><eos>", "K<call>calc op=+ x=1</call><eos>"]
    go_on = "B<call>calc op=+ x=1</call><eos>"
    script = [
        texts,
        ["7<eos>", "7<eos>"],
        [go_on] * 6,  # two from the start, two from each second turn
        ["7<eos>"] * 2,
        ["7<eos>"] * 4,
    ]
    seen = []

    def spy(completions, **kwargs):
        seen.append(copy.deepcopy(completions))
        return [0.0] * len(completions)

    trainer = make_agent(*script, rewards=[agent_reward, spy], **PLAY)
    before = trainer._metrics["train"].copy()
    batch_of(trainer)
    played = seen[1]
    results = [[m["content"] for m in messages if m["role"] == "tool"] for messages in played]
    # 3 + 1 from the start; 3 + 4 + 1 and 3 + 1 + 1 after the first calls
    assert results == [["4"], ["4"], ["7", "8"], ["7", "8"], ["4", "5"], ["4", "5"]]
    assert [e.state_key for e in trainer.environments] == [(1, 7), (1, 4)]  # those of the batch are untouched
    assert len(before) == 0 and trainer._metrics["train"]["rewards/spy/mean"] == [0.0]


def test_chains_of_turns_train(make_agent):
    trainer = make_agent(data=agent_dataset(64), **{**PLAY, **SMALL, "returns": "to_go"})
    trainer.train()
    rows = [row for row in trainer.state.log_history if "credit/rollouts" in row]
    assert rows and all(row["credit/rollouts"] > 0 for row in rows)
    assert all(1 < row["credit/segments_per_response"] <= 5 for row in rows)


class Bare:
    """An environment that cannot be set back."""

    def reset(self, **row):
        return None

    def calc(self, op: str, x: int) -> str:
        """Shows its argument.

        Args:
            op: The operation.
            x: The operand.

        Returns:
            The operand.
        """
        return str(x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {**PLAY, "environment": Bare},
            r"segmentation='turns' plays on .*Bare has no snapshot\(\) and restore\(state\)",
        ),
        (
            {**PLAY, "segmentation": "cutpoints"},
            "environment_factory with rollouts='chain' and segmentation='cutpoints'",
        ),
        ({**PLAY, "groups": "refill"}, "groups='refill' with rollouts='chain' and segmentation='turns'"),
        ({**PLAY, "environment": None}, "segmentation='turns' divides conversations with environments"),
        ({"algo": GRPO, "environment": Bare, "returns": "state_groups"}, "a class with a property `state_key`"),
    ],
)
def test_what_cannot_be_played_on_is_refused(make_agent, settings, message):
    with pytest.raises(ValueError, match=message):
        make_agent(**settings)


def test_the_task_is_the_one_of_the_agent():
    assert TASK.environment(CreditConfig("x", report_to="none", returns="to_go")) is StepCalculator
