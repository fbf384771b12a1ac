"""The shards of a rollout log, version 1: one JSONL file per logged step. docs/rollout_logs.md describes the fields.

Completions are text that a policy wrote, so nothing but JSON is read, and every field is checked.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..support.files import check_size, inside, write_atomically


SCHEMA = "trl_credit.rollouts"
VERSION = 1
FOLDER, PAGE = "credit_log", "view.html"  # in the folder of a run, and in that one

# columns: lists with one entry per token of the completion
LOGPROBS = ("trainer_logprobs", "old_logprobs", "inference_logprobs", "ref_logprobs", "teacher_logprobs")
TOKEN_NUMBERS = (*LOGPROBS, "advantages", "entropy", "log_weight", "credit", "kl_credit", "step_rewards")
TOKEN_INTEGERS = ("loss_mask", "policy_mask", "is_clipped", "selected", "token_ids", "segment_ids", "turn_ids")
TOKEN_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(TOKEN_NUMBERS, (float, int, type(None))),
    **dict.fromkeys(TOKEN_INTEGERS, (int,)),
    "tokens": (str,),
}

# the required fields of each kind of line; any other field may be missing or null
_REQUIRED = {
    "header": {"step": int, "algorithm": str},
    "tree": {"group": int, "nodes": list},
    "response": {"group": int, "index": int, "completion": str, "tokens": list},
}

ANSWER_COLUMNS = ("answer", "solution")  # of a row of the data set, the first that is not empty
MAX_ANSWER = 2000  # characters


@dataclass
class Shard:
    """One logged step.

    Attributes:
        header: Fields of the step and the run: step, algorithm, settings.
        trees: The nodes of each group's tree, parents first, by group; empty without trees.
        responses: One dict per response (with trees: per row of training).
    """

    header: dict[str, Any]
    trees: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    responses: list[dict[str, Any]] = field(default_factory=list)


def steps(run_folder: str | Path) -> list[tuple[int, Path]]:
    """The logged steps of a run with their shards, in order; empty without a log."""
    folder = Path(run_folder) / FOLDER
    matches = ((re.fullmatch(r"step-(\d+)\.jsonl", path.name), path) for path in folder.glob("step-*.jsonl"))
    return sorted((int(match[1]), path) for match, path in matches if match)


def shard_path(run_folder: str | Path, step: int) -> Path:
    """The path of a step's shard. Raises `OSError` if its folder is a link."""
    return inside(run_folder, FOLDER) / f"step-{step:08d}.jsonl"


def remove_after(run_folder: str | Path, step: int) -> None:
    """Removes the shards of steps after `step`, and the half-written files of interrupted runs."""
    folder = inside(run_folder, FOLDER)
    for logged_step, path in steps(run_folder):
        if logged_step > step:
            path.unlink(missing_ok=True)
            (path.parent / PAGE).unlink(missing_ok=True)  # it shows the removed steps
    for path in folder.glob("*step-*.partial"):
        path.unlink(missing_ok=True)


def gold_answer(row: Mapping[str, Any]) -> str | None:
    """The gold answer that a row of a data set or of a log holds, as text of at most `MAX_ANSWER` characters."""
    for name in ANSWER_COLUMNS:
        value = row.get(name)
        text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else "" if value is None else str(value)
        if text := text.strip():
            return text if len(text) <= MAX_ANSWER else f"{text[: MAX_ANSWER - 2]} …"
    return None


def prompt_text(prompt: str | list[dict[str, Any]] | None) -> str:
    """A prompt as text; messages with their roles."""
    if not isinstance(prompt, list):
        return str(prompt or "")
    return "\n\n".join(f"{message.get('role')}: {message.get('content') or ''}" for message in prompt)


