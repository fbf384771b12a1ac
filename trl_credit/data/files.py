"""Rows of a set as they come, from the Hub, a file or a folder."""

import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow
from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetsError
from pyarrow.parquet import ParquetFile

from ..mistakes import closest
from .records import Records, read_records
from .sets import SETS


logger = logging.getLogger(__name__)
FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow", ".csv": "csv"}
# what pyarrow and datasets raise of a file or folder with anything in it
_DAMAGED = (ValueError, OSError, KeyError, TypeError, AttributeError, NotImplementedError, MemoryError)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def from_hub(name: str, split: str, revision: str | None) -> Dataset:
    known = SETS[name]
    revision = revision or known.revision
    if revision is None:
        logger.warning("%s (%s) is not pinned: set --dataset_revision to a commit to repeat this run", name, known.repo)
    where = known.splits[split]
    try:
        data = load_dataset(known.repo, where.config, split=where.hub, revision=revision)
    except ConnectionError as error:
        files = ", ".join(f"{stem}.jsonl" for stem in _stems(name, split))
        raise ConnectionError(
            f"{name!r} cannot be loaded from the Hub ({error}): set --data_dir to a folder with one of {files} (or "
            f"{', '.join(suffix for suffix in FILE_FORMATS if suffix != '.jsonl')})"
        ) from error
    except (ValueError, OSError, DatasetsError) as error:
        raise ValueError(f"{name!r} cannot be loaded from the Hub: {error.__cause__ or error}") from error
    if known.copies:
        first: dict[str, int] = {}
        for i, index in enumerate(data.flatten()["extra_info.index"]):
            first.setdefault(index, i)
        data = data.select(first.values())
    return data


def _stems(name: str, split: str) -> list[str]:
    """What a file of a split may be called: gsm8k_test, or for the default split gsm8k too."""
    known = SETS[name]
    default = [name] if split == next(iter(known.splits)) else []
    return [*default, f"{name}_{split}", *known.splits[split].files]


def find_file(name: str, split: str, data_dir: str) -> Path:
    if not Path(data_dir).is_dir():
        raise ValueError(f"there is no folder {data_dir!r}: check --data_dir")
    stems = _stems(name, split)
    paths = [Path(data_dir, stem + suffix) for stem in stems for suffix in FILE_FORMATS]
    found = [path for path in paths if path.is_file()]
    found += [path for stem in dict.fromkeys([*stems, name]) if (path := Path(data_dir, stem)).is_dir()]
    if not found:
        raise ValueError(
            f"there is no {name!r} in {data_dir!r}: it needs one of {', '.join(stems)} as {', '.join(FILE_FORMATS)} or "
            "as a folder of save_to_disk. Leave out --data_dir to load it from the Hub."
        )
    if len(found) > 1:
        raise ValueError(f"{name!r} is in {data_dir!r} more than once, keep one of {', '.join(p.name for p in found)}")
    return found[0]


def read_path(path: Path, split: str) -> Dataset | Records:
    if path.is_file():
        return read_file(str(path))
    try:
        data = load_from_disk(str(path))
    except FileNotFoundError as error:
        raise ValueError(f"{str(path)!r} is not a folder of save_to_disk") from error
    except _DAMAGED as error:
        raise ValueError(f"{str(path)!r} cannot be read as a folder of save_to_disk: {error}") from error
    if isinstance(data, DatasetDict):
        if split not in data:
            raise ValueError(
                f"{str(path)!r} has no split {split!r}{did_you_mean(split, data)}, but {', '.join(data)}: check "
                "--dataset_split"
            )
        data = data[split]
    return data


def read_file(name: str) -> Dataset | Records:
    """This file and no other: names are no patterns, and there is no cache.

    Raises:
        ValueError: it has no rows or cannot be read; the message names the file.
        OSError: it cannot be opened.
    """
    kind = FILE_FORMATS[Path(name).suffix.lower()]
    if kind in ("parquet", "arrow"):
        with open(name, "rb"):  # what cannot be opened is an OSError that says so, and not a damaged file
            pass
        try:
            table = _read_parquet(name) if kind == "parquet" else _read_arrow(name)
            table.validate(full=True)  # offsets that point elsewhere would end the process
            if twice := next((column for column in table.column_names if table.column_names.count(column) > 1), None):
                raise ValueError(f"two columns are called {twice!r}: rename one")
            data = Dataset(table)
        except _DAMAGED as error:
            raise ValueError(f"{name!r} cannot be read as {kind}: {error}") from error
    else:
        data = read_records(name)
    if len(data) == 0:
        raise ValueError(f"{name!r} has no rows")
    return data


def _read_parquet(name: str) -> pyarrow.Table:
    with open(name, "rb") as file:
        return ParquetFile(file).read()


def _read_arrow(name: str) -> pyarrow.Table:
    """As `datasets` writes it, or as Arrow's own files are."""
    file = pyarrow.memory_map(name)
    try:
        return pyarrow.ipc.open_stream(file).read_all()
    except pyarrow.ArrowInvalid:
        file.seek(0)
        return pyarrow.ipc.open_file(file).read_all()


def load_other(name: str, *, revision: str | None, split: str | None, config: str | None) -> Dataset | Records:
    """A file, or any set of the Hub."""
    path = Path(name)
    if path.is_file():
        if path.suffix.lower() not in FILE_FORMATS:
            raise ValueError(
                f"{name!r} is not a {', '.join(FILE_FORMATS)} file: give --dataset_name one, or a Hub name"
            )
        if revision is not None or config is not None or split not in (None, "train"):
            raise ValueError(f"{name!r} is a file: leave out --dataset_revision, --dataset_config and --dataset_split")
        return read_file(name)
    if path.is_dir():
        inside = sorted(file.name for file in path.iterdir() if file.suffix.lower() in FILE_FORMATS)
        files = f", of which it has {', '.join(inside[:5])}" if inside else ""
        raise ValueError(
            f"{name!r} is a folder: give --dataset_name a {', '.join(FILE_FORMATS)} file{files}; --data_dir is for "
            "folders with the sets that are known by name"
        )
    if path.suffix.lower() in FILE_FORMATS or ("/" in name and not _HUB_NAME.fullmatch(name)):
        files = path.parent.iterdir() if path.parent.is_dir() else ()
        beside = [str(file) for file in files if file.suffix.lower() in FILE_FORMATS]
        hint = did_you_mean(path.stem, beside, key=lambda file: Path(file).stem)
        raise ValueError(f"there is no file {name!r}{hint}: check --dataset_name")
    if "/" not in name:  # sets of the Hub have an owner
        raise ValueError(
            f"there is no set {name!r}{did_you_mean(name, SETS)}: give --dataset_name one of {', '.join(SETS)}, a "
            "file, or owner/name of the Hub"
        )
    try:
        data = load_dataset(name, config, split=split or "train", revision=revision)
    except ConnectionError as error:
        raise ConnectionError(f"--dataset_name {name!r} cannot be loaded from the Hub: {error}") from error
    except (ValueError, OSError, DatasetsError) as error:
        raise ValueError(
            f"--dataset_name {name!r} cannot be loaded from the Hub: {error.__cause__ or error}"
        ) from error
    if isinstance(data, DatasetDict) or len(data) == 0:
        raise ValueError(f"{name!r} has no rows")
    return data


def did_you_mean(word: str, known: Iterable[str], *, key: Callable[[str], str] = str) -> str:
    """What is most like a word that is not known, by its `key`: a question to put behind the word, or nothing."""
    meant = closest(word, known, key=key)
    return f" (did you mean {meant!r}?)" if meant is not None else ""
