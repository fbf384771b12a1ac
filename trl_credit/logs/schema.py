"""The shards of a rollout log, version 1: one JSONL file per logged step. docs/rollout_logs.md says what fields mean.

Completions are a policy's text, which nobody vouches for: nothing but JSON is read, and what is read is checked.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import write_whole


SCHEMA = "trl_credit.rollouts"
VERSION = 1
FOLDER = "credit_log"

# lists with one entry per token of the completion, by what stands in them
TOKEN_NUMBERS = (
    "advantages",
    "inference_logprobs",
    "old_logprobs",
    "trainer_logprobs",
    "ref_logprobs",
    "entropy",
    "log_weight",
    "credit",
    "kl_credit",
)
TOKEN_FLAGS = ("loss_mask", "policy_mask", "is_clipped", "selected")
TOKEN_COUNTS = ("token_ids", "segment_ids", "turn_ids")
TOKEN_LISTS = (*TOKEN_NUMBERS, *TOKEN_FLAGS, *TOKEN_COUNTS, "tokens")

# what a reader may rely on; every other field may be missing or null
_NEEDED = {
    "header": {"step": int, "algorithm": str},
    "tree": {"group": int, "nodes": list},
    "response": {"group": int, "index": int, "completion": str, "tokens": list},
}


@dataclass
class Shard:
    """One logged step.

    Attributes:
        header: Of the step and the run: step, algorithm, settings.
        trees: The nodes of each group's tree, parents first, by the group; empty without trees.
        responses: One dict per response (of trees: per row that was trained on).
    """

    header: dict[str, Any]
    trees: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    responses: list[dict[str, Any]] = field(default_factory=list)


def steps(run_folder: str | Path) -> list[tuple[int, Path]]:
    """The logged steps of a run and their shards, in order; empty where there is no log."""
    folder = Path(run_folder) / FOLDER
    found = ((re.fullmatch(r"step-(\d+)\.jsonl", path.name), path) for path in folder.glob("step-*.jsonl"))
    return sorted((int(match[1]), path) for match, path in found if match)


def shard_path(run_folder: str | Path, step: int) -> Path:
    """Where the shard of a step is."""
    return Path(run_folder) / FOLDER / f"step-{step:08d}.jsonl"


def remove_after(run_folder: str | Path, step: int) -> None:
    """Removes the shards of later steps than `step`, and what a run that broke off left half-written."""
    for found, path in steps(run_folder):
        if found > step:
            path.unlink(missing_ok=True)
    for path in (Path(run_folder) / FOLDER).glob("step-*.partial"):
        path.unlink(missing_ok=True)


def write_shard(path: str | Path, shard: Shard) -> None:
    """Writes a shard, whole or not at all, and makes its folder.

    Raises:
        OSError: the disk does not take it.
        TypeError: something in it is not JSON.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(line + "\n" for line in lines_of(shard)))


def lines_of(shard: Shard) -> Iterator[str]:
    """The lines of a shard's file. Numbers have 6 significant digits, and what is not finite is null."""
    yield _encoded({"kind": "header", **shard.header, "schema": SCHEMA, "version": VERSION})
    for group, nodes in shard.trees.items():
        yield _encoded({"kind": "tree", "group": group, "nodes": nodes})
    for response in shard.responses:
        yield _encoded({"kind": "response", **response})


def read_shard(path: str | Path) -> Shard:
    """Reads a shard.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is not a shard, is damaged, or is of a later version; the message names file and line.
    """
    shard: Shard | None = None
    with open(path, encoding="utf-8", errors="strict") as file:
        try:
            for number, line in enumerate(file, start=1):
                entry = _decoded(line, kinds=("tree", "response") if shard else ("header",), where=f"{path}:{number}")
                kind = entry.pop("kind")
                if shard is None:
                    shard = Shard(entry)
                elif kind == "tree":
                    shard.trees[entry["group"]] = entry["nodes"]
                else:
                    shard.responses.append(entry)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: it is no rollout log, or damaged ({error.reason}).") from error
    if shard is None:
        raise ValueError(f"{path} is empty: it is no rollout log.")
    return shard


def _decoded(line: str, *, kinds: tuple[str, ...], where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error}): it is no rollout log, or damaged.") from error
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if kind not in kinds:
        raise ValueError(f"{where} is not a line of kind {' or '.join(kinds)}: it is no rollout log, or damaged.")
    if kind == "header":
        if entry.get("schema") != SCHEMA:
            raise ValueError(f"{where} names the schema {entry.get('schema')!r}, not {SCHEMA!r}: it is no rollout log.")
        if entry.get("version") != VERSION:
            raise ValueError(
                f"{where} is of version {entry.get('version')!r} of the schema, and this trl-credit reads {VERSION}: "
                "install the trl-credit that wrote it."
            )
    for name, wanted in _NEEDED[kind].items():
        if not isinstance(entry.get(name), wanted) or isinstance(entry[name], bool):
            raise ValueError(f"{where} has no {name} (a {wanted.__name__}): the file is damaged.")
    if kind == "response":
        _check_lists(entry, where)
    if kind == "tree" and not all(_is_node(node, place) for place, node in enumerate(entry["nodes"])):
        raise ValueError(f"{where} has a node without a parent before it: the file is damaged.")
    return entry


def _check_lists(entry: dict[str, Any], where: str) -> None:
    length = len(entry["tokens"])
    for name in TOKEN_LISTS:
        values = entry.get(name)
        if values is None:
            continue
        if not isinstance(values, list) or len(values) != length:
            raise ValueError(f"{where} has not one entry per token in {name}: the file is damaged.")
        kinds = (str,) if name == "tokens" else (int, float, type(None)) if name in TOKEN_NUMBERS else (int,)
        if not set(map(type, values)) <= set(kinds):
            raise ValueError(f"{where} has something else than {kinds[0].__name__} in {name}: the file is damaged.")


def _is_node(node: object, place: int) -> bool:
    if not isinstance(node, dict) or node.get("id") != place:
        return False
    parent = node.get("parent")
    return parent is None if place == 0 else type(parent) is int and 0 <= parent < place


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _encoded(entry: dict[str, Any]) -> str:
    parts = (f"{json.dumps(name)}: {_value(name, value)}" for name, value in entry.items())
    # half a character, which JSON may hold and UTF-8 may not, becomes a question mark
    return ("{" + ", ".join(parts) + "}").encode("utf-8", "replace").decode("utf-8")


def _value(name: str, value: Any) -> str:
    if name in TOKEN_NUMBERS and value is not None:
        return numbers(value)
    if name in TOKEN_LISTS:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def numbers(values: Iterable[float | None]) -> str:
    """A JSON list of numbers of 6 significant digits, `null` for what is unknown or not finite."""
    values = tuple(values)
    if None not in values and math.isfinite(math.fsum(map(abs, values))):
        return "[" + (("%.6g, " * len(values)) % values).removesuffix(", ") + "]"
    return "[" + ", ".join("null" if x is None or not math.isfinite(x) else f"{x:.6g}" for x in values) + "]"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)) and not all(type(one) in (int, str) for one in value):
        return [_finite(one) for one in value]
    return value
