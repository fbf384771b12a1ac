"""Reward functions that do what they should not, and limits of time that hold whatever runs."""

import asyncio
import functools
import itertools
import json
import math
import os
import signal
import sys
import time
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from datasets import Dataset
from reward_helpers import GIVEN, QUICK
from script_helpers import error_of
from scripts import load_script

from trl_credit.rewards import REWARDS, resolve_reward
from trl_credit.rewards.guard import guard_rewards
from trl_credit.rewards.signature import Rows


FUNCTIONS = "reward functions"


class Wordless(Exception):
    def __str__(self):
        raise ValueError("no")


class Uncountable:
    def __float__(self):
        raise ValueError("no")


def returns(value):
    def mine(completions, **kwargs):
        return value() if callable(value) else value

    return mine


def raises(error):
    def mine(completions, **kwargs):
        raise error

    return mine


def lazily():
    yield 1.0
    raise KeyError("late\nand\nlong")


async def a_coroutine():
    return [1.0, 1.0]


async def many_at_once():
    yield 1.0


def exits(code):
    def mine(completions, **kwargs):
        sys.exit(code)

    return mine


WRONG = {
    "a float": (returns(0.5), ValueError, r"returned 0.5 \(a float\) for 2 responses.*return a list"),
    "a tensor of no dimension": (returns(torch.tensor(0.5)), ValueError, r"\(a Tensor\).*return a list"),
    "an array of no dimension": (returns(np.array(0.5)), ValueError, r"\(a ndarray\).*return a list"),
    "a string": (returns("11"), ValueError, r"returned '11' \(a str\).*return a list"),
    "bytes": (returns(b"11"), ValueError, "return a list"),
    "None": (returns(None), ValueError, "returned None for 2 responses.*return a list"),
    "a dict": (returns({0: 1.0, 1: 1.0}), ValueError, r"\(a dict\).*return a list"),
    "a set": (returns({1.0, 2.0}), ValueError, "return a list"),
    "strings": (returns(["1", "0"]), ValueError, r"returned '1' \(a str\) for response 0.*'1\+1='.*finite number"),
    "complex numbers": (returns([1.0, 1j]), ValueError, r"\(a complex\) for response 1.*'2\+2='.*finite number"),
    "complex numbers of numpy": (returns(np.array([1j, 1j])), ValueError, "for response 0.*finite number"),
    "lists": (returns([[1.0], [1.0]]), ValueError, r"\(a list\) for response 0.*finite number"),
    "rows of a tensor": (returns(torch.ones(2, 1, 99)), ValueError, r"\(a Tensor\) for response 0.*finite number"),
    "objects": (returns([object(), None]), ValueError, r"\(a object\) for response 0"),
    "what fails as a number": (returns([Uncountable(), None]), ValueError, r"\(a Uncountable\) for response 0"),
    "an integer beyond floats": (returns([1.0, 10**400]), ValueError, r"\(a int\) for response 1"),
    "NaN of numpy": (returns(np.array([0.0, np.nan])), ValueError, "returned nan for response 1"),
    "NaN of Decimal": (returns([Decimal("nan"), 1]), ValueError, "returned nan for response 0"),
    "-inf": (returns([0.0, -math.inf]), ValueError, "returned -inf for response 1"),
    "one too few": (returns([1.0]), ValueError, "returned 1 rewards for 2 responses.*one per response"),
    "one too many": (returns([1.0] * 3), ValueError, "returned 3 rewards for 2 responses.*one per response"),
    "none": (returns([]), ValueError, "returned 0 rewards for 2 responses"),
    "a generator without end": (returns(lambda: itertools.repeat(1.0)), ValueError, "more than 2 rewards"),
    "a generator that ends early": (returns(lambda: iter([1.0])), ValueError, "returned 1 rewards"),
    "a generator that raises": (returns(lazily), RuntimeError, r"raised KeyError: 'late\\nand\\nlong'.*'1\+1='"),
    "a coroutine": (returns(a_coroutine), ValueError, "a coroutine: define it with `async def`"),
    "an async generator": (returns(many_at_once), ValueError, "return a list"),
    "an exception": (raises(ZeroDivisionError("by\nzero")), RuntimeError, r"raised ZeroDivisionError: by zero, on 2"),
    "an exception without words": (raises(Wordless()), RuntimeError, "raised Wordless: .*cannot be shown"),
    "a group of exceptions": (raises(ExceptionGroup("several", [ValueError()])), RuntimeError, "ExceptionGroup"),
    "an end of iteration": (raises(StopIteration()), RuntimeError, "raised StopIteration"),
    "a cancellation": (raises(asyncio.CancelledError()), RuntimeError, "raised CancelledError"),
    "its own TimeoutError": (raises(TimeoutError("of the judge")), RuntimeError, "raised TimeoutError: of the judge"),
    "sys.exit(0)": (exits(0), RuntimeError, r"called sys.exit\(0\), on 2 responses.*'1\+1='"),
    "sys.exit()": (exits(None), RuntimeError, r"called sys.exit\(\)"),
    "sys.exit('bye')": (exits("bye"), RuntimeError, r"called sys.exit\('bye'\)"),
}


