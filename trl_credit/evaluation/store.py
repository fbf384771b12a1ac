"""The samples of one model on one set, as JSONL: a header, then a line per problem with all its responses."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


VERSION = 1
# these may change without the samples becoming others
_FREE = ("metrics", "source", "reward")


class SampleFile:
    """A file that grows by whole chunks of problems and can be gone on with after a kill.

    Args:
        path (`Path`):
            Of the file.
        header (`dict`):
            What the samples depend on. `versions` of packages may differ where nothing is left to generate.
        chunk_size (`int`):
            Problems that are generated together. After an interruption a chunk that is not whole is left out, so that
            the rest is generated in the same chunks as without one.

    Raises:
        ValueError: the file is of another model, set or protocol, or damaged before its last line.
    """

    def __init__(self, path: Path, header: dict[str, Any], *, chunk_size: int) -> None:
        self.path, self.header = path, {"version": VERSION, **header}
        self.lines: list[dict[str, Any]] = []
        self._clean = False
        if not path.is_file():
            return
        found, lines = read_samples(path)
        if found is None:  # killed within the header
            return
        if len(lines) < self.header["problems"]:
            lines = lines[: len(lines) // chunk_size * chunk_size]
        self._compare(found, complete=len(lines) == self.header["problems"])
        self.lines = lines

    def append(self, lines: list[dict[str, Any]]) -> None:
        """Writes a chunk at the end. The first call cuts off what an interruption left behind the last whole chunk."""
        if self._clean:
            with open(self.path, "a", encoding="ascii") as file:
                file.write(_dump(lines))
        else:
            write_samples(self.path, self.header, [*self.lines, *lines])
            self._clean = True
        self.lines += lines

    def _compare(self, found: dict[str, Any], *, complete: bool) -> None:
        free = (*_FREE, "versions") if complete else _FREE
        ours = json.loads(json.dumps(self.header))
        for key in sorted(set(ours) | set(found)):
            if key not in free and ours.get(key) != found.get(key):
                judged = key == "reward_source" and ours.get(key) is not None and found.get(key) is not None
                again = ", or judge them anew by --rescore --reward" if judged else ""
                raise ValueError(
                    f"{self.path} holds samples with {key} {found.get(key)!r}, and this run has {ours.get(key)!r}: "
                    f"give another --output_dir, or --overwrite{again}"
                )


def holds_all(path: Path, header: dict[str, Any]) -> bool:
    """Whether a file has all samples that a run with this header would make, and no others."""
    try:
        return len(SampleFile(path, header, chunk_size=1).lines) == header["problems"]
    except ValueError:  # others, or damaged: they are made anew
        return False


def read_samples(path: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Header and lines of a file; a last line that a kill tore is left out, and so is a torn header (`None`).

    Raises:
        ValueError: another line is damaged, or the file is none of ours.
    """
    rows = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or (rows and not {"reference", "samples"} <= row.keys()):
                raise ValueError("it has no `samples` with their `reference`")
            rows.append(row)
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # no newline follows
                break
            raise ValueError(f"line {number} of {path} is damaged ({error}): give --overwrite") from error
    if not rows:
        return None, []
    if rows[0].get("version") != VERSION or "set" not in rows[0]:
        raise ValueError(f"{path} is not a file of samples of this version: give another --output_dir, or --overwrite")
    return rows[0], rows[1:]


def write_samples(path: Path, header: dict[str, Any], lines: Iterable[dict[str, Any]]) -> None:
    """Writes a file of samples anew, whole or not at all."""
    write_atomically(path, _dump([header, *lines]))


def write_atomically(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _dump(rows: Iterable[dict[str, Any]]) -> str:
    # ASCII: a lone surrogate in a model's output becomes an escape, which cannot be encoded otherwise
    return "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)


def file_name(*parts: str) -> str:
    """One file name for names that may hold slashes; one that is long ends in a hash."""
    plain = ("".join(c if c.isalnum() or c in "._-" else "_" for c in part).strip("._") or "_" for part in parts)
    name = "-".join(plain)
    return name if len(name) <= 100 else f"{name[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
