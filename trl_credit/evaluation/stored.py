"""Stored samples of a model, found by what names it on a command line, and checked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .loading import identity, is_model
from .store import read_samples


_HEADER = ("model", "revision", "set", "protocol", "problems", "samples", "metrics")


@dataclass(frozen=True)
class Stored:
    """A finished file of samples."""

    path: Path
    header: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def samples(self) -> int:
        """Of each problem."""
        return self.header["samples"]

    @property
    def protocol(self) -> str:
        """Its name, without the word that some of it was changed."""
        return self.header["protocol"].removesuffix(", changed")


def read_stored(path: Path) -> Stored:
    """A file of samples, whole and with a verdict on every one.

    Raises:
        ValueError: it is unfinished or damaged, or a verdict is neither true nor false.
    """
    header, lines = read_samples(path)
    missing = [] if header is None else [key for key in _HEADER if key not in header]
    if missing or any("id" not in line for line in lines):
        raise ValueError(
            f"{path} lacks {missing[0] if missing else 'the id of a problem'!r}: evaluate with --overwrite"
        )
    if header is None or len(lines) < header["problems"]:
        raise ValueError(f"{path} is not finished: go on with the evaluation that wrote it, or delete it")
    for line in lines:
        bad = [s.get("correct") for s in line["samples"] if not isinstance(s.get("correct"), bool)]
        if bad:
            raise ValueError(
                f"{path}, problem {line.get('id')!r}: the verdict {bad[0]!r} is neither true nor false: judge the "
                "samples of that folder anew by --rescore --output_dir"
            )
        if len(line["samples"]) != header["samples"]:
            raise ValueError(
                f"{path}, problem {line.get('id')!r} has {len(line['samples'])} samples and should have "
                f"{header['samples']}: evaluate anew with --overwrite"
            )
    return Stored(path, header, lines)


def is_evaluation(word: str) -> bool:
    """Whether it is a folder with samples and without a model."""
    return Path(word).is_dir() and not is_model(Path(word)) and bool(_of_evaluation(Path(word)))


def find_stored(word: str, output_dir: Path, revision: str | None) -> list[Stored]:
    """All samples of what a word names, one file for each set and protocol.

    An evaluation's folder (or a run's, with `evaluation` in it) has to hold samples of one model, else its
    `samples/<model>` is to be named. A model's are looked for in `output_dir`, then in its own `evaluation`; they have
    to be of the same weights or commit.

    Raises:
        ValueError: there are none, or those of several models; or a file that is not finished or damaged.
        OSError: it names no model.
    """
    if is_evaluation(word):
        paths = _of_evaluation(Path(word))
        folders = sorted({path.parent for path in paths})
        if len(folders) > 1:
            raise ValueError(
                f"{word!r} holds samples of {len(folders)} models: name one of them, {' or '.join(map(str, folders))}"
            )
        return [read_stored(path) for path in paths]
    who = identity(word, revision)
    same = ("weights",) if who["weights"] is not None else ("model", "revision")
    found: dict[tuple[str, str], Stored] = {}
    for path in (*_files(output_dir), *_files(Path(word) / "evaluation")):
        header, _ = read_samples(path)
        if header is not None and all(header.get(key) == who[key] for key in same):
            found.setdefault((header["set"], header["protocol"]), read_stored(path))
    if not found:
        raise ValueError(f"there are no stored samples of {word!r} as it is now: give a --protocol, to make them")
    return list(found.values())


def chosen(stored: Iterable[Stored], sets: Sequence[str] | None, protocols: Sequence[str] | None) -> list[Stored]:
    """Those of the sets and protocols asked for."""
    return [
        one
        for one in stored
        if (sets is None or one.header["set"] in sets) and (protocols is None or one.protocol in protocols)
    ]


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "samples").glob("*/*.jsonl"))


def _of_evaluation(folder: Path) -> list[Path]:
    """The samples in an evaluation's folder, in a run's, or in `samples/<model>` itself."""
    own = sorted(folder.glob("*.jsonl")) if folder.resolve().parent.name == "samples" else []
    return _files(folder) or _files(folder / "evaluation") or own
