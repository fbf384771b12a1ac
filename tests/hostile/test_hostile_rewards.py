"""Reward functions that do what they should not, or meddle with the run: it trains as without that, to the last bit."""

import asyncio
import functools
import itertools
import os
import signal
import sys
import time
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from datasets import Dataset
from reward_helpers import GIVEN, scaled

from trl_credit.data import load_prompts
from trl_credit.demo import agent_reward, demo_reward
from trl_credit.rewards import (
    REWARDS,
    accuracy_reward,
    format_reward,
    knights_and_knaves_reward,
    reasoning_gym_reward,
    resolve_reward,
)
from trl_credit.rewards.guard import guard_rewards
from trl_credit.rewards.signature import Rows


pytestmark = pytest.mark.hostile("reward functions", "survived")
refused = pytest.mark.hostile("reward functions", "refused")


def returns(value):
    def mine(completions, **kwargs):
        if isinstance(value, BaseException):
            raise value
        return value() if callable(value) else value

    return mine


def lazily():
    yield 1.0
    raise KeyError("late\nand\nlong")


WRONG = {  # what a function returns or raises
    "a float": 0.5,
    "a dict": {0: 1.0, 1: 1.0},
    "strings": ["1", "0"],
    "complex numbers": np.array([1j, 1j]),
    "NaN": np.array([0.0, np.nan]),
    "one too few": [1.0],
    "a generator without end": lambda: itertools.repeat(1.0),
    "a generator that raises": lazily,
    "an exception": ZeroDivisionError("by\nzero"),
    "an exit": SystemExit(0),
}


def ways(function):
    """A function called as it is, within a limit, and as an `async` one in a loop, within a limit and without."""

    @functools.wraps(function)
    async def asynchronous(**kwargs):
        return function(**kwargs)

    for timeout in (None, 60.0):
        yield guard_rewards(function, timeout=timeout)
        yield lambda timeout=timeout, **kwargs: asyncio.run(guard_rewards(asynchronous, timeout=timeout)(**kwargs))


@refused
@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_what_a_reward_does_wrong_is_one_line_with_its_name_and_a_prompt(value, record_property):
    for tried, guarded in enumerate(ways(returns(value)), start=1):
        with pytest.raises((ValueError, RuntimeError), match=r"^reward function 'mine' .*'[12]\+[12]='.*$") as caught:
            guarded(**GIVEN)
        assert "\n" not in str(caught.value)
        record_property("tried", tried)


RIGHT = {
    "a tensor": (torch.tensor([0.5, 1.0]), [0.5, 1.0]),
    "truth": ([True, np.False_], [1.0, 0.0]),
    "nothing to say": ((None, 1), [None, 1.0]),
    "fractions": ([Fraction(1, 2), Decimal("0.25")], [0.5, 0.25]),
    "a generator": (lambda: (x / 2 for x in (1, 2)), [0.5, 1.0]),
}


