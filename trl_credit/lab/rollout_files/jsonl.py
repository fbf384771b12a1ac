"""JSONL rows with prompt, completion and reward, and with columns per token where they are known."""

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...observe.schema import Shard, parse_json
from ...support.files import write_atomically


def is_number(x: Any, low: float, high: float) -> bool:
    return type(x) in (int, float) and low <= x <= high and abs(x) <= sys.float_info.max


# fields of a JSONL row with one entry per token: what an entry is, in words and as a check
_PER_TOKEN = {
    **dict.fromkeys(
        ("logprobs", "trainer_logprobs", "old_logprobs", "inference_logprobs"),
        ("log-probabilities, finite and at most 0", lambda x: x is None or is_number(x, -math.inf, 1e-6)),
    ),
    "entropy": ("entropies in nats, finite and at least 0", lambda x: is_number(x, -1e-6, math.inf)),
    **dict.fromkeys(
        ("credit", "advantages"), ("finite numbers", lambda x: x is None or is_number(x, -math.inf, math.inf))
    ),
    "token_ids": ("token ids", lambda x: type(x) is int and x >= 0),
    "tokens": ("texts", lambda x: isinstance(x, str)),
    **dict.fromkeys(("loss_mask", "policy_mask", "is_clipped"), ("0 and 1", lambda x: type(x) is int and x in (0, 1))),
}


def lines_of(path: str | Path) -> Iterator[tuple[str, str]]:
    """The lines of a text file that are not empty, each with its place, "rollouts.jsonl:3".

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8 text.
    """
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if "\ufffd" in line:
                raise ValueError(f"{path}:{number} is not UTF-8 text: convert the file")
            if line.strip():
                yield line, f"{path}:{number}"


def read_jsonl(path: str | Path) -> Shard:
    """Reads rows as docs/explain.md describes them. Rows with the same prompt are a group.

    Raises:
        OSError: the file cannot be read.
        ValueError: a row is malformed; the message names file and line.
    """
    responses: list[dict[str, Any]] = []
    groups: dict[str, int] = {}
    sizes: Counter[int] = Counter()
    for line, where in lines_of(path):
        response = _row(line, where)
        group = groups.setdefault(json.dumps(response["prompt"], sort_keys=True), len(groups))
        responses.append({**response, "group": group, "index": sizes[group]})
        sizes[group] += 1
    note = ""
    if all(response.get("credit") is None for response in responses):
        for response in responses:
            if (advantages := response.get("advantages")) is not None:
                note = "Credit is the advantage of each token: the file holds no credit."
                response["credit"] = [advantage or 0.0 for advantage in advantages]
    return Shard({"step": None, "algorithm": "", "run": Path(path).name, "note": note}, {}, responses)


def write_jsonl(path: str | Path, responses: Sequence[dict[str, Any]]) -> None:
    """Writes responses as rows that [`read_jsonl`] reads, in place of an older file. Raises OSError."""
    rows = ({name: x for name, x in response.items() if name not in ("group", "index")} for response in responses)
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows))


def _row(line: str, where: str) -> dict[str, Any]:
    row = parse_json(line, where=where)
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not a JSON object with prompt, completion and reward")
    if missing := [name for name in ("prompt", "completion", "reward") if name not in row]:
        raise ValueError(f"{where} has no {missing[0]!r}: every row needs prompt, completion and reward")
    for name in ("prompt", "completion"):
        if not isinstance(row[name], (str, list)):
            raise ValueError(f"{where}: {name} must be a text or a list of messages")
        if isinstance(row[name], list) and not all(isinstance(message, dict) for message in row[name]):
            raise ValueError(f"{where}: {name} must be a text or a list of messages with role and content")
    if row["reward"] is not None and not is_number(row["reward"], -math.inf, math.inf):
        raise ValueError(f"{where}: reward must be a finite number or null, got {row['reward']!r:.40}")
    opening = row.get("prompt_token_ids") or []
    if not isinstance(opening, list) or not all(map(_PER_TOKEN["token_ids"][1], opening)):
        raise ValueError(f"{where}: prompt_token_ids must be a list of token ids")
    found = {name: value for name, value in row.items() if name not in _PER_TOKEN}
    lengths = {}
    for name, (words, is_valid) in _PER_TOKEN.items():
        values = row.get(name)
        if values is None:
            continue
        if not isinstance(values, list):
            raise ValueError(f"{where}: {name} must be a list with one entry per token")
        if (place := next((i for i, x in enumerate(values) if not is_valid(x)), None)) is not None:
            raise ValueError(f"{where}: {name} must hold {words}, got {values[place]!r:.40} at {place}")
        lengths[name], found["trainer_logprobs" if name == "logprobs" else name] = len(values), values
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{where}: {', '.join(f'{name} has {n} entries' for name, n in lengths.items())}")
    found.setdefault("old_logprobs", found.get("trainer_logprobs"))
    return found
