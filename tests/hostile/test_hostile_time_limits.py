"""Time limits of reward functions hold, whatever runs."""

import asyncio
import ctypes
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reward_helpers import GIVEN, QUICK
from scripts import ROOT

from trl_credit import CreditConfig
from trl_credit.rewards import watchdog
from trl_credit.rewards.guard import guard_rewards
from trl_credit.runs.checkpoints import is_complete


def quick(completions, **kwargs):
    return [1.0, 0.0]


@pytest.mark.slow
@pytest.mark.hostile("time limits", "refused")
def test_a_training_run_that_hangs_where_python_cannot_act_is_killed(tmp_path):
    (tmp_path / "hangs.py").write_text(
        "import re\n"
        "calls = []\n"
        "def hangs(completions, **kwargs):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 2:\n"
        "        re.match('(a+)+b', 'a' * 60)\n"
        "    return [float(len(text)) for text in completions]\n"
    )
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "train.py"), *QUICK, "--max_steps", "3", "--save_steps", "1"]
        + ["--reward", "hangs.py:hangs", "--reward_timeout", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL
    said = [line for line in done.stderr.splitlines() if line.startswith("reward function")]
    assert len(said) == 1
    assert "'hangs' took longer than reward_timeout=1.0 seconds for 8 responses, the first to prompt '" in said[0]
    assert "raise reward_timeout" in said[0] and "killed; the last checkpoint is complete" in said[0]
    assert is_complete(tmp_path / "out" / "checkpoint-1")


HANGS = """
import asyncio, ctypes, re, sys, time
from trl_credit.rewards import watchdog
from trl_credit.rewards.guard import guard_rewards
watchdog.GRACE = 0.5

def regex(completions, **kwargs):
    re.match("(a+)+b", "a" * 60)

def power(completions, **kwargs):
    9 ** 9 ** 9

async def idle(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [1.0]

async def blocks(completions, **kwargs):
    time.sleep(600)

async def both(**given):
    return await asyncio.gather(*[guard_rewards(f, timeout=0.3)(**given) for f in (blocks, idle)])

def together(**given):
    return asyncio.run(both(**given))

def stubborn(**given):
    async def refuses(completions, **kwargs):
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                time.sleep(600)
    return asyncio.run(guard_rewards(refuses, timeout=0.3)(**given))

name = sys.argv[1]
guarded = globals()[name] if name in ("together", "stubborn") else guard_rewards(globals()[name], timeout=0.3)
print(guarded(prompts=["1+1="], completions=["a"]))
"""


@pytest.mark.hostile("time limits", "refused")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "named"), [("regex", "'regex'"), ("power", "'power'"), ("together", "'blocks'"), ("stubborn", "'refuses'")]
)
def test_what_holds_python_is_killed_with_its_name(what, named):
    done = subprocess.run([sys.executable, "-c", HANGS, what], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert not done.stdout
    said = [line for line in done.stderr.splitlines() if "reward function" in line]
    assert f"{named} took longer than reward_timeout=0.3 seconds" in said[0] and "'1+1='" in said[0]
    assert done.returncode == -signal.SIGKILL
    # 'idle' is late at nearly the same time, and may be named too
    assert len(said) == 1 or what == "together" and "Another `async` function may block" in said[0]


def holds_python(seconds):
    """Sleeps with the lock that every thread of Python needs."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@pytest.mark.hostile("time limits", "refused")
def test_what_comes_after_the_limit_is_not_accepted(record_property):
    def late(completions, **kwargs):
        holds_python(0.4)
        return [1.0, 1.0]

    def late_to_fail(completions, **kwargs):
        holds_python(0.4)
        sys.exit(0)

    def lazy(completions, **kwargs):
        return (time.sleep(0.4) or 1.0 for _ in completions)

    async def blocks(completions, **kwargs):
        time.sleep(0.4)
        return [1.0, 1.0]

    async def waits(completions, **kwargs):
        await asyncio.sleep(30)

    async def lazy_too(completions, **kwargs):
        return (time.sleep(0.4) or 1.0 for _ in completions)

    for tried, function in enumerate((late, late_to_fail, lazy, blocks, waits, lazy_too), start=1):
        guarded = guard_rewards(function, timeout=0.05)
        with pytest.raises(TimeoutError, match=rf"^reward function '{function.__name__}' took longer than .*'1\+1='"):
            asyncio.run(guarded(**GIVEN)) if asyncio.iscoroutinefunction(guarded) else guarded(**GIVEN)
        record_property("tried", tried)


@pytest.mark.hostile("time limits", "survived")
def test_no_limit_is_infinite(record_property):
    for timeout in (math.inf, 1e300, 1e9):
        assert guard_rewards(quick, timeout=timeout)(**GIVEN) == [1.0, 0.0]
    assert CreditConfig(output_dir="unused", report_to="none", reward_timeout=math.inf).reward_timeout == math.inf
    record_property("tried", 4)


ALONE = """
import ctypes, os, signal, sys, time, types
sys.path.insert(0, sys.argv[1])
import watchdog
watchdog.GRACE = 0.2
dog = watchdog.Watchdog()
hold = lambda seconds: ctypes.PyDLL(None).usleep(int(seconds * 1e6))
"""


def alone(code, **kwargs):
    folder = str(Path(watchdog.__file__).parent)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
    return subprocess.run([sys.executable, "-c", ALONE + code, folder], text=True, timeout=60, **pipes)


@pytest.mark.hostile("time limits", "survived")
@pytest.mark.parametrize(
    "somebody",
    [
        "sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: 1)",
        pytest.param("sys.ps1 = '>>> '", marks=pytest.mark.slow),
    ],
)
def test_a_notebook_is_never_killed(somebody):
    done = alone(f"{somebody}\nwith dog.watch(0.1, message='f is late.'):\n    hold(1.5)\nprint('alive')")
    assert done.returncode == 0 and done.stdout == "alive\n"
    assert [line for line in done.stderr.splitlines() if line] == [
        "f is late. The error is raised as soon as Python runs again; if it never does, restart the kernel."
    ]


@pytest.mark.hostile("time limits", "survived")
def test_a_call_that_was_given_up_kills_nothing():
    done = alone("dog.watch(0.1, message='f is late.').__enter__()\ndog.forget()\nhold(1.5)\nprint('alive')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


@pytest.mark.hostile("time limits", "survived")
def test_the_watching_process_ends_with_a_process_that_is_killed_and_has_left_forks():
    done = alone(
        "with dog.watch(60, message='f is late.'):\n"
        "    print(next(iter(dog._running)).pid, flush=True)\n"
        "    if os.fork():\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    os.close(1)\n"
        "    time.sleep(20)\n",
        stderr=subprocess.DEVNULL,  # the watchdog holds a copy of it
    )
    end = time.monotonic() + 15
    while lives(int(done.stdout)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not lives(int(done.stdout))


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.hostile("time limits", "refused")
@pytest.mark.parametrize("executable", ["", "/no/such/python"])
def test_a_limit_that_cannot_be_watched_is_an_error(monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(RuntimeError, match="^the process that watches reward_timeout cannot .*reward_timeout=None"):
        guard_rewards(quick, timeout=60.0)(**GIVEN)


@pytest.mark.hostile("time limits", "survived")
def test_an_error_leaves_no_call_behind_that_could_kill_what_comes_after(make_trainer):
    async def slow(completions, **kwargs):
        await asyncio.sleep(30)

    async def fails(completions, **kwargs):
        raise KeyError("no")

    trainer = make_trainer(reward_funcs=[slow, fails], reward_timeout=300.0)
    with pytest.raises(RuntimeError, match="'fails' raised KeyError"):
        trainer.train()
    assert not watchdog.default_watchdog()._running
    for task in asyncio.all_tasks(trainer.async_loop):
        trainer.async_loop.call_soon_threadsafe(task.cancel)
