"""Files of responses that are not shards of a rollout log: JSONL rows. Imports no torch."""

from pathlib import Path

from ...observe.schema import SCHEMA, Shard, read_shard
from ...support.files import check_size
from .jsonl import read_jsonl


__all__ = ["read_file"]


def read_file(path: str | Path) -> Shard:
    """Reads a shard of a rollout log, or JSONL rows, by what the first line holds.

    A header of JSONL rows has `note`, a sentence on what the page shows or "". Their responses may lack any column.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is malformed; the message names file and line.
    """
    check_size(path)
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        first = next((line for line in file if line.strip()), "")
    return read_shard(path) if SCHEMA in first else read_jsonl(path)
