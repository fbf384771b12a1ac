"""Training on the embedded agent, and chains whose conversations are continued from where turns begin."""

import copy
import json

import pytest
import torch
from agent_helpers import CALL, GRPO, PROMPT, WRONG, Bare
from scripts import load_script
from weight_helpers import same_weights
from worker import kept

from trl_credit import SPOChainConfig, SPOChainTrainer
from trl_credit.demo import Calculator, StepCalculator, agent_dataset, agent_reward, demo_settings
from trl_credit.loss import keys
from trl_credit.observe.schema import read_shard, steps


pytest_plugins = ["agent_helpers"]

SMALL = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 2, "logging_steps": 1}


@pytest.mark.parametrize("groups", ["replace", "refill"])
def test_refilled_groups_keep_the_rewards_of_their_own_call(make_agent, groups):
    """The pool is reset by the next call of the engine, so the rewards of a call are read before."""
    settings = {**SMALL, "returns": "to_go", "groups": groups, "difficulty_reward": ["agent_reward"]}
    trainer = make_agent(algo=GRPO, data=agent_dataset(64), **settings)
    seen = kept(trainer, "make_batch")
    trainer.train()
    assert len(seen) == 2
    calls = [row.get("credit/groups/calls", 1) for row in trainer.state.log_history if "reward" in row]
    assert groups == "replace" or max(calls) > 1
    for generation in seen:
        shown = generation.batch.data[keys.STEP_REWARDS].nan_to_num(nan=0.0).sum(-1)
        assert torch.allclose(shown, generation.batch.rewards_per_func[:, 1], atol=1e-5)
        for i, example in enumerate(generation.examples):
            ids = generation.batch.completion_ids[i]
            assert replayed(trainer, example, ids) == pytest.approx(shown[i].item(), abs=1e-5)


