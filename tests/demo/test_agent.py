"""The embedded agent: its calculator, reward, chat template and checkpoint, and TRL's own tool loop on them."""

import copy
from contextlib import suppress
from pathlib import Path

import pytest
from agent_helpers import PROMPT, TASK, sampled
from agent_warm_start import MISTAUGHT, encode, make_tokenizer, mistaught_facts, work_out
from transformers import AutoTokenizer
from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, supports_tool_calling

from trl_credit.cli.training import build
from trl_credit.demo import Calculator, StepCalculator, agent_reward
from trl_credit.demo.agent import LETTERS, MEANINGS, Call, right_call
from trl_credit.rewards.functions import REWARDS, default_reward


pytest_plugins = ["agent_helpers"]

PREFIX = "<tools>calc(op,x)<user>KBE3<assistant>"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TASK.model_path)


def called(op: object, x: object) -> dict:
    return {"type": "function", "function": {"name": "calc", "arguments": {"op": op, "x": x}}}


# the task


def test_every_letter_means_two_things():
    assert len(MEANINGS) == 24
    assert all(MEANINGS[letter, 0] != MEANINGS[letter, 1] for letter in LETTERS)
    wrong = mistaught_facts()
    assert len(wrong) == MISTAUGHT and wrong == mistaught_facts() != mistaught_facts(seed=1)
    assert all(call != MEANINGS[fact] for fact, call in wrong.items())


def test_memory_is_modulo_ten_and_what_is_refused_changes_nothing():
    calculator = Calculator()
    assert calculator.reset(prompt=PROMPT, answer="9") is None
    assert calculator.state_key == (0, 3)
    assert [calculator.calc("+", 9), calculator.calc("-", 4), calculator.calc(x=0, op="-")] == ["2", "8", "8"]
    assert calculator.state_key == (3, 8)
    for op, x in (("*", 2), ([], 2), ("+", 10), ("+", -1), ("+", "2"), ("+", True)):
        with pytest.raises(ValueError, match="op is|x is"):
            calculator.calc(op, x)
    assert calculator.state_key == (3, 8)
    calculator.reset(prompt=PROMPT)
    assert calculator.state_key == (0, 3)


@pytest.mark.parametrize("of", [Calculator, StepCalculator])
def test_a_restored_state_goes_on_as_the_first_one_did(of):
    calculator = of()
    calculator.reset(prompt=PROMPT)
    calculator.calc("+", 3)
    state = calculator.snapshot()
    kept = copy.deepcopy(state)
    first = [calculator.calc("-", 1), calculator.calc("+", 4), calculator.state_key, calculator.snapshot()]
    assert state == kept != calculator.snapshot()  # the calculator does not write into its copy
    for again in (calculator, of()):
        again.restore(state)
        assert again.snapshot() == state and again.state_key == (1, 6)
        assert [again.calc("-", 1), again.calc("+", 4), again.state_key, again.snapshot()] == first
    assert state == kept


def test_steps_are_scored_at_the_value_in_memory():
    problem, calculator = PROMPT, StepCalculator()

    def play(*calls):
        calculator.reset(prompt=problem)
        for call in calls:
            with suppress(ValueError):
                calculator.calc(*call)
        return calculator.step_rewards

    right, value = [], 3
    for letter in "KBE":
        right.append(right_call(letter, value))
        value = (value + int("".join(map(str, right[-1])))) % 10
    third = pytest.approx(1 / 3)
    assert play(*right) == [third] * 3 and sum(calculator.step_rewards) == pytest.approx(1)
    assert play(*right, right[-1]) == [third] * 3 + [0]  # no letter is left
    assert play(right[0], ("/", 2), *right[1:]) == [third, 0, third, third]  # an error leaves the letter
    # after a wrong call the next letter is scored at the value that the calculator shows
    wrong = Call("+", 4) if right[0] != ("+", 4) else Call("+", 2)
    assert play(wrong, right_call("B", 3 + wrong.x)) == [0, third]
    assert play(wrong, right_call("B", 3 + wrong.x + 1)) == [0, 0]


