"""Time limits of reward functions hold, whatever runs."""

import asyncio
import ctypes
import subprocess
import sys
import time

import pytest
from reward_helpers import GIVEN
from scripts import ROOT

from trl_credit.rewards import limits
from trl_credit.rewards.guard import guard_rewards


pytestmark = pytest.mark.hostile("time limits", "refused")
survived = pytest.mark.hostile("time limits", "survived")


ALONE = """
import asyncio, builtins, ctypes, re, sys, time
from trl_credit.rewards import limits
from trl_credit.rewards.guard import guard_rewards
limits.GRACE = 0.5

def regex(completions, **kwargs):
    re.match("(a+)+b", "a" * 60)

async def idle(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [1.0]

async def blocks(completions, **kwargs):
    await asyncio.sleep(0.1)  # `idle` ends before, and must not switch the timer off
    time.sleep(600)

async def stubborn(completions, **kwargs):
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            time.sleep(600)

def given_up(completions, **kwargs):
    limits.forget_calls()
    builtins.__IPYTHON__ = True  # from here on a notebook
    ctypes.PyDLL(None).usleep(1_500_000)

def goes_on(completions, **kwargs):
    ctypes.PyDLL(None).usleep(1_500_000)

async def together(functions, **given):
    return await asyncio.gather(*[guard_rewards(f, timeout=0.3)(**given) for f in functions])

given = {"prompts": ["1+1="], "completions": ["a"]}
function = globals()[sys.argv[1]]
if asyncio.iscoroutinefunction(function):
    asyncio.run(together([function, idle], **given))
for function in (function, goes_on):
    try:
        guard_rewards(function, timeout=0.3)(**given)
    except TimeoutError:
        print("alive")
"""


def alone(name):
    return subprocess.run([sys.executable, "-c", ALONE, name], capture_output=True, text=True, timeout=120, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regex", "blocks", "stubborn"])
def test_what_holds_python_ends_the_process_with_its_name(name):
    done = alone(name)
    assert (done.stdout, done.returncode) == ("", 1) and f" in {name}" in done.stderr


@survived
@pytest.mark.slow
def test_a_notebook_and_what_comes_after_a_call_that_was_given_up_go_on():
    done = alone("given_up")
    assert (done.stdout, done.returncode) == ("alive\nalive\n", 0) and " in goes_on" in done.stderr


def test_what_comes_after_the_limit_is_not_accepted(record_property):
    def late(completions, **kwargs):
        ctypes.PyDLL(None).usleep(400_000)  # with the lock that every thread of Python needs
        return [1.0, 1.0]

    async def blocks(completions, **kwargs):
        time.sleep(0.4)
        return [1.0, 1.0]

    async def waits(completions, **kwargs):
        await asyncio.sleep(30)

    async def lazy(completions, **kwargs):
        return (time.sleep(0.4) or 1.0 for _ in completions)

    for tried, function in enumerate((late, blocks, waits, lazy), start=1):
        guarded = guard_rewards(function, timeout=0.05)
        with pytest.raises(TimeoutError, match=rf"^reward function '{function.__name__}' .*reward_timeout.*'1\+1='"):
            asyncio.run(guarded(**GIVEN)) if asyncio.iscoroutinefunction(guarded) else guarded(**GIVEN)
        record_property("tried", tried)
    assert not limits._deadlines


@survived
def test_an_error_leaves_no_call_behind_that_could_end_what_comes_after(make_trainer):
    async def slow(completions, **kwargs):
        await asyncio.sleep(30)

    async def fails(completions, **kwargs):
        raise KeyError("no")

    trainer = make_trainer(reward_funcs=[slow, fails], reward_timeout=300.0)
    with pytest.raises(RuntimeError, match="'fails' .*KeyError"):
        trainer.train()
    assert not limits._deadlines
    for task in asyncio.all_tasks(trainer.async_loop):
        trainer.async_loop.call_soon_threadsafe(task.cancel)
