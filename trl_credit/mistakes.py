"""Mistakes in one line: what is wrong, by the name that the user gave it, and the fix. Needs no torch."""

import argparse
import difflib
import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn


DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors and torch.save say it in words alone
_DISK_FULL_WORDS = re.compile(
    r"No space left|File too large|[Dd]isk quota exceeded|PytorchStreamWriter failed|os error (28|27|122)\b"
)


def one_line(error: BaseException | str) -> str:
    """What an exception says, on one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def fail(message: BaseException | str, *, code: int) -> NoReturn:
    """Ends the script with one line and an exit code: 2 where the input was wrong, 1 where the run went wrong.

    Raises:
        SystemExit: always.
    """
    print(f"error: {one_line(message)}", file=sys.stderr)
    raise SystemExit(code) from None


def did_you_mean(word: Any, choices: Iterable[str]) -> str:
    """`": did you mean 's_trace'?"`, or nothing where no choice comes close. To be put behind what was wrong."""
    meant = closest(word, choices)
    return f": did you mean {meant!r}?" if meant is not None else ""


def closest(word: Any, choices: Iterable[str], *, key: Callable[[str], str] = str) -> str | None:
    """The choice whose `key` is most like a word, whatever its case and punctuation; `None` where none comes close."""
    by_key = {_key(key(choice)): choice for choice in map(str, choices)}
    close = difflib.get_close_matches(_key(str(word)), by_key, n=1, cutoff=0.6)
    return by_key[close[0]] if close else None


def choose(word: Any, choices: Iterable[str]) -> str:
    """`did_you_mean`, or all choices where none comes close."""
    known = list(map(str, choices))
    return did_you_mean(word, known) or f": choose one of {', '.join(known)}"


def _key(word: str) -> str:
    return re.sub(r"[\W_]", "", word).lower() or word


def disk_full(error: BaseException) -> bool:
    """Whether an exception, or what it came from, says that there is no room on the disk."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if isinstance(at, OSError) and at.errno in DISK_FULL:
            return True
        if not isinstance(at, OSError) and _DISK_FULL_WORDS.search(str(at)):
            return True
        seen.add(id(at))
        at = at.__cause__ or at.__context__
    return False


class OneLineParser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, in place of its usage, and takes no abbreviations.

    Where argparse would print its usage and exit, `parse_args` and `parse_known_args` raise `ValueError`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "exit_on_error": False, **kwargs})
        # argparse takes -1e-3 for a flag before Python 3.14
        self._negative_number_matcher = re.compile(r"-(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?$|-(inf|nan)$")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            raise ValueError(explain_flag(error, list(sys.argv[1:] if args is None else args))) from None

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:
        parsed, rest = self.parse_known_args(args, namespace)
        if rest:
            raise ValueError(unknown_argument(rest[0], self.flags()))
        return parsed

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}: --help lists the flags")

    def flags(self) -> list[str]:
        """Every flag that there is, in its first spelling."""
        return [action.option_strings[0] for action in self._actions if action.option_strings]


def unknown_argument(word: str, flags: Iterable[str]) -> str:
    """What is wrong with a word of a command line that nothing took."""
    flag = word.partition("=")[0]
    if not word.startswith("-"):
        return f"{word!r} stands behind no flag: write --name before it, --help lists them"
    flags = list(flags)
    positive = "--" + flag.replace("-", "_").removeprefix("__no_")
    if flag.replace("-", "_").startswith("__no_") and positive in flags:
        return f"unknown flag {flag!r}: it is {positive} false"
    return f"unknown flag {flag!r}{did_you_mean(flag, flags) or ': --help lists them'}"


_WANTED = {"int": "a whole number", "float": "a number", "string_to_bool": "true or false", "bool": "true or false"}


