"""What is shown is not needed: a failure to show it is reported once, and ends nothing. Imports no torch."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO

from .errors import one_line


logger = logging.getLogger(__name__)

reported: set[str] = set()  # what this run has reported


def report(what: str, why: str | BaseException) -> None:
    """Warns that something is not shown, once for each `what` of a run."""
    if what not in reported:
        reported.add(what)
        logger.warning("%s: %s. The run goes on", what, described(why).rstrip("."))


def described(why: str | BaseException) -> str:
    """A text, or the type and the start of the message of an exception."""
    return why if isinstance(why, str) else f"{type(why).__name__}: {one_line(why)[:300]}"


@contextmanager
def shown(what: str) -> Iterator[None]:
    """Context manager, or decorator, of what only shows something. Its errors are reported, and raised no further.
    Interrupts and `SystemExit` are."""
    try:
        yield
    except Exception as error:  # of any kind, from any library: what is shown is not needed
        report(what, error)


@contextmanager
def safe_console(*, raises: bool = False) -> Iterator[None]:
    """Context manager, or decorator, in which no print to standard output or standard error fails, also none of a
    library or a user.

    Characters that the encoding lacks become `?`. If a stream cannot be written to (a closed pipe, a full disk), all
    that follows there is lost, and the other stream says so. With `raises`, such an error is raised.
    """
    out, err = (x if isinstance(x, _Stream) else _Stream(x or _nowhere(), raises) for x in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            out.flush()  # an error of Python's own flush at its exit could not be caught
            err.flush()


class _Stream:
    """A stream of text with the writes of [`safe_console`]. All else is the stream's own."""

    def __init__(self, stream: TextIO, raises: bool) -> None:
        self._stream, self._raises = stream, raises

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"  # an object of the user's may lack it
        self._try(self._stream.write, text.encode(encoding, "replace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, call: Callable, *args: str) -> None:
        try:
            call(*args)
        except (OSError, ValueError) as error:  # ValueError: the program has closed it
            lost, self._stream = self._stream, _nowhere()
            with suppress(OSError, ValueError, AttributeError):  # it has no descriptor, as in a notebook
                os.dup2(self._stream.fileno(), lost.fileno())  # also for what waits in its buffer
            if self._raises:
                raise
            name, other = ("error", sys.stdout) if self is sys.stderr else ("output", sys.stderr)
            what = f"warning: standard {name}: {one_line(error)}"
            print(f"{what}. What is printed there is lost, and the run goes on", file=other, flush=True)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")
