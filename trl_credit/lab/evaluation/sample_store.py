"""Files of samples: JSONL with a header, then one line per problem with all its responses."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...support.files import check_size, inside, write_atomically
from .samplers import is_model


Line = dict[str, Any]  # of a file of samples
VERSION = 1
# fields of the header that may change without changing the samples
_FREE = ("metrics", "source", "reward")
_REQUIRED = {"model", "revision", "set", "protocol", "problems", "samples", "metrics"}


@dataclass
class SampleFile:
    """The samples of one model on one set under one protocol.

    Attributes:
        path: The file.
        header: What the samples depend on, and how they are scored.
        lines: One per problem that has samples.
    """

    path: Path
    header: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether all problems have their samples."""
        return len(self.lines) >= self.header["problems"]

    @property
    def protocol(self) -> str:
        """The protocol's name, without the suffix of a changed one."""
        return self.header["protocol"].removesuffix(", changed")

    @property
    def label(self) -> str:
        """The set and its protocol: "math500 (s_trace)"."""
        return f"{self.header['set']} ({self.header['protocol']})"

    def write(self) -> None:
        """Writes the file, whole or not at all."""
        # ASCII, because a lone surrogate in a model's output cannot be encoded
        rows = (json.dumps(row, ensure_ascii=True) + "\n" for row in [self.header, *self.lines])
        write_atomically(self.path, "".join(rows))


def open_samples(path: Path, header: dict[str, Any]) -> SampleFile:
    """The file for the samples of this header, with those that it has.

    `versions` of packages may differ if nothing is left to generate.

    Raises:
        ValueError: the file belongs to another model, set or protocol, or is damaged.
    """
    file = SampleFile(path, {"version": VERSION, **header})
    if not path.is_file():
        return file
    stored = read_samples(path)
    ours, theirs = json.loads(json.dumps(file.header)), stored.header
    for key in sorted((ours.keys() | theirs.keys()) - {*_FREE, *(["versions"] if stored.is_complete else [])}):
        if ours.get(key) != theirs.get(key):
            hint = ", or judge them again with --rescore --reward" if key == "reward_source" else ""
            what = f"{path} holds samples with {key} {theirs.get(key)!r}, and this run has {ours.get(key)!r}"
            raise ValueError(f"{what}: give another --output_dir, or --overwrite{hint}")
    return replace(file, lines=stored.lines)


def read_samples(path: Path) -> SampleFile:
    """A file of samples, which may be unfinished.

    Raises:
        ValueError: a line is damaged, or the file is not a file of samples.
    """
    rows: list[dict[str, Any]] = []
    check_size(path)
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or (rows and not {"id", "prompt", "reference", "samples"} <= row.keys()):
                raise ValueError("it has no `samples` with their `id`, `prompt` and `reference`")
            rows.append(row)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} of {path} is damaged ({error}): give --overwrite") from error
    if not rows or rows[0].get("version") != VERSION or not rows[0].keys() >= _REQUIRED:
        raise ValueError(f"{path} is not a file of samples of this version: give another --output_dir, or --overwrite")
    return SampleFile(path, rows[0], rows[1:])


def file_name(*parts: str) -> str:
    """One file name for names that may contain slashes. A long one ends in a hash."""
    plain = ("".join(c if c.isalnum() or c in "._-" else "_" for c in part).strip("._") or "_" for part in parts)
    name = "-".join(plain)
    return name if len(name) <= 100 else f"{name[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def sample_path(folder: Path, model: str, set_name: str, label: str) -> Path:
    """`samples/<model>/<set>-<protocol>.jsonl`. Raises `OSError` if one of the folders is a link."""
    return inside(folder, "samples", file_name(model)) / f"{file_name(set_name, label)}.jsonl"


def sample_files(folder: Path) -> list[Path]:
    """All files of samples in an evaluation's folder."""
    return sorted((folder / "samples").glob("*/*.jsonl"))


def is_evaluation(word: str) -> bool:
    """Whether `word` is a folder with samples and without a model."""
    return not is_model(Path(word)) and bool(_files_of(Path(word)))


def read_evaluation(word: str, sets: Sequence[str] | None, protocols: Sequence[str] | None) -> list[SampleFile]:
    """The samples in an evaluation's folder, in the folder of a run that contains it, or in `samples/<model>`, of the
    given labels of sets and names of protocols; `None` for all.

    Raises:
        ValueError: there are samples of several models, or a file is unfinished or damaged.
    """
    paths = _files_of(Path(word))
    folders = sorted({str(path.parent) for path in paths})
    if len(folders) > 1:
        raise ValueError(f"{word!r} holds samples of {len(folders)} models: name one of them, {' or '.join(folders)}")
    files = [read_stored(path) for path in paths]
    files = [file for file in files if sets is None or file.header["set"] in sets]
    return [file for file in files if protocols is None or file.protocol in protocols]


def read_stored(path: Path) -> SampleFile:
    """A finished file of samples with a verdict on each of them.

    Raises:
        ValueError: the file is unfinished or damaged, or a verdict is neither true nor false.
    """
    file = read_samples(path)
    if not file.is_complete:
        raise ValueError(f"{path} is not finished: resume the evaluation that wrote it, or delete it")
    count = file.header["samples"]
    for line in file.lines:
        verdicts = [sample.get("correct") for sample in line["samples"]]
        if len(verdicts) != count or not all(isinstance(verdict, bool) for verdict in verdicts):
            what = f"{path}, problem {line['id']!r} has not {count} samples with a verdict of true or false"
            raise ValueError(f"{what}: judge them again with --rescore, or give --overwrite")
    return file


def _files_of(folder: Path) -> list[Path]:
    here = sorted(folder.glob("*.jsonl")) if folder.resolve().parent.name == "samples" else []
    return sample_files(folder) or sample_files(folder / "evaluation") or here