@pytest.mark.parametrize(("value", "rewards"), RIGHT.values(), ids=RIGHT)
def test_what_can_be_read_as_rewards_is(value, rewards, record_property):
    for tried, guarded in enumerate(ways(returns(value)), start=1):
        assert guarded(**GIVEN) == rewards
        record_property("tried", tried)


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_an_interrupt_is_the_users(timeout):
    def interrupted(completions, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        guard_rewards(interrupted, timeout=timeout)(**GIVEN)


@refused
def test_an_exit_inside_of_an_async_reward_is_an_error_of_the_run(make_trainer):
    async def leaves(completions, **kwargs):  # it would end TRL's loop, and the run would wait for it for ever
        sys.exit(0)

    with pytest.raises(RuntimeError, match=r"^reward function 'leaves' .*sys.exit\(0\)"):
        make_trainer(reward_funcs=leaves).train()


# Signatures: refused before anything is generated, never by a call that was made up


def no_kwargs(completions, prompts):
    raise AssertionError("called")


def wants_a_column(completions, answers, **kwargs):
    raise AssertionError("called")


def by_position(completions, /, **kwargs):
    raise AssertionError("called")


class Judge:
    async def __call__(self, completions, *, gold, **kwargs):
        raise AssertionError("called")


GOLD = {"eval_dataset": {"hard": Dataset.from_dict({"prompt": ["1+1="], "gold": ["2"]})}}
SIGNATURES = {
    "no **kwargs": (no_kwargs, {}, r"'no_kwargs' .*train_dataset"),
    "a column": (wants_a_column, {}, "'wants_a_column' .*'answers', and train_dataset"),
    "a column, of an object": (Judge(), {}, "'Judge' .*'gold', and train_dataset"),
    "position alone": (by_position, {}, "'by_position' .*'completions'"),
    "a column of one of several": (REWARDS["accuracy"], GOLD, r"'answer', and eval_dataset\['hard'\] has \['gold'\]"),
}


@refused
@pytest.mark.parametrize(("function", "arguments", "message"), SIGNATURES.values(), ids=SIGNATURES)
def test_a_signature_that_cannot_be_called_is_refused_early(make_trainer, function, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_trainer(reward_funcs=[function], trainer_kwargs=arguments)
    assert "\n" not in str(caught.value)


def test_what_may_be_callable_is_not_refused(record_property):
    def adds(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, answers=["2", "4"], **kwargs)

        return wrapper

    def scores(completions, answers, **kwargs):
        return [1.0, 0.0]

    known, unknown = Rows("train_dataset", ("prompt", "answer")), Rows("train_dataset", None)
    functions = [
        (adds(scores), known),
        (functools.partial(scores, answers=[]), known),
        (scores, unknown),
        (scores, Rows("train_dataset", ("answers",), others=("environments",))),
    ]
    for tried, (function, rows) in enumerate(functions, start=1):
        answers = {"answers": ["2", "4"]} if rows != known else {}
        assert guard_rewards(function, data=[rows])(**GIVEN, **answers) == [1.0, 0.0]
        record_property("tried", tried)


# Names and files, as `--reward` gives them

FILES = {
    "mine.py": "def mine(completions, **kwargs):\n    return [0.0] * len(completions)\n",
    "broken.py": "def mine(completions:\n",
    "exits.py": "import sys\nsys.exit(0)\n",
}


NAMES = ["mine.py", "mine.py:other", "broken.py:mine", "exits.mine", "rows.txt:f", "no_such", "no.such.one"]


@pytest.mark.hostile("mistakes on the command line", "refused")
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_to_no_reward(here, monkeypatch, name):
    monkeypatch.syspath_prepend(here)
    for file, text in FILES.items():
        (here / file).write_text(text)
    with pytest.raises(ValueError, match=f"reward {name!r}") as caught:
        resolve_reward(name)
    assert "\n" not in str(caught.value)


LARGE = {
    "negative": ([scaled(-1e20)], {}),
    "by its weight": ([scaled(1.0)], {"reward_weights": [1e20]}),
    "in a sum": ([scaled(1e-3), scaled(2e38), scaled(2e38)], {}),
    "each by itself": ([scaled(1e-3), scaled(1e20)], {"multi_objective_aggregation": "normalize_then_sum"}),
}


@refused
@pytest.mark.parametrize("name", LARGE)
def test_rewards_whose_squares_overflow(make_trainer, name):
    """Their standard deviation is infinite: all advantages would be 0, and the run would learn nothing."""
    functions, settings = LARGE[name]
    trainer = make_trainer("base", reward_funcs=functions, **settings)
    before = [p.clone() for p in trainer.model.parameters()]
    with pytest.raises(ValueError, match=r"^reward 'share(_2)?' is \S+ in row \d+: "):
        trainer.train()
    assert all(map(torch.equal, before, trainer.model.parameters()))


# Meddling


def reseeds(completions, **kwargs):
    torch.manual_seed(0)
    torch.rand(3)


def moves(completions, **kwargs):
    os.chdir("/")


def writes(completions, **kwargs):
    completions[:] = ["b"] * len(completions)
    kwargs["completion_ids"][0].append(1)
    kwargs["answer"].clear()


def forks_and_exits(completions, **kwargs):
    if os.fork() == 0:
        sys.exit(3)


def switches_gradients_off(completions, **kwargs):
    torch.set_grad_enabled(False)


MEDDLES = [switches_gradients_off, reseeds, moves, writes, forks_and_exits]


def shares(completions, answer, **kwargs):
    assert len(answer) == len(completions)
    return [sum(c in "abc" for c in text) / 8 for text in completions]


def with_meddling(meddle, *, is_async):
    """`shares`, whose every call also does what it should not."""

    def mine(completions, **kwargs):
        rewards = shares(completions, **kwargs)
        meddle(completions, **kwargs)
        return rewards

    @functools.wraps(mine)
    async def asynchronous(completions, **kwargs):
        return mine(completions, **kwargs)

    return asynchronous if is_async else mine


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize(("is_async", "timeout"), [(False, None), (True, 60.0)])
@pytest.mark.parametrize("meddle", MEDDLES, ids=lambda f: f.__name__)
def test_a_run_is_as_without_what_a_reward_does_to_it(make_trainer, here, meddle, is_async, timeout):
    settings = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-2}
    plain = make_trainer(reward_funcs=[shares, shares], output_dir="plain", **settings)
    plain.train()
    weights = [x.clone() for x in plain.model.parameters()]
    own = os.getpid()
    functions = [with_meddling(meddle, is_async=is_async), shares]
    trainer = make_trainer(reward_funcs=functions, reward_timeout=timeout, output_dir="meddled", **settings)
    trainer.train()
    trainer.save_model()
    assert os.getpid() == own and os.getcwd() == str(here)
    assert all(torch.equal(a, b) for a, b in zip(weights, trainer.model.parameters(), strict=True))
    assert (here / "meddled" / "model.safetensors").is_file()


def test_columns_of_conversations_and_images_are_copied_once():
    image = object()
    columns = {"prompts": [[{"role": "user", "content": "1+1="}]], "image": [image], "tensor": [torch.ones(2)]}
    columns |= {"completions": [[{"role": "assistant", "content": "2"}]]}

    def mine(completions, prompts, image, tensor, **kwargs):
        completions[0][0]["content"] = prompts[0][0]["content"] = "changed"
        tensor[0].zero_()
        return [float(image[0] is columns["image"][0])]

    assert guard_rewards(mine)(**columns) == [1.0]
    assert columns["completions"][0][0]["content"] == "2" and columns["prompts"][0][0]["content"] == "1+1="
    assert columns["tensor"][0].sum() == 2


# Messages and answers that look right to a careless reader


ASKED = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "run", "arguments": {}}}]}
SAID = {
    accuracy_reward: ("\\boxed{42}", {"answer": ["42"]}),
    format_reward: ("<think>a</think><answer>42</answer>", {}),
    knights_and_knaves_reward: ("Ann is a knight.", {"names": [["Ann"]], "truth": [[True]]}),
    agent_reward: ("42", {"answer": ["42"]}),
    demo_reward: ("1+1=2", {"answer": ["2"]}),
}


@pytest.mark.hostile("messages and answers", "survived")
@pytest.mark.parametrize("role", ["tool", "user", "system", None])
def test_only_the_last_words_of_the_model_are_its_answer(role):
    """A text cut to nothing leaves the tool's message last."""
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    row = load_prompts("reasoning_gym:chain_sum", config={"size": 1})[0]
    of_gym = {reasoning_gym_reward: (f"<answer>{row['answer']}</answer>", {"entry": [row["entry"]]})}
    for reward, (text, columns) in (SAID | of_gym).items():
        answer, other = {"role": "assistant", "content": text}, {"role": role, "content": text}
        for messages, expected in (([ASKED, answer], 1.0), ([ASKED, other], 0.0), ([ASKED, answer, other], 0.0)):
            assert reward(completions=[messages], **columns) == [expected]
