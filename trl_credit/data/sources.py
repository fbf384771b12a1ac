"""Where the rows of a set come from: the Hub, a file or a folder."""

import logging
import re
from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetsError

from ..support.errors import check_data_dir, choose
from .readers import DAMAGED, FILE_FORMATS, read_file
from .sets import SETS


logger = logging.getLogger(__name__)
_SUFFIXES = ", ".join(FILE_FORMATS)


def load_known(name: str, split: str, *, revision: str | None, data_dir: str | None) -> tuple[Dataset, str]:
    """The rows of a split of a known set, and where they are from: a repository, or a path in `data_dir`."""
    if data_dir is not None:
        path = _find_file(name, split, data_dir)
        return (read_file(str(path)) if path.is_file() else _read_folder(path, split)), str(path)
    known = SETS[name]
    if (revision := revision or known.revision) is None:
        logger.warning("%s (%s) is not pinned: set --dataset_revision to a commit to repeat this run", name, known.repo)
    where = known.splits[split]
    hint = f": set --data_dir to a folder with {' or '.join(_stems(name, split))} as {_SUFFIXES}"
    data = _from_hub(repr(name), known.repo, where.config, split=where.hub, revision=revision, hint=hint)
    if known.copies:
        first = {index: i for i, index in reversed(list(enumerate(data.flatten()["extra_info.index"])))}
        data = data.select(sorted(first.values()))
    return data, known.repo


def load_other(name: str, *, revision: str | None, split: str | None, config: str | None) -> Dataset:
    """The rows of a file, or of any set of the Hub."""
    path = Path(name)
    is_data_file = path.suffix.lower() in FILE_FORMATS
    if path.is_file() and is_data_file:
        if revision is not None or config is not None or split not in (None, "train"):
            raise ValueError(f"{name!r} is a file: leave out --dataset_revision, --dataset_config and --dataset_split")
        return read_file(name)
    if path.exists() or is_data_file or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name, re.ASCII):
        files = [file.name for file in path.parent.glob("*") if file.suffix.lower() in FILE_FORMATS]
        what = f"no {_SUFFIXES} file, no known set and no owner/name of the Hub"
        raise ValueError(f"--dataset_name {name!r} is {what}{choose(path.name, [*SETS, *files])}")
    return _from_hub(f"--dataset_name {name!r}", name, config, split=split or "train", revision=revision)


def _from_hub(what: str, repo: str, config: str | None, *, split: str, revision: str | None, hint: str = "") -> Dataset:
    try:
        return load_dataset(repo, config, split=split, revision=revision)
    except ConnectionError as error:
        raise ConnectionError(f"{what} cannot be loaded from the Hub ({error}){hint}") from error
    except (ValueError, OSError, DatasetsError) as error:
        raise ValueError(f"{what} cannot be loaded from the Hub: {error.__cause__ or error}") from error


def _stems(name: str, split: str) -> list[str]:
    """What a file of a split may be called: gsm8k_test, and gsm8k for the default split."""
    splits = SETS[name].splits
    return [*([name] if split == next(iter(splits)) else []), f"{name}_{split}", *splits[split].files]


def _find_file(name: str, split: str, data_dir: str) -> Path:
    check_data_dir(data_dir)
    stems = _stems(name, split)
    names = [stem + suffix for stem in stems for suffix in ("", *FILE_FORMATS)] + [name]
    paths = [path for file in dict.fromkeys(names) if (path := Path(data_dir, file)).exists()]
    if len(paths) > 1:
        raise ValueError(f"{name!r} is in {data_dir!r} more than once, keep one of {', '.join(p.name for p in paths)}")
    if not paths:
        needed = f"one of {', '.join(stems)} as {_SUFFIXES} or as a folder of save_to_disk"
        raise ValueError(f"there is no {name!r} in {data_dir!r}: add {needed}, or leave out --data_dir")
    return paths[0]


def _read_folder(path: Path, split: str) -> Dataset:
    try:
        data = load_from_disk(str(path))
        return data[split] if isinstance(data, DatasetDict) else data
    except DAMAGED as error:
        what = f"a folder of save_to_disk, split {split!r}"
        raise ValueError(f"{str(path)!r} cannot be read as {what}: {error}") from error