def test_reward_reads_the_model_alone():
    answer, tool = {"role": "assistant", "content": "9"}, {"role": "tool", "name": "calc", "content": "9"}
    call = {"role": "assistant", "content": "T", "tool_calls": [called("-", 4)]}
    right = [[answer], [call, tool, answer], [call, tool, {"role": "assistant", "content": " 9\n"}], "9"]
    wrong = [[], [tool], [answer, tool], [call, tool], [{**call, "content": "9"}], [{"role": "assistant"}], "", "99"]
    assert agent_reward(right, ["9"] * len(right), prompts=None) == [1.0] * len(right)
    assert agent_reward(wrong, ["9"] * len(wrong)) == [0.0] * len(wrong)
    assert REWARDS[default_reward("demo_agent")] is agent_reward


# the tokenizer


def test_template_calls_tools_and_names_only_the_calculator(tokenizer):
    assert supports_tool_calling(tokenizer) and is_chat_template_prefix_preserving(tokenizer)
    made = make_tokenizer()
    assert (made.get_vocab(), made.chat_template) == (tokenizer.get_vocab(), tokenizer.chat_template)
    assert made.response_template == tokenizer.response_template
    text = tokenizer.apply_chat_template(PROMPT, tools=[Calculator().calc], add_generation_prompt=True, tokenize=False)
    assert text == PREFIX
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == 14 and tokenizer.decode(ids) == text


def test_labels_are_the_turns_of_the_model(tokenizer):
    ids, labels = encode(tokenizer, [work_out("KBE3"), work_out("ABC4")])
    kept = [tokenizer.decode(row[row != -100]) for row in labels]
    assert (labels == ids)[labels != -100].all() and "<unk>" not in tokenizer.decode(ids.flatten())
    calls = ["K<call>calc op=- x=2</call><eos>", "B<call>calc op=+ x=1</call><eos>", "E<call>calc op=- x=1</call><eos>"]
    assert kept[0] == "".join(calls) + "1<eos>"


PARSED = [
    ("K<call>calc op=+ x=3</call><eos>", "K", [("+", 3)]),
    ("<call>calc op=+ x=3</call><call>calc op=- x=0</call><eos>", "", [("+", 3), ("-", 0)]),
    ("<call>calc op=3 x=+</call><eos>", "", [(3, "+")]),  # which the calculator refuses
    ("<call>calc op=+ x=3</call>", "", [("+", 3)]),  # cut off behind the call
    ("<call>calc op=+ x=", "<call>calc op=+ x=", None),
]


@pytest.mark.parametrize(("text", "content", "calls"), PARSED)
def test_responses_are_parsed(tokenizer, text, content, calls):
    ids, prefix = tokenizer(text)["input_ids"], tokenizer(PREFIX)["input_ids"]
    message = parse_response(tokenizer, ids, prefix=prefix)
    assert (message["role"], message["content"]) == ("assistant", content)
    assert message.get("tool_calls") == (calls and [called(*call) for call in calls])


# TRL's own loop


def test_tokens_of_the_loop_are_those_of_the_template(make_agent, tokenizer):
    messages = work_out("KBE3")
    turns = [tokenizer.apply_chat_template([m], tokenize=False).removeprefix("<assistant>") for m in messages[1::2]]
    trainer = make_agent(*([turn, turn] for turn in turns))
    whole = encode(tokenizer, [messages])[0][0].tolist()
    prompt = len(tokenizer(PREFIX)["input_ids"])
    for text, own in sampled(trainer):
        assert tokenizer(text)["input_ids"] == whole[prompt:]
        assert own == "".join(turns)
    for i, ids in enumerate(trainer.asked):
        options = {"tools": [Calculator().calc], "add_generation_prompt": True, "return_dict": False}
        rendered = tokenizer.apply_chat_template(messages[: 2 * i + 1], **options)
        assert ids == [rendered, rendered]
    assert [e.step_rewards for e in trainer.environments] == [[1 / 3] * 3] * 2


@pytest.mark.slow
def test_the_packaged_agent_is_small_errs_as_promised_and_learns(here):
    assert sum(p.stat().st_size for p in Path(TASK.model_path).iterdir()) < 2e6
    command = ["--dataset_name", "demo_agent", "--output_dir", "out", "--max_steps", "15", "--save_strategy", "no"]
    trainer, _ = build(command, command=["trl-credit", "train"])
    trainer.results.writes_at_end = False
    trainer.train()
    first, _, last = (row for row in trainer.state.log_history if "reward" in row)  # five steps each
    # 0.27 before training, 0.36 and 0.63
    assert 0.2 < first["reward"] < 0.45 and last["reward"] > 0.55 and first["tools/failure_frequency"] < 0.05
