"""JSONL rows with prompt, completion and reward, and with columns per token where they are known. Imports no torch."""

import json
from pathlib import Path
from typing import Any

from ..observe.schema import LOGPROBS, SCHEMA, TOKEN_TYPES, Shard, parse_json, read_shard
from ..observe.token_texts import TokenTexts
from ..support.files import check_size


_HEADER = {"step": (int,), "algorithm": (str,), "model": (str,), "note": (str,), "temperature": (float, int)}
_LARGEST = 0.01  # log-probability: a sum in bfloat16 may end a little above 0
_REQUIRED = {"prompt": (str, list), "completion": (str, list), "reward": (float, int, type(None))}


def read_file(path: str | Path) -> Shard:
    """Reads a shard of a rollout log, or JSONL rows as docs/explain.md describes them, by what the first line holds.

    Rows with the same `group`, or without one the same prompt, are a group. A header of JSONL rows has `note`, a
    sentence on what the page shows or "".

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is malformed; the message names file and line.
    """
    check_size(path)
    lines = Path(path).read_text(encoding="utf-8-sig", errors="replace").split("\n")
    if SCHEMA in lines[0]:
        return read_shard(path)
    header: dict[str, Any] = {"step": None, "algorithm": "", "run": Path(path).name, "note": ""}
    responses: list[dict[str, Any]] = []
    groups: dict[str, list[int]] = {}
    for line, where in ((line, f"{path}:{i}") for i, line in enumerate(lines, start=1) if line.strip()):
        row = parse_json(line, where=where)
        if isinstance(row, dict) and row.keys() == {"header"} and not responses:
            facts = row["header"]
            if not isinstance(facts, dict) or any(type(x) not in _HEADER.get(n, ()) for n, x in facts.items()):
                raise ValueError(f"{where}: header can hold {', '.join(_HEADER)}, got {facts!r:.80}")
            header |= facts
            continue
        _check(row, where)
        key = json.dumps({"group": row["group"]} if row.get("group") is not None else row["prompt"])
        places = groups.setdefault(key, [len(groups), 0])
        responses.append({**row, "group": places[0], "index": places[1]})
        places[1] += 1
    note = header["note"]
    if all(response.get("credit") is None for response in responses):
        for response in [response for response in responses if response.get("advantages") is not None]:
            response["credit"] = [advantage or 0.0 for advantage in response["advantages"]]
            header["note"] = f"Credit is the advantage of each token: the file holds no credit. {note}".strip()
    return Shard(header, {}, responses)


def with_texts(shard: Shard, model: str) -> Shard:
    """The shard with `tokens` in the responses that have `token_ids` without them.

    Args:
        shard (`Shard`):
            Responses.
        model (`str`):
            Folder or id of a model with the tokenizer.

    Raises:
        ValueError: there is no such tokenizer, or a token id is not one of its ids.
    """
    from transformers import AutoTokenizer  # imports torch

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ValueError(f"--tokenizer {model!r}: {error}") from error
    texts, responses = TokenTexts(tokenizer), []
    for response in shard.responses:
        if response.get("token_ids") and response.get("tokens") is None:
            if (largest := max(response["token_ids"])) >= len(tokenizer):
                what = f"response {response['index']} of prompt {response['group']}: token id {largest}"
                raise ValueError(f"{what} is not one of {len(tokenizer):,}: is it another model's tokenizer?")
            response = {**response, "tokens": texts.of(response["token_ids"])}
        responses.append(response)
    return Shard(shard.header, shard.trees, responses)


def _check(row: Any, where: str) -> None:
    """Checks the required fields of a row, and that its columns per token have known types and the same length; their
    names become those of a rollout log."""
    if not isinstance(row, dict) or {"traces", "task"} <= row.keys():
        fix = "convert a file of verifiers with the script that `trl-credit example verifiers_rollouts` copies"
        raise ValueError(f"{where} is not a JSON object with prompt, completion and reward: {fix}")
    for name, kinds in _REQUIRED.items():
        if name not in row or type(row[name]) not in kinds:
            expected = "a number or null" if name == "reward" else "a text or a list of messages"
            raise ValueError(f"{where}: {name} must be {expected}, got {row.get(name)!r:.40}")
    if "logprobs" in row:
        row["trainer_logprobs"] = row.pop("logprobs")
    columns = {name: row[name] for name in TOKEN_TYPES if row.get(name) is not None}
    for name, values in columns.items():
        if not isinstance(values, list) or not set(map(type, values)) <= set(TOKEN_TYPES[name]):
            raise ValueError(f"{where}: {name} must be a list with a {TOKEN_TYPES[name][0].__name__} for each token")
        if name in LOGPROBS and (positive := [x for x in values if x is not None and x > _LARGEST]):
            raise ValueError(f"{where}: {name} must be at most 0, got {positive[0]}")
    if len({len(values) for values in columns.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(values)} entries" for name, values in columns.items())
        raise ValueError(f"{where}: {lengths}")
    row.setdefault("old_logprobs", row.get("trainer_logprobs"))