def exact_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row of a data set that JSON holds exactly, in at most 10,000 characters each."""
    texts = {n: json.dumps(rounded(value), default=repr) for n, value in row.items()}
    # compared as text, since == fails for arrays
    return {n: row[n] for n, text in texts.items() if len(text) <= 10_000 and repr(json.loads(text)) == repr(row[n])}


def write_shard(path: str | Path, shard: Shard) -> None:
    """Writes a whole shard or nothing, and makes its folder.

    Raises:
        OSError: the file cannot be written.
        TypeError: a value cannot be written as JSON.
    """
    write_atomically(path, "".join(line + "\n" for line in lines_of(shard)))


def lines_of(shard: Shard) -> Iterator[str]:
    """The lines of a shard's file. Numbers have 6 significant digits; NaN and infinity become null."""
    yield _encoded({"kind": "header", **shard.header, "schema": SCHEMA, "version": VERSION})
    for group, nodes in shard.trees.items():
        yield _encoded({"kind": "tree", "group": group, "nodes": nodes})
    for response in shard.responses:
        yield _encoded({"kind": "response", **response})


def read_shard(path: str | Path) -> Shard:
    """Reads a shard.

    Raises:
        OSError: the file does not exist or cannot be read.
        ValueError: the file is not a shard, is damaged, or has a later version; the message names file and line.
    """
    shard: Shard | None = None
    check_size(path)
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            entry = _entry(line, kinds=("tree", "response") if shard else ("header",), where=f"{path}:{number}")
            kind = entry.pop("kind")
            if shard is None:
                shard = Shard(entry)
            elif kind == "tree":
                shard.trees[entry["group"]] = entry["nodes"]
            else:
                shard.responses.append(entry)
    if shard is None:
        raise ValueError(f"{path} is empty: it is not a rollout log")
    return shard


def parse_json(line: str, *, where: str) -> Any:
    """The value of one line of strict JSON, without NaN and infinity.

    Raises:
        ValueError: the line is not JSON; the message begins with `where`.
    """
    try:
        return json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error})") from error


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


def _entry(line: str, *, kinds: tuple[str, ...], where: str) -> dict[str, Any]:
    entry = parse_json(line, where=where)
    if (kind := entry.get("kind") if isinstance(entry, dict) else None) not in kinds:
        raise ValueError(f"{where} is not a line of kind {' or '.join(kinds)}: it is damaged or not a rollout log")
    written = f"schema {entry.get('schema')!r}, version {entry.get('version')!r}"
    if kind == "header" and written != (ours := f"schema {SCHEMA!r}, version {VERSION}"):
        raise ValueError(f"{where} has {written}, not {ours}: install the trl-credit that wrote it")
    damaged = [name for name, required in _REQUIRED[kind].items() if type(entry.get(name)) is not required]
    if kind == "tree" and not damaged:
        damaged = ["nodes"] * (not all(_is_node(node, place) for place, node in enumerate(entry["nodes"])))
    elif kind == "response" and not damaged:
        count = len(entry["tokens"])
        damaged = [name for name, types in TOKEN_TYPES.items() if not _is_column(entry.get(name), types, count)]
    if damaged:
        raise ValueError(f"{where}: {damaged[0]} is missing or not as a rollout log has it: the file is damaged")
    return entry


def _is_column(values: object, types: tuple[type, ...], count: int) -> bool:
    """Whether a column is left out, or has an entry of these types for each token."""
    return values is None or (isinstance(values, list) and [type(x) in types for x in values] == [True] * count)


def _is_node(node: object, place: int) -> bool:
    """Whether a node has its place as its id, and a parent before it."""
    if not isinstance(node, dict) or node.get("id") != place:
        return False
    parent = node.get("parent")
    return parent is None if place == 0 else type(parent) is int and 0 <= parent < place


def _encoded(entry: dict[str, Any]) -> str:
    # JSON may hold half of a surrogate pair and UTF-8 may not: it becomes a question mark
    return json.dumps(rounded(entry), ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")


def rounded(value: Any) -> Any:
    """A value for JSON: numbers with 6 significant digits, `None` for NaN and infinity, keys as text."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value] if {float, dict, list, tuple} & set(map(type, value)) else value
    return value
