"""Rows of a set as they come, from the Hub, a file or a folder."""

import logging
from pathlib import Path

import pandas
from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError

from .sets import SETS


logger = logging.getLogger(__name__)
FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow", ".csv": "csv"}


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


def read_path(path: Path, split: str) -> Dataset:
    if path.is_file():
        return _read_file(str(path))
    try:
        data = load_from_disk(str(path))
    except FileNotFoundError as error:
        raise ValueError(f"{str(path)!r} is not a folder of save_to_disk") from error
    if isinstance(data, DatasetDict):
        if split not in data:
            raise ValueError(f"{str(path)!r} has no split {split!r}, but {', '.join(data)}: check --dataset_split")
        data = data[split]
    return data


def _read_file(name: str) -> Dataset:
    kind = FILE_FORMATS[Path(name).suffix.lower()]
    if Path(name).stat().st_size == 0:
        raise ValueError(f"{name!r} has no rows")
    try:
        if kind == "csv":  # as text: 12 beside an empty cell would become 12.0, and the answer "None" no answer
            table = pandas.read_csv(name, dtype=str, keep_default_na=False)
            return Dataset.from_pandas(table, preserve_index=False)
        return load_dataset(kind, data_files=name, split="train")
    except (DatasetGenerationError, ValueError) as error:  # a damaged Parquet file is pyarrow's ValueError
        raise ValueError(f"{name!r} cannot be read as {kind}: {error.__cause__ or error}") from error


def load_other(name: str, *, revision: str | None, split: str | None, config: str | None) -> Dataset:
    """A file, or any set of the Hub."""
    if Path(name).suffix.lower() in FILE_FORMATS:
        if not Path(name).is_file():
            raise ValueError(f"there is no file {name!r}: check --dataset_name")
        if revision is not None or config is not None or split not in (None, "train"):
            raise ValueError(f"{name!r} is a file: leave out --dataset_revision, --dataset_config and --dataset_split")
        data = _read_file(name)
    elif Path(name).exists():
        raise ValueError(f"{name!r} is not a {', '.join(FILE_FORMATS)} file: give --dataset_name one, or a Hub name")
    elif "/" not in name:  # sets of the Hub have an owner
        raise ValueError(
            f"there is no set {name!r}: give --dataset_name one of {', '.join(SETS)}, a file, or owner/name of the Hub"
        )
    else:
        try:
            data = load_dataset(name, config, split=split or "train", revision=revision)
        except ConnectionError as error:
            raise ConnectionError(f"--dataset_name {name!r} cannot be loaded from the Hub: {error}") from error
    if isinstance(data, DatasetDict) or len(data) == 0:
        raise ValueError(f"{name!r} has no rows")
    return data