def ways(function):
    """A function called as it is, within a limit, and as an `async` one in a loop, within a limit and without."""

    @functools.wraps(function)
    async def asynchronous(**kwargs):
        return function(**kwargs)

    for timeout in (None, 60.0):
        yield guard_rewards(function, timeout=timeout)
        yield lambda timeout=timeout, **kwargs: asyncio.run(guard_rewards(asynchronous, timeout=timeout)(**kwargs))


@pytest.mark.hostile(FUNCTIONS, "refused")
@pytest.mark.parametrize(("function", "error", "message"), WRONG.values(), ids=WRONG)
def test_what_a_reward_does_wrong_is_one_line_with_its_name(function, error, message, record_property):
    tried = 0
    for guarded in ways(function):
        with pytest.raises(error, match=f"^reward function 'mine' .*{message}") as caught:
            guarded(**GIVEN)
        assert "\n" not in str(caught.value)
        assert error is ValueError or caught.value.__cause__ is not None
        tried += 1
    record_property("tried", tried)


RIGHT = {
    "an array": (np.array([0.5, 1.0]), [0.5, 1.0]),
    "an array of float32": (np.array([0.5, 1.0], dtype=np.float32), [0.5, 1.0]),
    "a tensor": (torch.tensor([0.5, 1.0]), [0.5, 1.0]),
    "tensors": ([torch.tensor(0.5), torch.tensor(1)], [0.5, 1.0]),
    "truth": ([True, np.False_], [1.0, 0.0]),
    "nothing to say": ([None, 1], [None, 1.0]),
    "a tuple": ((1, 0), [1.0, 0.0]),
    "values of a dict": ({"a": 1, "b": 2}.values(), [1.0, 2.0]),
    "a named tuple": (namedtuple("Two", "x y")(1, 2), [1.0, 2.0]),
    "fractions": ([Fraction(1, 2), Decimal("0.25")], [0.5, 0.25]),
    "a generator": (lambda: (x / 2 for x in (1, 2)), [0.5, 1.0]),
}


@pytest.mark.hostile(FUNCTIONS, "survived")
@pytest.mark.parametrize(("value", "rewards"), RIGHT.values(), ids=RIGHT)
def test_what_can_be_read_as_rewards_is(value, rewards, record_property):
    for tried, guarded in enumerate(ways(returns(value)), start=1):
        assert guarded(**GIVEN) == rewards
        record_property("tried", tried)


