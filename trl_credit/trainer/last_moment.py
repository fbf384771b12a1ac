"""The end of a process that is one of several."""

import atexit
import functools
import time


_PAUSE = 0.3  # seconds


@functools.cache
def let_threads_finish() -> None:
    """Lets torch's threads come to their end before Python shuts down, in this process.

    A thread of gloo drops the tensors of a collective call some moments after that call has ended, and for that it
    needs Python's lock. Were Python shutting down by then, the process would be aborted ("terminate called without an
    active exception", exit code -6) after it has done its work. That the group is destroyed before helps only where
    nobody else keeps it, and DeepSpeed does.
    """
    atexit.register(time.sleep, _PAUSE)  # whoever needs the lock has it meanwhile
