"""Files of responses that are not shards of a rollout log: JSONL rows. Imports no torch."""

from .jsonl import read_file, with_texts, write_jsonl


__all__ = ["read_file", "with_texts", "write_jsonl"]
