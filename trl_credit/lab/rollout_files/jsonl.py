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


# what the first line may say of all rows, `{"header": {…}}`
_HEADER = {
    "step": lambda x: type(x) is int and x >= 0,
    **dict.fromkeys(("algorithm", "model", "note"), lambda x: isinstance(x, str)),
    "temperature": lambda x: is_number(x, 0.0, math.inf),
}

# fields of a JSONL row with one entry per token: what an entry is, in words and as a check. A sum over a vocabulary in
# bfloat16 may end a little on the wrong side of 0
_PER_TOKEN = {
    **dict.fromkeys(
        ("logprobs", "trainer_logprobs", "old_logprobs", "inference_logprobs", "ref_logprobs"),
        ("log-probabilities, finite and at most 0", lambda x: x is None or is_number(x, -math.inf, 0.01)),
    ),
    "entropy": ("entropies in nats, finite and at least 0", lambda x: x is None or is_number(x, -0.01, math.inf)),
    **dict.fromkeys(
        ("credit", "advantages"), ("finite numbers", lambda x: x is None or is_number(x, -math.inf, math.inf))
    ),
    "token_ids": ("token ids", lambda x: type(x) is int and x >= 0),
    "turn_ids": ("numbers of turns, -1 outside of them", lambda x: type(x) is int and x >= -1),
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
    """Reads rows as docs/explain.md describes them. Rows with the same `group`, or without one the same prompt, are a
    group.

    Raises:
        OSError: the file cannot be read.
        ValueError: a row is malformed; the message names file and line.
    """
    responses: list[dict[str, Any]] = []
    groups: dict[str, int] = {}
    sizes: Counter[int] = Counter()
    header: dict[str, Any] = {"step": None, "algorithm": "", "run": Path(path).name, "note": ""}
    for line, where in lines_of(path):
        row = parse_json(line, where=where)
        if isinstance(row, dict) and row.keys() == {"header"} and not responses:
            facts = row["header"]
            if not isinstance(facts, dict) or not all(n in _HEADER and _HEADER[n](x) for n, x in facts.items()):
                words = "a step ≥ 0, a temperature ≥ 0, and texts algorithm, model and note"
                raise ValueError(f"{where}: header can hold {words}, got {facts!r:.80}")
            header |= facts
            continue
        response = _row(row, where)
        key = response["prompt"] if response.get("group") is None else {"group": response["group"]}
        group = groups.setdefault(json.dumps(key, sort_keys=True), len(groups))
        responses.append({**response, "group": group, "index": sizes[group]})
        sizes[group] += 1
    note = header["note"]
    if all(response.get("credit") is None for response in responses):
        for response in responses:
            if (advantages := response.get("advantages")) is not None:
                header["note"] = f"Credit is the advantage of each token: the file holds no credit. {note}".strip()
                response["credit"] = [advantage or 0.0 for advantage in advantages]
    return Shard(header, {}, responses)


def write_jsonl(path: str | Path, responses: Sequence[dict[str, Any]]) -> None:
    """Writes responses as rows that [`read_jsonl`] reads, in place of an older file. Raises OSError."""
    rows = ({name: x for name, x in response.items() if name not in ("group", "index")} for response in responses)
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows))


def _row(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not a JSON object with prompt, completion and reward")
    if {"traces", "task"} <= row.keys():
        fix = "convert the file with the script that `trl-credit example verifiers_rollouts` copies"
        raise ValueError(f"{where} is an episode of verifiers: {fix}")
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
    entropies = found.get("entropy") or []
    if any(x is None and m for x, m in zip(entropies, found.get("loss_mask") or [1] * len(entropies), strict=False)):
        raise ValueError(f"{where}: entropy may be null only where loss_mask is 0")
    found.setdefault("old_logprobs", found.get("trainer_logprobs"))
    return found
