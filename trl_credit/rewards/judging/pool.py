"""Processes that judge answers, each with a hard limit of time and memory: no answer can hang or kill a run."""

import atexit
import contextlib
import json
import os
import queue
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

from .heavy import seconds
from .rules import Rules
from .worker import wall_limit


ANSWER_TIMEOUT = 1.0  # seconds of processor time: more than three times what any gold of the sets takes
FIRST_SHARE = 0.2  # of it, which every answer has: all but one gold in 1,000 need less
SLOW_ANSWERS = 16  # of a batch that have all of it
MEMORY = 2.0  # GiB of address space per worker
_START_TIMEOUT = 120.0  # seconds; half a second on an idle machine
_MOST_REMEMBERED = 100_000  # outcomes
_LONGEST_REMEMBERED = 500  # characters of an answer


_Question = tuple[str | None, str, Rules, float]  # answer, gold, rules and seconds


@dataclass
class Counts:
    """What became of answers. `judged`: pairs that had not been judged before; `timed_out` and `failed` (the parser
    raised, or its process died): answers that count as wrong for it; `over_budget`: those of `timed_out` that had the
    first share of their time alone; `unevaluated`: those that strict rules refuse."""

    judged: int = 0
    timed_out: int = 0
    over_budget: int = 0
    failed: int = 0
    unevaluated: int = 0


class JudgePool:
    """Worker processes that say whether answers equal their golds.

    An answer that takes more than its seconds of processor time counts as wrong, and the process that judged it is
    ended. The limit depends on the answer, not on how busy the machine is; a batch may have a budget of slow answers,
    see [`~JudgePool.equal`]. Workers start at the first answer that needs one and end with this process. May be used
    from any thread, and by every process of a distributed run, each with workers of its own.

    Args:
        size (`int`, *optional*):
            Workers. Default: the cores of this process, shared among the local processes of the run, at most 8.
        memory (`float`, *optional*, defaults to 2):
            GiB of address space for each worker (Linux).
    """

    def __init__(self, size: int | None = None, *, memory: float = MEMORY) -> None:
        self.size = size or _default_size()
        self.counts = Counts()
        self._memory = memory
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for _ in range(self.size):
            self._idle.put(_Worker(memory))
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="judge")
        self._remembered: dict[_Question, str] = {}
        self._lock = threading.Lock()
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
        their time, and of those that need more the first `slow_answers` different ones, in their order, with all of
        it. So an answer that needs less than a fifth has the same verdict whatever stands beside it; one that needs
        more may lose it to that many others before it, is counted, and is judged again when it comes again.

        Args:
            pairs (`list[tuple[str | None, str]]`):
                An answer of `None` asks if the gold is readable.
            rules (`list[Rules]`, *optional*):
                For each pair how strictly; by default not at all.
            timeout (`float`, *optional*, defaults to 1.0):
                Seconds of processor time for each (wall time where the system cannot fork), a tenth of them for towers
                of powers and huge factorials.
            slow_answers (`int`, *optional*):
                ≥ 0. By default all have all of their time.

        Returns:
            `tuple[list[bool], Counts]`: the verdicts, and what was counted on the way.

        Raises:
            RuntimeError: a worker cannot be started.
        """
        remembered = self._remembered
        asked = [(*pair, rule, timeout) for pair, rule in zip(pairs, rules or [Rules()] * len(pairs), strict=True)]
        known = {question: remembered[question] for question in dict.fromkeys(asked) if question in remembered}
        new = [question for question in dict.fromkeys(asked) if question not in known]
        found = self._judge(new, FIRST_SHARE if slow_answers is not None else 1.0)
        if slow_answers is not None:
            slow = [q for q in new if found[q] == "timeout" and _limit(q) > timeout * FIRST_SHARE]
            found |= dict.fromkeys(slow[slow_answers:], "over budget") | self._judge(slow[:slow_answers], 1.0)
        for question, outcome in found.items():
            known[question] = outcome
            is_final = not outcome.startswith("error") and outcome != "over budget"
            if is_final and len(question[0] or "") <= _LONGEST_REMEMBERED:
                remembered[question] = outcome
        outcomes = [known[question] for question in asked]
        over_budget = outcomes.count("over budget")
        counts = Counts(
            judged=len(new),
            timed_out=outcomes.count("timeout") + over_budget,
            over_budget=over_budget,
            failed=sum(outcome.startswith("error") for outcome in outcomes),
            unevaluated=outcomes.count("unevaluated"),
        )
        verdicts = [outcome == "1" for outcome in outcomes]
        with self._lock:
            for name in vars(counts):
                setattr(self.counts, name, getattr(self.counts, name) + getattr(counts, name))
            if len(self._remembered) > _MOST_REMEMBERED:
                self._remembered = {}
        return verdicts, counts

    def close(self) -> None:
        """Ends the workers. The pool may be used again: they start anew."""
        for _ in range(self._idle.qsize()):
            worker = self._idle.get()
            worker.end()
            self._idle.put(worker)

    def _judge(self, questions: Sequence[_Question], share: float) -> dict[_Question, str]:
        """What workers say, each within that share of a question's seconds, or what it may have if that is less."""
        return dict(zip(questions, self._threads.map(lambda q: self._ask(q, share), questions), strict=True))

    def _ask(self, question: _Question, share: float) -> str:
        worker = self._idle.get()
        try:
            return worker.ask(question, limit=min(_limit(question), question[-1] * share))
        finally:
            self._idle.put(worker)


