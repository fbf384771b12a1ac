"""Waits that hear a signal: `trl_credit.support.signals.wait`."""

import signal
import threading
import time

import pytest

from trl_credit.support.signals import wait


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


def test_a_wait_ends_with_the_event_or_at_its_limit():
    event = threading.Event()
    assert not wait(event, 0.25) and not wait(event, 0.0)
    threading.Timer(0.25, event.set).start()
    assert wait(event, 60.0) and wait(event, 0.0) and wait(event)
