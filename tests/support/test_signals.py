"""Waits that hear a signal: `trl_credit.support.signals.wait`."""

import signal
import threading
import time

import pytest

from trl_credit.support.signals import wait


def test_a_wait_hears_a_signal_that_another_thread_got():
    """As the kernel may interrupt another one than the main thread."""
    event = threading.Event()

    def work():
        time.sleep(0.3)  # the main thread waits by then
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        time.sleep(5)
        event.set()

    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=work, daemon=True).start()
        wait(event)
    assert not event.is_set()


def test_a_wait_ends_with_the_event_or_at_its_limit():
    event = threading.Event()
    assert not wait(event, 0.25) and not wait(event, 0.0)
    threading.Timer(0.25, event.set).start()
    assert wait(event, 60.0) and wait(event, 0.0) and wait(event)