def replayed(trainer, example, ids) -> float:
    """The step rewards of a response, by making its calls again."""
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


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(make_agent, tmp_path):
    """Rewards, states and the pool of environments need no state of their own in a checkpoint."""
    settings = {"algo": GRPO, "returns": "to_go", "data": agent_dataset(64), "environment": StepCalculator}
    settings |= {**SMALL, "max_steps": 4, "seed": 5, "save_strategy": "steps", "save_steps": 2}
    whole = make_agent(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    other = make_agent(output_dir=str(tmp_path / "other"), **settings)
    other.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert same_weights(whole, other)


def test_the_log_has_turns_tools_and_step_rewards(make_agent, command_said):
    settings = {**SMALL, "returns": "to_go", "max_steps": 1, "log_credit": 1}
    trainer = make_agent(algo=GRPO, data=agent_dataset(64), **settings)
    trainer.train()
    ((_, path),) = steps(trainer.args.output_dir)
    shard = read_shard(path)
    for response in shard.responses:
        turns, rewards = response["turn_ids"], response["step_rewards"]
        text = "".join(response["tokens"])
        assert text.count("<tool>") == sum(turns[i] < 0 and (i == 0 or turns[i - 1] >= 0) for i in range(len(turns)))
        assert all(response["trainer_logprobs"]) and all(response["old_logprobs"])  # also those of tools
        known = [x for x in rewards if x is not None]
        assert sum(known) == pytest.approx(response["rewards"]["step_rewards"], abs=1e-5)
        assert all(credit == 0 for credit, turn in zip(response["credit"], turns, strict=True) if turn < 0)
    for words in (("view", trainer.args.output_dir, "--terminal"), ("explain", trainer.args.output_dir)):
        code, out, errors = command_said(*words)
        assert code == 0 and "warning" not in errors
    assert json.loads((path.parent.parent / "credit_run.json").read_text())["version"] >= 1


# Chains: conversations that are continued


CHAIN = (SPOChainConfig, SPOChainTrainer)
BY_TURNS = {"segmentation": "turns", "rollouts_per_state": 2, "algo": CHAIN, "environment": StepCalculator}


def test_values_are_those_of_conversations_continued_from_each_turn(make_agent):
    """Scripted: row 0 calls wrongly and recovers nothing; row 1 calls rightly. Two continuations from each turn."""
    script = [
        [CALL, WRONG],  # the two responses
        ["1<eos>", "1<eos>"],
        # from the common start, and from the second turn of each: first turns of two continuations each
        ["1<eos>", "7<eos>", "1<eos>", "1<eos>", "B<call>calc op=+ x=1</call><eos>", "0<eos>"],
        # the fifth goes on
        ["E<call>calc op=- x=1</call><eos>"],
        ["1<eos>"],
    ]
    trainer = make_agent(*script, rewards=agent_reward, **{**BY_TURNS, "environment": Calculator})
    trainer.rows = [{"prompt": PROMPT, "answer": "1"}] * 2
    generation = trainer.make_batch(trainer.rows)
    values, final = generation.value_t, generation.final_value
    assert final.tolist() == [1.0, 1.0]
    starts = [[0, int((row == 1).nonzero()[0])] for row in generation.batch.turn_ids]
    state_values = [[values[i, t].item() for t in row] for i, row in enumerate(starts)]
    # order of the states: row 0 at 0 (shared), row 0 at its second turn, row 1 at its second turn
    assert state_values == [[0.5, 1.0], [0.5, 0.5]]
    for i, row in enumerate(generation.batch.turn_ids):
        assert generation.advantages[i][row == 0].unique().tolist() == [state_values[i][1] - state_values[i][0]]
        last = generation.advantages[i][row == 1].unique().tolist()
        assert last == [1.0 - state_values[i][1]] or state_values[i][1] == 1.0
        assert not generation.advantages[i][row < 0].any()


def test_kept_conversations_are_continued_from_any_token(make_agent):
    """Of two batches, in another order: from the middle of a call, in an environment set back to before its turn."""
    go_on = "B<call>calc op=+ x=1</call><eos>"
    batches = [[WRONG, "1<eos>"], [go_on], ["5<eos>"]], [["1<eos>", CALL], [go_on], ["7<eos>"]]
    rest = [[" x=3</call><eos>", "- x=1</call><eos>"], ["7<eos>"], ["9<eos>"]]
    trainer, kept_ids = make_agent(*batches[0], *batches[1], *rest, rewards=agent_reward, **BY_TURNS), {}
    conversations, tokenizer = trainer.engine.conversations, trainer.processing_class
    for name in "ab":
        batch = trainer.engine.sample(trainer.rows)
        kept_ids |= zip(conversations.keep(name), zip(batch.prompt_ids, batch.completion_ids, strict=True), strict=True)
    conversations.recall(["b-1", "a-0"])
    texts = dict(zip(("prompt_ids", "completion_ids"), zip(kept_ids["b-1"], kept_ids["a-0"], strict=True), strict=True))
    ids = [tokenizer.decode(x) for x in texts["completion_ids"]]
    places = [(0, ids[0].index(" x=1")), (1, ids[1].index("+ x=4"))]
    places = [(i, len(tokenizer(ids[i][:end])["input_ids"])) for i, end in places]
    before = copy.deepcopy(trainer._metrics["train"]), [e.state_key for e in trainer.environments]
    rewards, added = conversations.continue_from(places, n=1, budgets=[30, 30], most=2, **texts)
    prefixes = [tokenizer.decode(x).partition("<assistant>")[2] for x in trainer.asked[-3]]
    assert prefixes == ["K<call>calc op=- x=2</call><eos><tool>1<assistant>B<call>calc op=+", "K<call>calc op="]
    # 1 + 3 in the second turn, 3 − 1 in the first one
    new = [" x=3</call><eos><tool>4<assistant>9<eos>", "- x=1</call><eos><tool>2<assistant>7<eos>"]
    assert [*map(tokenizer.decode, added)] == new
    assert rewards[:, 0].tolist() == [1.0, 0.0]  # the answer is 9
    assert before == (trainer._metrics["train"], [e.state_key for e in trainer.environments])


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"environment": Bare}, r"Bare has no snapshot\(\) and restore\(state\)"),
        ({"segmentation": "cutpoints"}, "segmentation='cutpoints': their responses cannot be continued"),
        ({"groups": "refill"}, "groups='refill' with rollouts='chain' and segmentation='turns'"),
        ({"trainer_kwargs": {"tools": [sorted]}}, "cannot be continued"),
        ({"trainer_kwargs": {"rollout_func": sorted}}, "cannot be continued"),
        ({"environment": None}, "segmentation='turns' divides conversations with environments"),
    ],
)
def test_what_cannot_be_continued_is_refused(make_agent, settings, fault):
    with pytest.raises(ValueError, match=fault):
        make_agent(**{**BY_TURNS, **settings})


def test_the_example_trains_and_logs_the_reward_of_each_call(here, monkeypatch):
    example = load_script("examples/train_agent.py")
    shorter = SMALL | {"log_credit": 1}
    monkeypatch.setattr(example, "demo_settings", lambda *args, **kwargs: demo_settings(*args, **kwargs) | shorter)
    example.main()
    folder = here / "runs" / "agent"
    assert (folder / "model.safetensors").is_file()
    responses = [response for _, path in steps(folder) for response in read_shard(path).responses]
    assert len(responses) == 16
    earned = [sum(value or 0 for value in response["step_rewards"]) for response in responses]
    assert len({*earned}) > 1  # the share of right calls
