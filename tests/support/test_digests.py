"""`digest_of`: which changes make another function of the one that a run started with."""

import functools
import math
import subprocess
import sys

import pytest

from trl_credit.support.digests import digest_of


SCRIPT = """
from trl_credit.support.digests import digest_of

LEARNING_RATE, WEIGHT = {rate}, {weight}

def part(text):
    return WEIGHT * len(text)

def reward(completions, **kwargs):
    return [part(text) for text in completions]

class Judge:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, completions, **kwargs):
        return [self.scale * part(text) for text in completions]

print(digest_of(reward), digest_of(Judge({scale})))
"""


def test_a_script_has_settings_and_rewards_and_only_the_rewards_count(tmp_path):
    """A run that resumes with a larger max_steps in its script has the same reward functions."""

    def digests(**values) -> list[str]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.py"
        path.write_text(SCRIPT.format(**{"rate": 1e-6, "weight": 1, "scale": 1, **values}))
        return subprocess.run([sys.executable, path], capture_output=True, text=True, check=True).stdout.split()

    reward, judge = digests()
    assert digests(rate=1e-5) == [reward, judge]
    assert digests(scale=2)[0] == reward and digests(scale=2)[1] != judge
    heavier = digests(weight=2)
    assert heavier[0] != reward and heavier[1] != judge


def of_a_file(text, scale=1):
    return scale * len(text)


def captures(value):
    def function(text):
        return (value, text)

    return function


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, text):
        return self.scale * len(text)

    def method(self, text):
        return self(text)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (of_a_file, of_a_file, captures(1)),
        (functools.partial(of_a_file, scale=1), functools.partial(of_a_file, scale=1), functools.partial(of_a_file)),
        (captures(1), captures(1), captures(2)),
        (captures({"a": [1]}), captures({"a": [1]}), captures({"a": [2]})),
        (captures(object()), captures(object()), captures(captures)),  # other objects count by their type
        (Scaled(1), Scaled(1), Scaled(2)),
        (Scaled(1).method, Scaled(1).method, Scaled(2).method),
    ],
    ids=["function", "partial", "closure", "nested", "object", "callable object", "method"],
)
def test_bound_and_captured_values_count(one, same, other):
    assert digest_of(one) == digest_of(same) != digest_of(other)


def test_a_function_without_a_source_is_known_by_its_name_and_that_is_a_warning(caplog):
    scopes: list[dict] = [{}, {}]
    for scope, sign in zip(scopes, "+-", strict=True):
        exec(f"def typed(x): return {sign}x", scope)
    assert digest_of(scopes[0]["typed"]) == digest_of(scopes[1]["typed"]) != digest_of(math.sqrt)
    assert caplog.text.count("typed has no source here") == 2 and "sqrt has no source here" in caplog.text