@pytest.mark.hostile(FUNCTIONS, "survived")
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_an_interrupt_is_the_users(timeout):
    def interrupted(completions, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        guard_rewards(interrupted, timeout=timeout)(**GIVEN)


@pytest.mark.hostile(FUNCTIONS, "refused")
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_an_exit_inside_of_a_reward_is_an_error_of_the_run(make_trainer, timeout, record_property):
    async def leaves(completions, **kwargs):  # it would end TRL's loop, and the run would wait for it for ever
        sys.exit(0)

    for tried, function in enumerate((exits(0), leaves), start=1):
        trainer = make_trainer(reward_funcs=function, reward_timeout=timeout)
        with pytest.raises(RuntimeError, match=rf"^reward function '{function.__name__}' called sys.exit\(0\), on 8"):
            trainer.train()
        record_property("tried", tried)


# Signatures: refused before anything is generated, never by a call that was made up


def no_kwargs(completions, prompts):
    raise AssertionError("called")


def wants_a_column(completions, answers, **kwargs):
    raise AssertionError("called")


def by_position(completions, /, **kwargs):
    raise AssertionError("called")


async def wants_a_column_too(completions, *, level, **kwargs):
    raise AssertionError("called")


class Judge:
    def __call__(self, completions, gold, **kwargs):
        raise AssertionError("called")


SIGNATURES = {
    "no **kwargs": (no_kwargs, {}, r"'no_kwargs' does not take 'completion_ids', .*'answer'.*add \*\*kwargs"),
    "a column": (wants_a_column, {}, r"'wants_a_column' asks for 'answers', and train_dataset has only 'answer': re"),
    "a column, async": (wants_a_column_too, {}, "'wants_a_column_too' asks for 'level'"),
    "a column, of an object": (Judge(), {}, "'Judge' asks for 'gold'"),
    "a column, of a partial": (functools.partial(wants_a_column, k=1), {}, "'wants_a_column' asks for 'answers'"),
    "position alone": (by_position, {}, "'by_position' takes 'completions' only by position.*remove the /"),
    "a column of the evaluation's data": (
        REWARDS["accuracy"],
        {"eval_dataset": Dataset.from_dict({"prompt": ["1+1="]})},
        "'accuracy_reward' asks for 'answer', and eval_dataset has only prompts: rename",
    ),
    "a column of one of several": (
        REWARDS["accuracy"],
        {"eval_dataset": {"hard": Dataset.from_dict({"prompt": ["1+1="], "gold": ["2"]})}},
        r"asks for 'answer', and eval_dataset\['hard'\] has only 'gold'",
    ),
    "a column that TRL gives itself": (
        REWARDS["format"],
        {"eval_dataset": Dataset.from_dict({"prompt": ["1+1="], "completions": ["2"]})},
        "eval_dataset has a column 'completions'.*rename the column",
    ),
}


@pytest.mark.hostile(FUNCTIONS, "refused")
@pytest.mark.parametrize(("function", "given", "message"), SIGNATURES.values(), ids=SIGNATURES)
def test_a_signature_that_cannot_be_called_is_refused_when_the_trainer_is_built(make_trainer, function, given, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_trainer(reward_funcs=[function], trainer_kwargs=given)
    assert "\n" not in str(caught.value)


@pytest.mark.hostile(FUNCTIONS, "survived")
def test_what_may_be_callable_is_not_refused(record_property):
    def adds(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, answers=["2", "4"], **kwargs)

        return wrapper

    def scores(completions, answers, **kwargs):
        return [1.0, 0.0]

    def has_defaults(prompts=None, completions=None, answers=None, **kwargs):
        return [1.0, 0.0]

    known, unknown = Rows("train_dataset", ("prompt", "answer")), Rows("train_dataset", None)
    functions = [
        (adds(scores), known),
        (functools.partial(scores, answers=[]), known),
        (has_defaults, known),
        (scores, unknown),
        (scores, Rows("train_dataset", ("answers",), others=("environments",))),
    ]
    for tried, (function, rows) in enumerate(functions, start=1):
        answers = {"answers": ["2", "4"]} if rows.columns != ("prompt", "answer") else {}
        assert guard_rewards(function, data=[rows])(**GIVEN, **answers) == [1.0, 0.0]
        record_property("tried", tried)


@pytest.mark.hostile(FUNCTIONS, "refused")
def test_where_the_columns_are_not_known_the_first_batch_says_it(record_property):
    def strict(completions, prompts):
        return [1.0, 0.0]

    for function, message in (
        (wants_a_column, "'wants_a_column' asks for 'answers', and the data has only 'level': rename"),
        (strict, r"'strict' does not take 'level', which it is given: add \*\*kwargs"),
    ):
        with pytest.raises(ValueError, match=message):
            guard_rewards(function)(**GIVEN, level=[1, 2])
    with pytest.raises(ValueError, match="'strict' does not take"):  # what TRL gives in any case is known
        guard_rewards(strict, data=[Rows("train_dataset", None)])
    record_property("tried", 3)


# Names and files, as `--reward` gives them

FILES = {
    "mine.py": "def mine(completions, **kwargs):\n    return [0.0] * len(completions)\n",
    "broken.py": "def mine(completions:\n",
    "exits.py": "import sys\nsys.exit(0)\n",
    "raises.py": "1 / 0\n",
}


@pytest.mark.hostile("mistakes on the command line", "refused")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.py", r"reward 'mine.py' is a file: name the function in it too, as mine.py:function"),
        ("mine.py:other", "'other' is not a function there"),
        ("mine.py:", "'' is not a function there"),
        ("broken.py:mine", r"broken.py raised SyntaxError: .*\(broken.py, line 1\)"),
        ("exits.py:mine", r"exits.py called sys.exit\(0\)"),
        ("raises.py:mine", "raises.py raised ZeroDivisionError"),
        ("broken.mine", "broken raised SyntaxError"),
        ("exits.mine", r"exits called sys.exit\(0\)"),
        ("rows.txt:f", "that ends in .py"),
        ("no_such", "unknown reward 'no_such'"),
        ("os.path.no_such", "'no_such' is not a function"),
        ("no.such.module", "No module named"),
    ],
)
def test_a_name_that_leads_to_no_reward(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        resolve_reward(name)
    assert "\n" not in str(caught.value)


# The script

script = load_script("examples/train.py")


@pytest.mark.hostile(FUNCTIONS, "survived")
@pytest.mark.slow
def test_data_without_answers_trains_with_a_reward_that_needs_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILES["mine.py"])
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"{i}+1="}) for i in range(8)))
    script.main([*QUICK, "--dataset_name", "rows.jsonl", "--reward", "mine.py:mine", "format"])
    assert (tmp_path / "out" / "model.safetensors").exists()
    for reward in ([], ["--reward", "mine.py:mine", "accuracy"]):  # these do
        error = error_of(script.main, [*QUICK, "--dataset_name", "rows.jsonl", *reward], capsys)
        assert "--answer_column" in error


