"""Where the rows of a set come from: the Hub, a file or a folder."""

import logging
import re
from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetsError

from ..support.errors import check_data_dir, choose, closest
from .readers import DAMAGED, FILE_FORMATS, Records, read_file
from .sets import SETS


logger = logging.getLogger(__name__)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_SUFFIXES = ", ".join(FILE_FORMATS)


def load_known(name: str, split: str, *, revision: str | None, data_dir: str | None) -> tuple[Dataset | Records, str]:
    """The rows of a split of a known set, and where they are from: a repository, or a path in `data_dir`."""
    if data_dir is not None:
        path = _find_file(name, split, data_dir)
        return (read_file(str(path)) if path.is_file() else _read_folder(path, split)), str(path)
    known = SETS[name]
    revision = revision or known.revision
    if revision is None:
        logger.warning("%s (%s) is not pinned: set --dataset_revision to a commit to repeat this run", name, known.repo)
    where = known.splits[split]
    files = ", ".join(f"{stem}.jsonl" for stem in _stems(name, split))
    hint = f": set --data_dir to a folder with one of {files} (or another of {_SUFFIXES})"
    data = _from_hub(repr(name), known.repo, where.config, split=where.hub, revision=revision, hint=hint)
    if known.copies:
        first = {index: i for i, index in reversed(list(enumerate(data.flatten()["extra_info.index"])))}
        data = data.select(sorted(first.values()))
    return data, known.repo


def load_other(name: str, *, revision: str | None, split: str | None, config: str | None) -> Dataset | Records:
    """The rows of a file, or of any set of the Hub."""
    path = Path(name)
    is_data_file = path.suffix.lower() in FILE_FORMATS
    if path.is_file():
        if not is_data_file:
            raise ValueError(f"{name!r} is not a {_SUFFIXES} file: give --dataset_name one, or a Hub name")
        if revision is not None or config is not None or split not in (None, "train"):
            raise ValueError(f"{name!r} is a file: leave out --dataset_revision, --dataset_config and --dataset_split")
        return read_file(name)
    if path.is_dir():
        inside = ", ".join(_data_files(path)[:5]) or "none"
        files = f"a {_SUFFIXES} file (it has {inside}); --data_dir takes folders with sets that are known by name"
        raise ValueError(f"{name!r} is a folder: give --dataset_name {files}")
    if is_data_file or ("/" in name and not _HUB_NAME.fullmatch(name)):
        meant = closest(path.stem, _data_files(path.parent), key=lambda file: Path(file).stem)
        hint = "" if meant is None else f" (did you mean {str(path.parent / meant)!r}?)"
        raise ValueError(f"there is no file {name!r}{hint}: check --dataset_name")
    if "/" not in name:  # sets of the Hub have an owner
        other = "(--dataset_name also takes a file, or owner/name of the Hub)"
        raise ValueError(f"there is no set {name!r}{choose(name, SETS)} {other}")
    data = _from_hub(f"--dataset_name {name!r}", name, config, split=split or "train", revision=revision)
    if isinstance(data, DatasetDict) or len(data) == 0:
        raise ValueError(f"{name!r} has no rows")
    return data


def _from_hub(what: str, repo: str, config: str | None, *, split: str, revision: str | None, hint: str = "") -> Dataset:
    try:
        return load_dataset(repo, config, split=split, revision=revision)
    except ConnectionError as error:
        raise ConnectionError(f"{what} cannot be loaded from the Hub ({error}){hint}") from error
    except (ValueError, OSError, DatasetsError) as error:
        raise ValueError(f"{what} cannot be loaded from the Hub: {error.__cause__ or error}") from error


def _stems(name: str, split: str) -> list[str]:
    """What a file of a split may be called: gsm8k_test, and gsm8k for the default split."""
    known = SETS[name]
    default = [name] if split == next(iter(known.splits)) else []
    return [*default, f"{name}_{split}", *known.splits[split].files]


def _find_file(name: str, split: str, data_dir: str) -> Path:
    check_data_dir(data_dir)
    stems = _stems(name, split)
    found = [path for stem in stems for suffix in FILE_FORMATS if (path := Path(data_dir, stem + suffix)).is_file()]
    found += [path for stem in dict.fromkeys([*stems, name]) if (path := Path(data_dir, stem)).is_dir()]
    if not found:
        needed = f"it needs one of {', '.join(stems)} as {_SUFFIXES} or as a folder of save_to_disk"
        raise ValueError(
            f"there is no {name!r} in {data_dir!r}: {needed}. Leave out --data_dir to load it from the Hub."
        )
    if len(found) > 1:
        raise ValueError(f"{name!r} is in {data_dir!r} more than once, keep one of {', '.join(p.name for p in found)}")
    return found[0]


def _read_folder(path: Path, split: str) -> Dataset:
    try:
        data = load_from_disk(str(path))
    except DAMAGED as error:
        raise ValueError(f"{str(path)!r} cannot be read as a folder of save_to_disk: {error}") from error
    if not isinstance(data, DatasetDict):
        return data
    if split not in data:
        raise ValueError(f"{str(path)!r} has no --dataset_split {split!r}{choose(split, data)}")
    return data[split]


def _data_files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(file.name for file in folder.iterdir() if file.suffix.lower() in FILE_FORMATS)
