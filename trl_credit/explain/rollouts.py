"""Responses to be explained: from a rollout log, or from any JSONL file with prompt, completion and reward."""

import json
import math
from pathlib import Path
from typing import Any

from ..logs import Shard, read_shard, steps
from ..logs.schema import SCHEMA


# of a foreign row: what it may give by token, and the name that it has in a rollout log
_BY_TOKEN = {
    "logprobs": "trainer_logprobs",
    "trainer_logprobs": "trainer_logprobs",
    "old_logprobs": "old_logprobs",
    "inference_logprobs": "inference_logprobs",
    "entropy": "entropy",
    "token_ids": "token_ids",
    "tokens": "tokens",
    "loss_mask": "loss_mask",
}


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


_LOGPS = ("log-probabilities, finite and at most 0", lambda x: x is None or (_is_number(x) and -math.inf < x <= 1e-6))
# by the name in a rollout log: what an entry is, in words and as a test
_ENTRIES = {
    "trainer_logprobs": _LOGPS,
    "old_logprobs": _LOGPS,
    "inference_logprobs": _LOGPS,
    "entropy": ("entropies in nats, finite and at least 0", lambda x: _is_number(x) and -1e-6 <= x < math.inf),
    "token_ids": ("token ids", lambda x: type(x) is int and x >= 0),
    "tokens": ("texts", lambda x: isinstance(x, str)),
    "loss_mask": ("0 and 1", lambda x: type(x) is int and x in (0, 1)),
}


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def read_rollouts(source: str | Path, *, step: int | None = None) -> Shard:
    """Reads the responses of one step of a run, of a shard of its log, or of a JSONL file from elsewhere.

    A row from elsewhere has `prompt` and `completion` (texts, or lists of messages) and `reward`; it may have
    `logprobs` and `entropy` (nats), `tokens`, `token_ids`, `old_logprobs` and `loss_mask`, one entry per token, and
    `truncated`. Rows with the same prompt are a group. Other fields stay, and reach a reward function.

    Args:
        source (`str` or `Path`):
            Folder of a run with `log_credit`, or a file.
        step (`int`, *optional*):
            Of a folder; the last one that was logged by default.

    Returns:
        [`Shard`]: with at least two responses to a prompt.

    Raises:
        ValueError: there is nothing to explain; the message says why, with file and line.
        OSError: the file cannot be read.
    """
    path = Path(source)
    if path.is_dir():
        logged = dict(steps(path))
        if not logged:
            raise ValueError(f"{path} has no rollout log: train with --log_credit 10, or give a JSONL file.")
        if step is not None and step not in logged:
            raise ValueError(f"{path} has no log of step {step}: it has {_list(sorted(logged))}.")
        path = logged[max(logged) if step is None else step]
    elif step is not None:
        raise ValueError(f"--step {step}: {path} is a file, which has no steps: give the folder of the run.")
    shard = read_shard(path) if _is_shard(path) else _foreign(path)
    if shard.trees or (shard.header.get("settings") or {}).get("rollouts") == "tree":
        raise ValueError(f"{path} holds rows of trees, which are parts of responses: see them with trl-credit view.")
    if all(response.get("reward") is None for response in shard.responses):
        raise ValueError(f"{path} has no reward, from which advantages are made.")
    sizes: dict[int, int] = {}
    for response in shard.responses:
        sizes[response["group"]] = sizes.get(response["group"], 0) + 1
    if not sizes or max(sizes.values()) < 2:
        raise ValueError(f"{path} has no two responses to one prompt, and without a group there are no advantages.")
    return shard


def _list(values: list[int]) -> str:
    shown = [str(value) for value in values]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:4], "…", *shown[-3:]])


def _is_shard(path: Path) -> bool:
    with open(path, encoding="utf-8", errors="replace") as file:
        return SCHEMA in file.readline()


def _foreign(path: Path) -> Shard:
    responses: list[dict[str, Any]] = []
    groups: dict[str, int] = {}
    seen: dict[int, int] = {}
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            if "\ufffd" in line:
                raise ValueError(f"{path}:{number} is not UTF-8 text: convert the file.")
            response = _row(line, f"{path}:{number}")
            group = groups.setdefault(json.dumps(response["prompt"], sort_keys=True), len(groups))
            response |= {"group": group, "index": seen.get(group, 0)}
            seen[group] = seen.get(group, 0) + 1
            responses.append(response)
    return Shard({"step": 0, "algorithm": "", "run": path.name}, {}, responses)


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error}).") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where} is no JSON object with prompt, completion and reward.")
    if missing := [name for name in ("prompt", "completion", "reward") if name not in row]:
        raise ValueError(f"{where} has no {missing[0]!r}: every row needs prompt, completion and reward.")
    for name in ("prompt", "completion"):
        if not isinstance(row[name], (str, list)):
            raise ValueError(f"{where}: {name} must be a text or a list of messages.")
    reward = row["reward"]
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, (int, float))):
        raise ValueError(f"{where}: reward must be a number or null, got {reward!r}.")
    if reward is not None and not math.isfinite(reward):
        raise ValueError(f"{where}: reward must be finite.")
    found = {name: value for name, value in row.items() if name not in _BY_TOKEN}
    lengths = {}
    for name, logged in _BY_TOKEN.items():
        values = row.get(name)
        if values is None:
            continue
        if not isinstance(values, list):
            raise ValueError(f"{where}: {name} must be a list with one entry per token.")
        words, holds = _ENTRIES[logged]
        if (place := next((i for i, x in enumerate(values) if not holds(x)), None)) is not None:
            raise ValueError(f"{where}: {name} must hold {words}, got {values[place]!r:.40} at {place}.")
        lengths[name], found[logged] = len(values), values
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{where}: {', '.join(f'{name} has {n} entries' for name, n in lengths.items())}.")
    found.setdefault("old_logprobs", found.get("trainer_logprobs"))
    return found
