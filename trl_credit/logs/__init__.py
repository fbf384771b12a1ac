"""Rollout logs: what the loss saw, one JSONL shard per logged step. Reads and writes them without torch."""

from .schema import FOLDER, SCHEMA, VERSION, Shard, read_shard, remove_after, shard_path, steps, write_shard
from .texts import TokenTexts


__all__ = [
    "FOLDER",
    "SCHEMA",
    "VERSION",
    "Shard",
    "TokenTexts",
    "read_shard",
    "remove_after",
    "shard_path",
    "steps",
    "write_shard",
]
