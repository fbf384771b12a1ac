"""Files of samples: JSONL with a header, then one line per problem with all its responses."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...support.files import check_size, inside, refuse_link, write_atomically
from .models import is_model, model_identity


VERSION = 1
# fields of the header that may change without changing the samples
_FREE = ("metrics", "source", "reward")
_REQUIRED = ("model", "revision", "set", "protocol", "problems", "samples", "metrics")


class SampleFile:
    """A file that grows by whole chunks of problems and can be resumed after a kill.

    Args:
        path (`Path`):
            Path of the file.
        header (`dict`):
            What the samples depend on. `versions` of packages may differ if nothing is left to generate.
        chunk_size (`int`):
            Problems that are generated together. An incomplete chunk is dropped, so that an interrupted evaluation
            generates the rest in the same chunks as an uninterrupted one.

    Raises:
        ValueError: the file belongs to another model, set or protocol, or is damaged before its last line.
    """

    def __init__(self, path: Path, header: dict[str, Any], *, chunk_size: int) -> None:
        self.path, self.header, self.chunk_size = path, {"version": VERSION, **header}, chunk_size
        self.lines: list[dict[str, Any]] = []
        self._is_clean = False
        found, lines = read_samples(path) if path.is_file() else (None, [])
        if found is None:  # no file, or one whose header is incomplete
            return
        complete = len(lines) >= header["problems"]
        self._check_header(found, ignored=(*_FREE, "versions") if complete else _FREE)
        self.lines = lines if complete else lines[: len(lines) // chunk_size * chunk_size]

    @property
    def is_complete(self) -> bool:
        """Whether all problems have their samples."""
        return len(self.lines) == self.header["problems"]

    def append(self, lines: list[dict[str, Any]]) -> None:
        """Writes a chunk at the end. The first call drops what an interruption left after the last whole chunk."""
        if self._is_clean:
            with open(refuse_link(self.path), "a", encoding="ascii") as file:
                file.write(_dump(lines))
        else:
            write_samples(self.path, self.header, [*self.lines, *lines])
            self._is_clean = True
        self.lines += lines

    def _check_header(self, found: dict[str, Any], *, ignored: Sequence[str]) -> None:
        ours = json.loads(json.dumps(self.header))
        for key in sorted((ours.keys() | found.keys()) - set(ignored)):
            if ours.get(key) != found.get(key):
                can_rescore = key == "reward_source" and None not in (ours.get(key), found.get(key))
                hint = ", or judge them again with --rescore --reward" if can_rescore else ""
                raise ValueError(
                    f"{self.path} holds samples with {key} {found.get(key)!r}, and this run has {ours.get(key)!r}: "
                    f"give another --output_dir, or --overwrite{hint}"
                )


def holds_all(path: Path, header: dict[str, Any]) -> bool:
    """Whether a file has all samples that an evaluation with this header would generate, and no others."""
    try:
        return SampleFile(path, header, chunk_size=1).is_complete
    except ValueError:  # other samples, or damaged ones
        return False


def read_samples(path: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Header and lines of a file. An incomplete last line is dropped; an incomplete header is `None`.

    Raises:
        ValueError: another line is damaged, or the file is not a file of samples.
    """
    rows: list[dict[str, Any]] = []
    check_size(path)
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or (rows and not {"prompt", "reference", "samples"} <= row.keys()):
                raise ValueError("it has no `samples` with their `prompt` and `reference`")
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
    """Writes a file of samples, whole or not at all."""
    write_atomically(path, _dump([header, *lines]))


def _dump(rows: Iterable[dict[str, Any]]) -> str:
    # ASCII, because a lone surrogate in a model's output cannot be encoded
    return "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)


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


@dataclass(frozen=True)
class StoredSamples:
    """The samples of a finished file."""

    path: Path
    header: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def samples(self) -> int:
        """Samples per problem."""
        return self.header["samples"]

    @property
    def protocol(self) -> str:
        """The protocol's name, without the suffix of a changed one."""
        return self.header["protocol"].removesuffix(", changed")

    @property
    def label(self) -> str:
        """ "math500 (s_trace)"."""
        return f"{self.header['set']} ({self.header['protocol']})"


