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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .rules import Rules
from .worker import wall_limit


ANSWER_TIMEOUT = 1.0  # seconds of processor time: more than three times what any gold of the sets takes
FIRST_SHARE = 0.2  # share of it that every answer has: all but one gold in 1,000 need less
SLOW_ANSWERS = 16  # answers of a batch that have all of it
MEMORY = 2.0  # GiB of address space per worker
_START_TIMEOUT = 120.0  # seconds; half a second on an idle machine
_MOST_REMEMBERED = 100_000  # outcomes
_LONGEST_REMEMBERED = 500  # characters of an answer


# a power of a power of numbers, an exponent or a factorial of many digits, a factorial of a power or of a factorial
_NUMBER = r"[({\s]*-?\d[\d.]*[)}\s]*"
_HEAVY = re.compile(
    rf"\d[)}}\s]*(?:\^|\*\*)(?:{_NUMBER}(?:\^|\*\*)|[({{\s]*\d{{5,}}|[({{\s]*{_NUMBER}!)|"
    r"(?<!\d)\d{5,}[)}\s]*+!|\^[^!]{1,20}!|![)}\s]*!"
)
_HEAVY_SHARE = 0.1

_Question = tuple[str | None, str, Rules, float]  # answer, gold, rules and seconds


@dataclass
class Counts:
    """Counts of outcomes.

    Attributes:
        judged: Pairs that had not been judged before.
        timed_out: Answers that count as wrong because they took too long.
        over_budget: Those of `timed_out` that had only the first share of their time.
        failed: Answers that count as wrong because the parser raised an error, or its process died.
        unevaluated: Answers that strict rules refuse.
    """

    judged: int = 0
    timed_out: int = 0
    over_budget: int = 0
    failed: int = 0
    unevaluated: int = 0


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
        self.size = size or _default_size()
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for _ in range(self.size):
            self._idle.put(_Worker(memory))
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="judge")
        self._remembered: dict[_Question, str] = {}
        atexit.register(self.close)

    def equal(
        self,
        pairs: Sequence[tuple[str | None, str]],
        *,
        rules: Sequence[Rules] | None = None,
        timeout: float = ANSWER_TIMEOUT,
        slow_answers: int | None = None,
    ) -> tuple[list[bool], Counts]:
        """Judges (answer, gold) pairs. Equal pairs are judged once.

        With `slow_answers`, a batch of answers that hang has a bounded cost: all are judged with the first fifth of
        their time, and of those that need more, the first `slow_answers` different ones with all of it. So an answer
        that needs less than a fifth has the same verdict in every batch. One that needs more counts as wrong if
        `slow_answers` others came first; it is counted in `over_budget`, and judged again in a later call.

        Args:
            pairs (`list[tuple[str | None, str]]`):
                Pairs to judge. An answer of `None` asks whether the gold is readable.
            rules (`list[Rules]`, *optional*):
                How strictly to read each pair; not strictly by default.
            timeout (`float`, *optional*, defaults to 1.0):
                Seconds of processor time for each (wall time if the system cannot fork), a tenth of it for towers of
                powers and huge factorials.
            slow_answers (`int`, *optional*):
                ≥ 0. By default all answers have all of their time.

        Returns:
            `tuple[list[bool], Counts]`: the verdicts, and the counts of this call.

        Raises:
            RuntimeError: a worker cannot be started.
        """
        asked = [(*pair, rule, timeout) for pair, rule in zip(pairs, rules or [Rules()] * len(pairs), strict=True)]
        remembered = self._remembered
        known = {question: remembered[question] for question in asked if question in remembered}
        new = [question for question in dict.fromkeys(asked) if question not in known]
        found = self._judge(new, FIRST_SHARE if slow_answers is not None else 1.0)
        if slow_answers is not None:
            slow = [q for q in new if found[q] == "timeout" and _limit(q) > timeout * FIRST_SHARE]
            found |= dict.fromkeys(slow[slow_answers:], "over budget") | self._judge(slow[:slow_answers], 1.0)
        for question, outcome in found.items():
            is_final = not outcome.startswith("error") and outcome != "over budget"
            if is_final and len(question[0] or "") <= _LONGEST_REMEMBERED:
                remembered[question] = outcome
        known |= found
        outcomes = [known[question] for question in asked]
        over_budget = outcomes.count("over budget")
        counts = Counts(
            judged=len(new),
            timed_out=outcomes.count("timeout") + over_budget,
            over_budget=over_budget,
            failed=sum(outcome.startswith("error") for outcome in outcomes),
            unevaluated=outcomes.count("unevaluated"),
        )
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered = {}
        return [outcome == "1" for outcome in outcomes], counts

    def close(self) -> None:
        """Ends the workers. The next call starts new ones."""
        for _ in range(self._idle.qsize()):
            worker = self._idle.get()
            worker.end()
            self._idle.put(worker)

    def _judge(self, questions: Sequence[_Question], share: float) -> dict[_Question, str]:
        """Judges each question within `share` of its seconds, or within its own limit if that is lower."""
        return dict(zip(questions, self._threads.map(lambda q: self._ask(q, share), questions), strict=True))

    def _ask(self, question: _Question, share: float) -> str:
        worker = self._idle.get()
        try:
            return worker.ask(question, limit=min(_limit(question), question[-1] * share))
        finally:
            self._idle.put(worker)


def _limit(question: _Question) -> float:
    """Seconds of processor time. They depend only on the form of the answer, not on the other answers of the batch."""
    answer, *_, timeout = question
    return timeout * _HEAVY_SHARE if _HEAVY.search(answer or "") else timeout


class _Worker:
    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: _Question, *, limit: float) -> str:
        """`1`, `0`, `unevaluated`, `error …` or `timeout`."""
        if self._process is not None and self._process.poll() is not None:
            self.end()  # it died after the last answer, which must not count against this one
        if self._process is None:
            self._start()
        answer, gold, rules, timeout = question
        wall = wall_limit(limit, timeout=timeout)
        reply, late = self._exchange(json.dumps([answer, gold, limit, wall, *rules]) + "\n", wall)
        if late or not reply:
            self.end()
        return reply or ("timeout" if late else "error: the worker died")

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
            reply, late = self._exchange("", _START_TIMEOUT)
            if reply != "ready" or late:
                self.end()
                errors.seek(0)
                why = "in time" if late else f"and wrote: {errors.read()[-500:]}"
                hint = ". Install it for this Python: judges ignore PYTHONPATH" * ("ModuleNotFoundError" in why)
                raise RuntimeError(f"a process that judges answers did not start {why.rstrip()}{hint}")

    def _exchange(self, request: str, timeout: float) -> tuple[str, bool]:
        """The reply, empty if the process dies, and whether it was killed because it took too long."""
        late = threading.Event()
        process = self._process

        def expire() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(timeout, expire)
        timer.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            reply = process.stdout.readline().strip()
        except BrokenPipeError:
            reply = ""
        finally:
            timer.cancel()
            timer.join()
        return reply, late.is_set()


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills a worker with its children: it leads a process group."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _default_size() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(8, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


@cache
def default_pool() -> JudgePool:
    """The pool of this process."""
    return JudgePool()


if hasattr(os, "register_at_fork"):  # a forked child must not write to its parent's workers
    os.register_at_fork(after_in_child=default_pool.cache_clear)
