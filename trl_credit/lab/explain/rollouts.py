"""Reads responses from a rollout log, or from any JSONL file with prompt, completion and reward."""

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ...observe.schema import SCHEMA, Shard, parse_json, read_shard, steps
from ..viewer.runs import read_run


def _is_number(x: Any, low: float, high: float) -> bool:
    return type(x) in (int, float) and low <= x <= high and abs(x) <= sys.float_info.max


# fields of a JSONL row with one entry per token: what an entry is, in words and as a check
_PER_TOKEN = {
    **dict.fromkeys(
        ("logprobs", "trainer_logprobs", "old_logprobs", "inference_logprobs"),
        ("log-probabilities, finite and at most 0", lambda x: x is None or _is_number(x, -math.inf, 1e-6)),
    ),
    "entropy": ("entropies in nats, finite and at least 0", lambda x: _is_number(x, -1e-6, math.inf)),
    "token_ids": ("token ids", lambda x: type(x) is int and x >= 0),
    "tokens": ("texts", lambda x: isinstance(x, str)),
    "loss_mask": ("0 and 1", lambda x: type(x) is int and x in (0, 1)),
}


def read_rollouts(source: str | Path, *, step: int | None = None) -> Shard:
    """Reads the responses of one logged step of a run, of a shard, or of another JSONL file.

    A row of another file has `prompt` and `completion` (texts, or lists of messages) and `reward`. It may have
    `logprobs` and `entropy` (nats), `tokens`, `token_ids`, `old_logprobs` and `loss_mask`, one entry per token, and
    `truncated`. Rows with the same prompt are a group. Other fields are kept for reward functions.

    Args:
        source (`str` or `Path`):
            Folder of a run with `log_credit`, or a file.
        step (`int`, *optional*):
            The step, for a folder. Defaults to the last logged step.

    Returns:
        [`Shard`]: at least one prompt has two responses.

    Raises:
        ValueError: the file is malformed, or nothing in it can be explained; the message names the file.
        OSError: the file cannot be read.
    """
    path = Path(source)
    if path.is_dir():
        last = [number for number, _ in steps(path)][-1:]
        shard = read_run(path, last if step is None else [step])[0][0]
    elif step is not None:
        raise ValueError(f"--step {step}: {path} is a file, which has no steps: give the folder of the run")
    else:
        with open(path, encoding="utf-8", errors="replace") as file:
            is_shard = SCHEMA in file.readline()
        shard = read_shard(path) if is_shard else _read_jsonl(path)
    if shard.trees or (shard.header.get("settings") or {}).get("rollouts") == "tree":
        raise ValueError(f"{path} holds rows of trees, which are parts of responses: look at them with trl-credit view")
    if all(response.get("reward") is None for response in shard.responses):
        raise ValueError(f"{path} has no reward, and advantages are computed from rewards")
    if max(Counter(response["group"] for response in shard.responses).values()) < 2:
        raise ValueError(f"{path} has no two responses to one prompt: advantages are computed within a group")
    return shard


def _read_jsonl(path: Path) -> Shard:
    responses: list[dict[str, Any]] = []
    groups: dict[str, int] = {}
    sizes: Counter[int] = Counter()
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            if "\ufffd" in line:
                raise ValueError(f"{path}:{number} is not UTF-8 text: convert the file")
            response = _row(line, f"{path}:{number}")
            group = groups.setdefault(json.dumps(response["prompt"], sort_keys=True), len(groups))
            responses.append({**response, "group": group, "index": sizes[group]})
            sizes[group] += 1
    return Shard({"step": None, "algorithm": "", "run": path.name}, {}, responses)


def _row(line: str, where: str) -> dict[str, Any]:
    row = parse_json(line, where=where)
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not a JSON object with prompt, completion and reward")
    if missing := [name for name in ("prompt", "completion", "reward") if name not in row]:
        raise ValueError(f"{where} has no {missing[0]!r}: every row needs prompt, completion and reward")
    for name in ("prompt", "completion"):
        if not isinstance(row[name], (str, list)):
            raise ValueError(f"{where}: {name} must be a text or a list of messages")
    if row["reward"] is not None and not _is_number(row["reward"], -math.inf, math.inf):
        raise ValueError(f"{where}: reward must be a finite number or null, got {row['reward']!r:.40}")
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
