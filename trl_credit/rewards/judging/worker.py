"""A process that judges answers: a line of JSON in, an `Outcome` out.

`pool.py` starts this file as a script, with the folder above `judging` added to `sys.path`. So it imports `judging`
alone, not trl_credit, starts in half a second and never imports torch. If the system can fork, a child judges: the
kernel ends it when an answer has used its processor time, and the next one starts in milliseconds, with all imports
done.
"""

import ctypes
import gc
import json
import math
import mmap
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TextIO


STACK = 256 * 2**20  # bytes, since a long sum is parsed by deep recursion
FORKS = hasattr(os, "fork") and hasattr(signal, "setitimer")
# seconds of wall time, for an answer that waits instead of computing, or has to wait for a processor
PATIENCE, MOST_PATIENCE = 1.0, 10.0
# Parsers import and build things for their first polynomial, set or trigonometric value, in a tenth of a second each.
# That is done before a child starts, so that it costs no answer its time.
FIRST_OF_THEIR_KIND = (
    ("x^{2}+1", "1+x^2"),
    ("\\{2+3i,(x+1)^2\\}", "\\{x^2+2x+1,3i+2\\}"),
    ("r\\sqrt{\\pi a}", "\\sqrt{\\pi ar^2}"),
    ("\\sin(x)^2+\\cos(x)^2", "1"),
    ("2x+y=1", "1-2x=y"),
    ("\\log_2 3", "\\frac{\\ln 3}{\\ln 2}"),
)


def wall_limit(limit: float, *, timeout: float) -> float:
    """Seconds of wall time after which a worker stops judging an answer that has `limit` seconds of processor time.

    If the system can limit processor time, the wall time follows from `timeout`, of which `limit` may be a share, so
    that a busy machine does not end an answer early. Otherwise wall time is the only limit, and it is `limit`.
    """
    return PATIENCE + MOST_PATIENCE * timeout if FORKS else limit


def serve(replies: TextIO, busy: mmap.mmap) -> None:
    """Answers requests until the pipe closes. `busy` is 1 while an answer is judged."""
    from judging.equal import readable
    from judging.question import decide

    sys.setrecursionlimit(1_000_000)  # deeper recursion ends this process, and is counted
    for line in sys.stdin:
        busy[0] = 1
        limit, wall, answer, gold, problem, strict = json.loads(line)
        set_timers(limit, math.ceil(wall) + 1)
        try:
            if answer is None:
                reply = "right" if readable(gold) else "wrong"
            else:
                reply = decide(answer, gold, problem, strict)
        except Exception:  # a parser may raise anything for what a model wrote
            reply = "failed"
        set_timers(0, 0)
        busy[0] = 0
        print(reply, file=replies, flush=True)


def set_timers(processor: float, wall: int) -> None:
    """Sets the seconds after which signals end this process; 0 switches them off."""
    if FORKS:
        signal.setitimer(signal.ITIMER_PROF, processor)
        signal.alarm(wall)  # if the parent dies, nothing else ends an answer that waits


def main() -> None:
    """Runs one judging process at a time, until one ends because the pipe closed."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(float(sys.argv[1]) * 2**30),) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is not a reply
    # last in the path, so that it hides no other module
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from judging.question import decide

    for answer, gold in FIRST_OF_THEIR_KIND:
        decide(answer, gold, strict=True)
    print("ready", file=replies, flush=True)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # nobody reads what libraries print from here on
        os.dup2(nowhere, stream)
    busy = mmap.mmap(-1, 1)  # shared with children
    threading.stack_size(STACK)
    gc.freeze()
    while True:
        child = os.fork() if FORKS else 0
        if child == 0:
            if sys.platform == "linux":  # elsewhere it ends after its current answer
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent
            thread = threading.Thread(target=serve, args=(replies, busy))
            thread.start()
            thread.join()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        if busy[0]:
            busy[0] = 0
            is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
            print("timed_out" if is_late else "failed", file=replies, flush=True)


if __name__ == "__main__":
    main()
