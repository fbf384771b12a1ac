"""A process that judges answers: a line of JSON in, one of `1`, `0`, `error` out. Started by `pool.py`, as a script.

It imports this folder by itself, not trl_credit, so that it starts in half a second and never imports torch.
"""

import json
import math
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TextIO


STACK = 256 * 2**20  # bytes: a long sum is parsed by deep recursion


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answers requests until the pipe closes."""
    # last in the path, so that no module of the package hides another's
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from judging.equal import equal, judged, readable
    from judging.rules import Rules

    equal("\\frac{1}{2}", "0.5")  # loads the grammar
    print("ready", file=replies, flush=True)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # from here on libraries have nothing to say that anybody reads
        os.dup2(nowhere, stream)
    sys.setrecursionlimit(1_000_000)  # what is too deep all the same ends this process, and is counted
    for line in requests:
        answer, gold, limit, *rules = json.loads(line)
        if hasattr(signal, "alarm"):  # should the parent die meanwhile, nobody else ends what hangs
            signal.alarm(math.ceil(limit) + 1)
        try:
            reply = str(int(readable(gold))) if answer is None else judged(answer, gold, Rules(*rules))
        except Exception as error:  # whatever a parser does with what a model wrote
            reply = f"error {type(error).__name__}"
        print(reply, file=replies, flush=True)
        if hasattr(signal, "alarm"):
            signal.alarm(0)


def limit_memory(gigabytes: float) -> None:
    """Of address space, where the system can (Linux)."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    limit_memory(float(sys.argv[1]))
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no reply
    threading.stack_size(STACK)
    thread = threading.Thread(target=serve, args=(sys.stdin, pipe))
    thread.start()
    thread.join()