def read_stored(path: Path) -> StoredSamples:
    """A finished file of samples with a verdict on each of them.

    Raises:
        ValueError: the file is unfinished or damaged, or a verdict is neither true nor false.
    """
    header, lines = read_samples(path)
    missing = [key for key in _REQUIRED if header is not None and key not in header]
    if missing or any("id" not in line for line in lines):
        raise ValueError(f"{path} lacks {missing[0] if missing else 'the id of a problem'!r}: give --overwrite")
    if header is None or len(lines) < header["problems"]:
        raise ValueError(f"{path} is not finished: resume the evaluation that wrote it, or delete it")
    for line in lines:
        where = f"{path}, problem {line['id']!r}"
        for sample in line["samples"]:
            if not isinstance(sample.get("correct"), bool):
                verdict = f"the verdict {sample.get('correct')!r} is neither true nor false"
                raise ValueError(f"{where}: {verdict}: judge the samples again with --rescore --output_dir")
        if len(line["samples"]) != header["samples"]:
            raise ValueError(
                f"{where} has {len(line['samples'])} samples instead of {header['samples']}: give --overwrite"
            )
    return StoredSamples(path, header, lines)


def is_evaluation(word: str) -> bool:
    """Whether `word` is a folder with samples and without a model."""
    folder = Path(word)
    return folder.is_dir() and not is_model(folder) and bool(_find_files(folder))


def find_stored(word: str, output_dir: Path, revision: str | None) -> list[StoredSamples]:
    """All samples of a model or of an evaluation's folder, one file for each set and protocol.

    An evaluation's folder, or the folder of a run that contains `evaluation`, must hold samples of one model; else name
    its `samples/<model>`. The samples of a model are searched in `output_dir`, then in its own `evaluation`; they must
    belong to its present weights or commit.

    Raises:
        ValueError: there are no samples, or those of several models, or a file is unfinished or damaged.
        OSError: there is no such model.
    """
    if is_evaluation(word):
        paths = _find_files(Path(word))
        folders = sorted({path.parent for path in paths})
        if len(folders) > 1:
            raise ValueError(
                f"{word!r} holds samples of {len(folders)} models: name one of them, {' or '.join(map(str, folders))}"
            )
        return [read_stored(path) for path in paths]
    found: dict[tuple[str, str], StoredSamples] = {}
    for path, header, _ in _files_of(word, output_dir, revision):
        if (header["set"], header["protocol"]) not in found:
            found[header["set"], header["protocol"]] = read_stored(path)
    if not found:
        raise ValueError(f"there are no stored samples of {word!r} as it is now: give a --protocol to sample with")
    return list(found.values())


def _finished_sets(word: str, output_dir: Path, revision: str | None) -> set[tuple[str, str]]:
    """Set and protocol of each finished file of samples of a model, where `find_stored` searches.

    Raises:
        ValueError: a file is damaged.
        OSError: there is no such model.
    """
    files = _files_of(word, output_dir, revision)
    done = (header for _, header, lines in files if len(lines) >= header.get("problems", 1 << 62))
    return {(header["set"], header["protocol"]) for header in done}


def _files_of(
    word: str, output_dir: Path, revision: str | None
) -> Iterator[tuple[Path, dict[str, Any], list[dict[str, Any]]]]:
    """The files with samples of a model's present weights or commit, with header and lines."""
    identity = model_identity(word, revision)
    same = ("weights",) if identity["weights"] is not None else ("model", "revision")
    for path in (*sample_files(output_dir), *sample_files(Path(word) / "evaluation")):
        header, lines = read_samples(path)
        if header is not None and all(header.get(key) == identity[key] for key in same):
            yield path, header, lines


def has_stored(words: Sequence[str], output_dir: Path, revision: str | None = None) -> bool:
    """Whether several models can be compared without sampling: one is the folder of an evaluation, or each has
    finished samples of a set and protocol of the first.

    Raises:
        ValueError: a file is damaged.
        OSError: there is no such model.
    """
    if any(map(is_evaluation, words)):
        return True
    first, *others = (_finished_sets(word, output_dir, revision) for word in words)
    return all(first & other for other in others)


def _find_files(folder: Path) -> list[Path]:
    """The files in an evaluation's folder, in a run's folder, or in `samples/<model>` itself."""
    here = sorted(folder.glob("*.jsonl")) if folder.resolve().parent.name == "samples" else []
    return sample_files(folder) or sample_files(folder / "evaluation") or here
