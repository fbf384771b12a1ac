"""Waits that hear a signal: `trl_credit.support.signals.wait`, and signals that come at a bad moment."""

import signal
import sys
import threading
import time

import pytest

from trl_credit.rewards.limits import call_within
from trl_credit.support.signals import StopSignals, wait


@pytest.fixture
def asleep():
    """A thread that is interrupted, as the kernel may do in place of the main one, and an event that ends it."""
    let_go = threading.Event()

    def work():
        time.sleep(0.3)  # the main thread waits by then
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        let_go.wait(30)
        let_go.set()

    yield work, let_go
    let_go.set()


def test_a_wait_hears_a_signal_that_another_thread_got(asleep):
    work, let_go = asleep
    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=work, daemon=True).start()
        wait(let_go)
    assert not let_go.is_set()


def test_ctrl_c_does_not_wait_for_the_limit_of_a_reward(asleep):
    work, let_go = asleep
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call_within(25.0, work, message="slow took too long")
    assert time.monotonic() - start < 20  # a plain wait hears it at the limit


def test_a_wait_ends_with_the_event_or_at_its_limit():
    event = threading.Event()
    assert not wait(event, 0.25) and not wait(event, 0.0)
    threading.Timer(0.25, event.set).start()
    assert wait(event, 60.0) and wait(event, 0.0) and wait(event)


class Interrupted:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


class Wrong:
    def __del__(self):
        raise KeyError("mine")


def test_a_signal_that_comes_in_a_destructor_is_no_traceback(capfd, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # pytest has one of its own
    with StopSignals() as stop:
        Interrupted()
        assert stop.number == signal.SIGINT  # by which the run ends after its step
        assert capfd.readouterr().err == ""
        Wrong()
        assert "KeyError: 'mine'" in capfd.readouterr().err
    Wrong()
    assert "KeyError: 'mine'" in capfd.readouterr().err and sys.unraisablehook is sys.__unraisablehook__
