"""Processes that judge answers with hard limits of time and memory, so that no answer can hang or kill a run."""

import atexit
import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from .rules import Outcome
from .worker import wall_limit


ANSWER_TIMEOUT = 1.0  # seconds of processor time: more than three times what any gold of the sets takes
FIRST_SHARE = 0.2  # share of it that every answer has: all but one gold in 1,000 need less
SLOW_ANSWERS = 16  # answers of a batch that have all of it
MEMORY = 2.0  # GiB of address space per worker
_START_TIMEOUT = 120.0  # seconds; half a second on an idle machine
_MOST_REMEMBERED = 10_000  # outcomes, each with its problem
_LONGEST_REMEMBERED = 500  # characters of an answer


# a power of a power of numbers, an exponent or a factorial of many digits, a factorial of a power or of a factorial
_NUMBER = r"[({\s]*-?\d[\d.]*[)}\s]*"
_HEAVY = re.compile(
    rf"\d[)}}\s]*(?:\^|\*\*)(?:{_NUMBER}(?:\^|\*\*)|[({{\s]*\d{{5,}}|[({{\s]*{_NUMBER}!)|"
    r"(?<!\d)\d{5,}[)}\s]*+!|\^[^!]{1,20}!|![)}\s]*!"
)
_HEAVY_SHARE = 0.1

_Question = tuple[str | None, str, str, bool, float]  # answer, gold, problem, strict and seconds