def explain_flag(error: argparse.ArgumentError, argv: list[str]) -> str:
    """argparse's words on a flag, in ours: the flag as it was written, what is wrong, and the fix."""
    names = (error.argument_name or "").split("/")
    given = [word.partition("=")[0] for word in argv]
    flag = next((name for name in names if name in given), names[0])
    message = error.message
    if message.startswith("expected "):  # one argument, at least one argument
        return f"{flag} has no value: write one behind it"
    if found := re.fullmatch(r"invalid (\w+) value: (.*)", message, re.DOTALL):
        return f"{flag} must be {_WANTED.get(found[1], 'a value of type ' + found[1])}, got {found[2]}"
    if found := re.fullmatch(r"Truthy value expected: got (.*) but expected one of.*", message, re.DOTALL):
        return f"{flag} must be true or false, got {found[1]!r}"
    if found := re.fullmatch(r"invalid choice: (.*) \(choose from (.*)\)", message, re.DOTALL):
        choices = [choice.strip().strip("'") for choice in found[2].split(",")]
        return f"{flag} has no choice {found[1]}{choose(found[1], choices)}"
    if message.startswith("ignored explicit argument"):
        return f"{flag} takes no value: leave out what stands behind it"
    return f"{flag}: {message}"


def written(argv: Iterable[str]) -> dict[str, str]:
    """The flags of a command line as they were typed, by the names of their fields."""
    flags = [word.partition("=")[0] for word in argv if word.startswith("--")]
    return {flag[2:].replace("-", "_"): flag for flag in flags}


def with_choice(message: str) -> str:
    """A message that ends in `must be one of 'a', 'b', got 'c'`, with the choice that comes close."""
    if found := re.search(r"(?:must be|not) one of (.*), got '([^']*)'\.?$", message):
        return message.rstrip(".") + did_you_mean(found[2], re.findall(r"'([^']*)'", found[1]))
    return message


def as_written(message: str, fields: Iterable[str], argv: list[str], files: Mapping[str, str]) -> str:
    """`message` with the settings that it names as the user wrote them: `--beta`, or `beta in my.yaml`.

    Args:
        message (`str`):
            Of an error that names settings by their fields.
        fields (iterable of `str`):
            Names of all fields.
        argv (`list[str]`):
            The command line.
        files (mapping of `str` to `str`):
            In which file a field was set.
    """
    typed = written(argv)
    said: set[str] = set()

    def put(found: re.Match[str]) -> str:
        name, value = found[2], found[3] or ""
        spoken = found.start() > 0 or message[found.end() :].startswith(" function")
        if name.isalpha() and not value and spoken:  # "beta" is a field, and in most sentences it is a word
            return found[0]
        if name in files and name not in typed:
            first = name not in said and not message[found.end() :].startswith(" in ")
            said.add(name)
            return found[1] + name + value + (f" in {files[name]}" if first else "") + found[4]
        return found[1] + typed.get(name, f"--{name}") + value + found[4]

    names = "|".join(sorted(map(re.escape, fields), key=len, reverse=True))
    pattern = rf"(?<![\w\-./'\"])(`?)({names})(=(?:'[^']*'|[\w.+\-]+\b|\[[^\]]*\]|\([^)]*\)))?(`?)(?![\w/'\"]|\.\w|-\w)"
    return re.sub(pattern, put, message)


def check_output_dir(path: str | Path, *, name: str = "output_dir") -> None:
    """Tries whether a run can write to its folder, and leaves nothing behind. `name` is that of the setting.

    Raises:
        ValueError: it is a file, lies below one, cannot be written to, or the disk is full.
    """
    folder = Path(path)
    there = folder
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        kind = "a link to nowhere" if there.is_symlink() and not there.exists() else "a file"
        what = "is" if there == folder else f"lies below {str(there)!r}, which is"
        raise ValueError(f"{name}={str(folder)!r} {what} {kind}: name a folder")
    probe = there / f".trl_credit_{os.getpid()}"
    try:
        try:
            with probe.open("xb") as file:
                file.write(bytes(4096))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        if disk_full(error):
            raise ValueError(f"{name}={str(folder)!r} is on a full disk: make room, or name another") from error
        reason = error.strerror or one_line(error)
        raise ValueError(f"{name}={str(folder)!r} cannot be written to ({reason}): name another folder") from error
