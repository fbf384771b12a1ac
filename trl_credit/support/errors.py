"""Errors in one line: what is wrong, by the name that the user gave it, and the fix. Imports no torch."""

import difflib
import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors and torch.save raise errors without an errno
_DISK_FULL_WORDS = re.compile(
    r"No space left|File too large|[Dd]isk quota exceeded|PytorchStreamWriter failed|os error (28|27|122)\b"
)


def one_line(error: BaseException | str) -> str:
    """The message of an exception on one line, or the name of its type if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__


class SeveralErrors(ValueError, TypeError):
    """Errors in the input that are raised together: a message with a line each."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        super().__init__("\n".join(self.lines))


def lines_of(error: BaseException | str) -> list[str]:
    """The message of an exception: one line, or a line for each of several errors; and a line for each of its notes."""
    lines = error.lines if isinstance(error, SeveralErrors) else [one_line(error)]
    return [*lines, *getattr(error, "__notes__", ())]


@contextmanager
def collected(errors: list[Exception], *kinds: type[Exception]) -> Iterator[None]:
    """Context manager that ends at an exception of these kinds, and appends it to `errors`."""
    try:
        yield
    except kinds as error:
        errors.append(error)


def together(errors: Sequence[Exception]) -> Exception:
    """A single error as it is, and several as [`SeveralErrors`]."""
    lines = dict.fromkeys(line for error in errors for line in lines_of(error))
    return errors[0] if len(errors) == 1 else SeveralErrors(lines)


def raise_together(errors: Sequence[Exception]) -> None:
    """Raises all of the errors; none if there is none."""
    if errors:
        raise together(errors)


def fail(message: BaseException | str, *, code: int) -> NoReturn:
    """Ends the script with a line on standard error for each error, and an exit code: 2 for wrong input, 1 for a run
    that failed.

    Raises:
        SystemExit: always.
    """
    for line in lines_of(message):
        print(f"error: {line}", file=sys.stderr)
    raise SystemExit(code) from None


def did_you_mean(word: Any, choices: Iterable[str], *, cutoff: float = 0.6) -> str:
    """`": did you mean 's_trace'?"`, or `""` if no choice is close. The caller appends it to its message."""
    meant = closest(word, choices, cutoff=cutoff)
    return f": did you mean {meant!r}?" if meant is not None else ""


def closest(word: Any, choices: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The choice that is closest to a word, ignoring case and punctuation; `None` if no choice is close, where `cutoff`
    is the least similarity: 1 for the same letters."""
    by_spelling = {spelling(str(choice)): str(choice) for choice in choices}
    close = difflib.get_close_matches(spelling(str(word)), by_spelling, n=1, cutoff=cutoff)
    return by_spelling[close[0]] if close else None


def choose(word: Any, choices: Iterable[str]) -> str:
    """`did_you_mean`, or a list of all choices if none is close."""
    known = list(map(str, choices))
    return did_you_mean(word, known) or f": choose one of {', '.join(known)}"


def spelling(word: str) -> str:
    """A word without case and punctuation: "strace" of "s_trace" and of "S-trace"."""
    return re.sub(r"[\W_]", "", word).lower() or word


def disk_full(error: BaseException | None) -> bool:
    """Whether an exception, or one that caused it, reports a full disk."""
    while error is not None:
        if error.errno in _DISK_FULL if isinstance(error, OSError) else _DISK_FULL_WORDS.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def check_data_dir(path: str | None) -> None:
    """Checks that the folder of `--data_dir` exists, if one was given. Raises `ValueError`."""
    if path is not None and not Path(path).is_dir():
        raise ValueError(f"there is no folder {path!r}: check --data_dir")


def check_output_dir(path: str | Path, *, name: str = "output_dir") -> None:
    """Checks that a run can write to its folder, and leaves nothing there. `name` is the name of the setting.

    Raises:
        ValueError: the path is a file, lies below one, cannot be written to, or is on a full disk.
    """
    folder = Path(path)
    existing = next(filter(os.path.lexists, (folder, *folder.parents)), folder)
    try:
        with TemporaryFile(dir=existing, prefix=".trl_credit_") as file:
            file.write(bytes(4096))
    except OSError as error:
        what = f"{name}={str(folder)!r} cannot be written to"
        reason = f"{str(existing)!r}: {error.strerror or one_line(error)}"
        raise ValueError(f"{what} ({reason}): make room, or name another folder") from error
