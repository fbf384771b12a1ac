"""What identifies the data of a run: all rows of a data set, the first ones of a stream."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from accelerate.logging import get_logger
from datasets import Dataset, IterableDataset

from ..support.digests import json_text, short_digest


logger = get_logger(__name__)

FIRST_ROWS = 16  # of a stream
DECODED = ("Image(", "Audio(", "Video(", "Pdf(")  # columns that are decoded when they are read


def data_identity(dataset: Any, *, first_rows: list[Any]) -> dict[str, Any]:
    """Name → JSON value. Independent of how a data set is stored, and of its format and its transform.

    Args:
        dataset:
            A data set, or a stream.
        first_rows (`list`):
            Of a stream: what [`read_first_rows`] gave.
    """
    if not isinstance(dataset, Dataset):
        # the columns of a generator are unknown
        return {"columns": sorted(getattr(dataset, "column_names", None) or {}), "first_rows": short_digest(first_rows)}
    kinds = {name: repr(feature) for name, feature in sorted(dataset.features.items())}
    media = [name for name, kind in kinds.items() if any(decoded in kind for decoded in DECODED)]
    digest = hashlib.sha256()
    # as Arrow nothing is decoded, and no transform runs
    for table in dataset.with_format("arrow").select_columns([name for name in kinds if name not in media]).iter(1000):
        digest.update(json_text(table.to_pydict()).encode())
    return {"rows": len(dataset), "columns": list(kinds), "content": digest.hexdigest()[:16]}


def read_first_rows(stream: IterableDataset, *, count: int, seed: int) -> list[Any]:
    """The first rows of a stream, which training reads from its start once more.

    A stream that can be read only once loses these rows, and a warning says so.

    Args:
        count (`int`):
            At most as many rows as training needs for its first step, so that a slow stream delays a run little.
        seed (`int`):
            For transforms that draw random numbers. The generators are left as they were.
    """
    with random_numbers(seed):
        rows = list(islice(stream, count))
    text = json_text(rows[:1])  # before anything changes the row
    with random_numbers(seed):
        again = json_text(list(islice(stream, 1)))
    if again != text:
        message = "a stream gives other rows when it is read again: if it can be read only once, %d rows are lost"
        logger.warning(message, len(rows) + 1)
    return rows


@contextmanager
def random_numbers(seed: int) -> Iterator[None]:
    """Seeds the generators of Python, NumPy and torch on the CPU, and restores them afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