class JudgePool:
    """Worker processes that decide whether answers equal their golds.

    An answer that takes more than its processor time counts as wrong, and the process that judged it is ended. The
    limit depends on the answer, not on the load of the machine; a batch may have a budget of slow answers, see
    [`~JudgePool.equal`]. Workers start at the first answer that needs one and end with this process. A pool is
    thread-safe. Each process of a distributed run has its own workers.

    Args:
        size (`int`, *optional*):
            Number of workers. Default: the cores of this process, shared among the local processes of the run, at most
            8.
        memory (`float`, *optional*, defaults to 2):
            GiB of address space for each worker (Linux).
    """

    def __init__(self, size: int | None = None, *, memory: float = MEMORY) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.size = size or max(1, min(8, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for _ in range(self.size):
            self._idle.put(_Worker(memory))
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="judge")
        self._remembered: dict[_Question, Outcome] = {}
        atexit.register(self.close)

    def equal(
        self,
        pairs: Sequence[tuple[str | None, str]],
        *,
        problems: Sequence[str] | None = None,
        strict: bool = False,
        timeout: float = ANSWER_TIMEOUT,
        slow_answers: int | None = None,
    ) -> list[Outcome]:
        """Judges (answer, gold) pairs. Equal pairs are judged once.

        With `slow_answers`, a batch of answers that hang has a bounded cost: all are judged with the first fifth of
        their time, and of those that need more, the first `slow_answers` different ones with all of it. So an answer
        that needs less than a fifth has the same outcome in every batch. One that needs more is `OVER_BUDGET` if
        `slow_answers` others came first, and judged again in a later call.

        Args:
            pairs (`list[tuple[str | None, str]]`):
                Pairs to judge. An answer of `None` asks whether the gold is readable.
            problems (`list[str]`, *optional*):
                The problem of each pair, if it is known.
            strict (`bool`, *optional*, defaults to `False`):
                An answer must be a value and no copy of the problem, and letters and words have an order.
            timeout (`float`, *optional*, defaults to 1.0):
                Seconds of processor time for each (wall time if the system cannot fork), a tenth of it for towers of
                powers and huge factorials.
            slow_answers (`int`, *optional*):
                ≥ 0. By default all answers have all of their time.

        Returns:
            `list[Outcome]`: what became of each answer.

        Raises:
            RuntimeError: a worker cannot be started.
        """
        problems = problems or [""] * len(pairs)
        questions = [(*pair, problem, strict, timeout) for pair, problem in zip(pairs, problems, strict=True)]
        remembered = self._remembered = self._remembered if len(self._remembered) < _MOST_REMEMBERED else {}
        outcomes = {question: remembered[question] for question in questions if question in remembered}
        new = [question for question in dict.fromkeys(questions) if question not in outcomes]
        outcomes |= self._judge(new, 1.0 if slow_answers is None else FIRST_SHARE)
        if slow_answers is not None:
            slow = [q for q in new if outcomes[q] is Outcome.TIMED_OUT and _limit(q) > timeout * FIRST_SHARE]
            outcomes |= dict.fromkeys(slow[slow_answers:], Outcome.OVER_BUDGET) | self._judge(slow[:slow_answers], 1.0)
        for question in new:
            is_final = outcomes[question] not in (Outcome.FAILED, Outcome.OVER_BUDGET)
            if is_final and len(question[0] or "") <= _LONGEST_REMEMBERED:
                remembered[question] = outcomes[question]
        return [outcomes[question] for question in questions]

    def close(self) -> None:
        """Ends the workers. The next call starts new ones."""
        for _ in range(self._idle.qsize()):
            worker = self._idle.get()
            worker.end()
            self._idle.put(worker)

    def _judge(self, questions: Sequence[_Question], share: float) -> dict[_Question, Outcome]:
        """Judges each question within `share` of its seconds, or within its own limit if that is lower."""

        def ask(question: _Question) -> Outcome:
            worker = self._idle.get()
            try:
                return worker.ask(question, limit=min(_limit(question), question[-1] * share))
            finally:
                self._idle.put(worker)

        return dict(zip(questions, self._threads.map(ask, questions), strict=True))


def _limit(question: _Question) -> float:
    """Seconds of processor time. They depend only on the form of the answer, not on the other answers of the batch."""
    answer, *_, timeout = question
    return timeout * _HEAVY_SHARE if _HEAVY.search(answer or "") else timeout


class _Worker:
    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: _Question, *, limit: float) -> Outcome:
        if self._process is not None and self._process.poll() is not None:
            self.end()  # it died after the last answer, which must not count against this one
        if self._process is None:
            self._start()
        *what, timeout = question
        wall = wall_limit(limit, timeout=timeout)
        reply, is_late = self._exchange(json.dumps([limit, wall, *what]) + "\n", wall)
        if is_late or not reply:
            self.end()
        return Outcome(reply or ("timed_out" if is_late else "failed"))

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            process.communicate()

    def _start(self) -> None:
        with tempfile.TemporaryFile("w+") as errors:
            # A script of its own, so that neither the caller's __main__ nor torch is imported again. -E and -P: it
            # imports what is installed, not what is in PYTHONPATH or the current folder. Not -I, since libraries may be
            # in the user's site-packages.
            script = str(Path(__file__).with_name("worker.py"))
            self._process = subprocess.Popen(
                [sys.executable, "-E", "-P", "-X", "utf8", script, str(self._memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is not for it
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            reply, is_late = self._exchange("", _START_TIMEOUT)
            if reply != "ready" or is_late:
                self.end()
                errors.seek(0)
                why = "in time" if is_late else f"and wrote: {errors.read()[-500:]}"
                hint = ". Install it for this Python: judges ignore PYTHONPATH" * ("ModuleNotFoundError" in why)
                raise RuntimeError(f"a process that judges answers did not start {why.rstrip()}{hint}")

    def _exchange(self, request: str, timeout: float) -> tuple[str, bool]:
        """The reply, empty if the process dies, and whether the time was up, at which the process is killed."""
        start, reply = time.monotonic(), ""
        timer = threading.Timer(timeout, _kill, [self._process])
        timer.start()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(request)
            self._process.stdin.flush()
            reply = self._process.stdout.readline().strip()
        timer.cancel()
        timer.join()
        return reply, time.monotonic() - start >= timeout


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills a worker with its children: it leads a process group."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


@cache
def default_pool() -> JudgePool:
    """The pool of this process."""
    return JudgePool()


if hasattr(os, "register_at_fork"):  # a forked child must not write to its parent's workers
    os.register_at_fork(after_in_child=default_pool.cache_clear)