def times(scale):
    def scaled(completions, **kwargs):
        return [scale * sum(c in "abc" for c in text) for text in completions]

    return scaled


LARGE = {
    "positive": ([times(1e20)], {}),
    "negative": ([times(-1e20)], {}),
    "beyond 32 bits": ([times(1e300)], {}),
    "by its weight": ([times(1.0)], {"reward_weights": [1e20]}),
    "not scaled": ([times(1e20)], {"scale_rewards": "none"}),
    "in a sum": ([times(1e-3), times(2e38), times(2e38)], {}),
    "each by itself": ([times(1e-3), times(1e20)], {"multi_objective_aggregation": "normalize_then_sum"}),
    "in rollouts": ([times(1e20)], {"rollouts": "tree"}),
}


@pytest.mark.hostile(FUNCTIONS, "refused")
@pytest.mark.parametrize("name", LARGE)
def test_rewards_whose_squares_overflow(make_trainer, name):
    """Their standard deviation is infinite: all advantages would be 0, and the run would learn nothing."""
    functions, settings = LARGE[name]
    trainer = make_trainer("base", reward_funcs=functions, **settings)
    before = [p.clone() for p in trainer.model.parameters()]
    with pytest.raises(ValueError, match=r"^reward 'scaled(_2)?' is \S+ for row \d+ of the batch: ") as e:
        trainer.train()
    assert str(e.value).endswith("Scale the reward, such as to [0, 1], or lower its reward_weights.")
    assert abs(float(str(e.value).split()[3])) >= (1.0 if name == "by its weight" else 1e20)
    assert all(map(torch.equal, before, trainer.model.parameters()))


@pytest.mark.hostile(FUNCTIONS, "survived")
def test_large_rewards_with_small_weights_learn_the_same(make_trainer):
    """Only what advantages are made of must not overflow."""
    learned = []
    for scale, weight in ((1.0, 1.0), (2.0**70, 2.0**-70)):
        trainer = make_trainer("base", reward_funcs=[times(scale)], reward_weights=[weight], max_steps=1)
        trainer.train()
        learned.append([p.detach().clone() for p in trainer.model.parameters()])
    assert all(map(torch.equal, *learned))