def _limit(question: _Question) -> float:
    """Seconds of processor time that it may have."""
    return seconds(question[0] or "", question[-1])


class _Worker:
    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: _Question, *, limit: float) -> str:
        """`1`, `0`, `unevaluated`, `error …` or `timeout`."""
        if self._process is not None and self._process.poll() is not None:
            self.end()  # something ended it since the last answer: that is no fault of this one
        if self._process is None:
            self._start()
        answer, gold, rules, timeout = question
        wall = wall_limit(limit, timeout=timeout)
        request = json.dumps([answer, gold, limit, wall, *rules]) + "\n"
        reply, late = self._exchange(request, wall)
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
            # a file run by itself: neither the caller's __main__ nor this package, with torch, is imported again, and
            # what judges comes from where it is installed (-E, -P), not from PYTHONPATH or the current folder. Not -I:
            # a user's own site-packages may be where that is
            options = ["-E", "-P", "-X", "utf8"]
            self._process = subprocess.Popen(
                [sys.executable, *options, str(Path(__file__).with_name("worker.py")), str(self._memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # an interrupt from the keyboard is not for it
                env=_environment(),
            )
            reply, late = self._exchange("", _START_TIMEOUT)
            if reply != "ready":
                self.end()
                errors.seek(0)
                why = "in time" if late else f"and wrote: {errors.read()[-500:]}"
                hint = ". Install it for this Python: PYTHONPATH is not for judges" * ("ModuleNotFoundError" in why)
                raise RuntimeError(f"a process that judges answers did not start {why.rstrip()}{hint}")

    def _exchange(self, request: str, timeout: float) -> tuple[str, bool]:
        """The reply, empty if the process dies, and whether it was killed for the time it took."""
        process, lock, state = self._process, threading.Lock(), {"answered": False, "late": False}

        def expire() -> None:
            with lock:
                if not state["answered"]:
                    state["late"] = True
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
            with lock:
                state["answered"] = True
            timer.cancel()
        return reply, state["late"]


def _kill(process: subprocess.Popen[str]) -> None:
    """With its children: it leads a group of its own."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _environment() -> dict[str, str]:
    """Of a worker: nothing that has Python load other code."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("PYTHON")}
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _default_size() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(8, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


@cache
def default_pool() -> JudgePool:
    """The pool of this process."""
    return JudgePool()


if hasattr(os, "register_at_fork"):  # a forked child must not write to its parent's workers
    os.register_at_fork(after_in_child=default_pool.cache_clear)
