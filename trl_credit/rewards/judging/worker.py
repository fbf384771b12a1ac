"""A process that judges answers: a line of JSON in, one of `1`, `0`, `unevaluated`, `timeout`, `error` out. Started by
`pool.py`, as a script.

It imports this folder by itself, not trl_credit, so that it starts in half a second and never imports torch. Where the
system can fork, a child does the judging: the kernel ends it when an answer has had its seconds of processor time, and
the next one is there in milliseconds, with everything imported.
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


STACK = 256 * 2**20  # bytes: a long sum is parsed by deep recursion
FORKS = hasattr(os, "fork") and hasattr(signal, "setitimer")
# of wall time, for what waits and does not compute, or has to wait for a processor
PATIENCE, MOST_PATIENCE = 1.0, 10.0
# what a parser imports and builds with its first polynomial, set or trigonometric value, a tenth of a second each, is
# there when a child begins, and costs no answer its time
FIRST_OF_THEIR_KIND = (
    ("\\frac{1}{2}", "0.5"),
    ("x^{2}+1", "1+x^2"),
    ("(x+1)^2", "x^2+2x+1"),
    ("\\{1,2\\}", "\\{2,1\\}"),
    ("\\sqrt{8}", "2\\sqrt{2}"),
    ("\\sin(x)^2+\\cos(x)^2", "1"),
    ("x=3", "3"),
    ("a<b", "b>a"),
)


def wall_limit(limit: float, *, timeout: float) -> float:
    """Seconds after which nobody waits for an answer that may have `limit` seconds of processor time.

    Where these are counted it is by `timeout`, of which `limit` may be a share: a busy machine is no reason to end an
    answer early. Where they are not, wall time is all that there is to go by.
    """
    return PATIENCE + MOST_PATIENCE * timeout if FORKS else limit


def serve(requests: TextIO, replies: TextIO, busy: mmap.mmap) -> None:
    """Answers requests until the pipe closes. `busy` is 1 while one is judged."""
    from judging.equal import readable
    from judging.rules import Rules
    from judging.verdict import judged

    sys.setrecursionlimit(1_000_000)  # what is too deep all the same ends this process, and is counted
    for line in requests:
        busy[0] = 1
        answer, gold, limit, wall, *rules = json.loads(line)
        if FORKS:  # what it ends with is this process
            signal.setitimer(signal.ITIMER_PROF, limit)
        if hasattr(signal, "alarm"):  # should the parent die meanwhile, nobody else ends what waits
            signal.alarm(math.ceil(wall) + 1)
        try:
            reply = str(int(readable(gold))) if answer is None else judged(answer, gold, Rules(*rules))
        except Exception as error:  # whatever a parser does with what a model wrote
            reply = f"error {type(error).__name__}"
        if FORKS:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        busy[0] = 0
        print(reply, file=replies, flush=True)


def judge_in_children(replies: TextIO, busy: mmap.mmap) -> None:
    """Has one child at a time judge, until one ends because the pipe closed."""
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
    """Nobody reads what a child of a killed process finds (Linux; elsewhere it ends with the answer it is at)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def limit_memory(gigabytes: float) -> None:
    """Of address space, where the system can (Linux)."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    limit_memory(float(sys.argv[1]))
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no reply
    # last in the path, so that no module of the package hides another's
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from judging.rules import Rules
    from judging.verdict import judged

    for answer, gold in FIRST_OF_THEIR_KIND:
        judged(answer, gold, Rules(strict=True))
    print("ready", file=replies, flush=True)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # from here on libraries have nothing to say that anybody reads
        os.dup2(nowhere, stream)
    busy = mmap.mmap(-1, 1)  # shared with children
    if FORKS:
        judge_in_children(replies, busy)
    else:
        in_thread(replies, busy)


if __name__ == "__main__":
    main()
