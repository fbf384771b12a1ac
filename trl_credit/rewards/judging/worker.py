"""A process that judges answers: a line of JSON in; `1`, `0`, `unevaluated`, `timeout` or `error …` out.

`pool.py` starts this file as a script, with the folder above `judging` added to `sys.path`. So it imports `judging`
alone, not trl_credit, starts in half a second and never imports torch. If the system can fork, a child judges: the
kernel ends it when an answer has used its processor time, and the next one starts in milliseconds, with all imports
done.
"""

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
    ("\\frac{1}{2}", "0.5"),
    ("x^{2}+1", "1+x^2"),
    ("(x+1)^2", "x^2+2x+1"),
    ("\\{1,2\\}", "\\{2,1\\}"),
    ("\\sqrt{8}", "2\\sqrt{2}"),
    ("\\sin(x)^2+\\cos(x)^2", "1"),
    ("x=3", "3"),
    ("a<b", "b>a"),
    ("r\\sqrt{\\pi a}", "\\sqrt{\\pi ar^2}"),
    ("2x+y=1", "1-2x=y"),
)


def wall_limit(limit: float, *, timeout: float) -> float:
    """Seconds of wall time after which a worker stops judging an answer that has `limit` seconds of processor time.

    If the system can limit processor time, the wall time follows from `timeout`, of which `limit` may be a share, so
    that a busy machine does not end an answer early. Otherwise wall time is the only limit, and it is `limit`.
    """
    return PATIENCE + MOST_PATIENCE * timeout if FORKS else limit


def serve(requests: TextIO, replies: TextIO, busy: mmap.mmap) -> None:
    """Answers requests until the pipe closes. `busy` is 1 while an answer is judged."""
    from judging.equal import readable
    from judging.rules import Rules
    from judging.verdict import judged

    sys.setrecursionlimit(1_000_000)  # deeper recursion ends this process, and is counted
    for line in requests:
        busy[0] = 1
        answer, gold, limit, wall, *rules = json.loads(line)
        set_timers(limit, math.ceil(wall) + 1)
        try:
            reply = str(int(readable(gold))) if answer is None else judged(answer, gold, Rules(*rules))
        except Exception as error:  # a parser may raise anything for what a model wrote
            reply = f"error {type(error).__name__}"
        set_timers(0, 0)
        busy[0] = 0
        print(reply, file=replies, flush=True)


def set_timers(processor: float, wall: int) -> None:
    """Sets the seconds after which signals end this process; 0 switches them off."""
    if FORKS:
        signal.setitimer(signal.ITIMER_PROF, processor)
        signal.alarm(wall)  # if the parent dies, nothing else ends an answer that waits


def judge_in_children(replies: TextIO, busy: mmap.mmap) -> None:
    """Runs one judging child at a time, until one ends because the pipe closed."""
    gc.freeze()
    while True:
        child = os.fork()
        if child == 0:
            end_with_parent()
            in_thread(replies, busy)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return
        if busy[0]:
            busy[0] = 0
            late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
            print("timeout" if late else "error: the worker died", file=replies, flush=True)


def in_thread(replies: TextIO, busy: mmap.mmap) -> None:
    """Serves with a stack that is deep enough."""
    threading.stack_size(STACK)
    thread = threading.Thread(target=serve, args=(sys.stdin, replies, busy))
    thread.start()
    thread.join()


def end_with_parent() -> None:
    """Ends this process when its parent ends (Linux; elsewhere it ends after its current answer)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def limit_memory(gigabytes: float) -> None:
    """Limits the address space (Linux)."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    limit_memory(float(sys.argv[1]))
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is not a reply
    # last in the path, so that it hides no other module
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from judging.rules import Rules
    from judging.verdict import judged

    for answer, gold in FIRST_OF_THEIR_KIND:
        judged(answer, gold, Rules(strict=True))
    print("ready", file=replies, flush=True)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # nobody reads what libraries print from here on
        os.dup2(nowhere, stream)
    busy = mmap.mmap(-1, 1)  # shared with children
    if FORKS:
        judge_in_children(replies, busy)
    else:
        in_thread(replies, busy)


if __name__ == "__main__":
    main()
