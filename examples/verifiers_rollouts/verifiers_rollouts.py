"""Converts the rollouts that verifiers and prime-rl save (`traces.jsonl`) for view and explain.

python verifiers_rollouts.py traces.jsonl rollouts.jsonl
trl-credit view rollouts.jsonl --tokenizer Qwen/Qwen3-1.7B        # the credit that the trainer gave to each token
trl-credit explain rollouts.jsonl --tokenizer Qwen/Qwen3-1.7B        # what every algorithm would give
trl-credit help explain        # the format of the rows, and what is left out
"""

# The input has one episode per line, and each trace of it is a graph of messages. A node of the graph is a message with
# the tokens that it adds. A path from the root to a leaf is a response. Where paths fork after a message of the policy,
# its tokens are in the loss of the first path alone, so that none has credit twice.

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

from trl_credit.observe.schema import TOKEN_TYPES, parse_json
from trl_credit.support.files import write_atomically


NAME = "verifiers: A × loss weight"
_STREAM = "rl"  # of the loss weights; others ("ce", "ref_kl") weight other terms of a loss
_CUT_OFF = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed")
# lists of a node with one entry per sampled token → our column
_SAMPLED = {
    "logprobs": "inference_logprobs",
    "trainer_logprobs": "trainer_logprobs",
    "reference_logprobs": "ref_logprobs",
    "entropies": "entropy",
    "advantages": "advantages",
}
_OURS = {*TOKEN_TYPES, "group", "index", "prompt", "completion", "reward", "rewards", "truncated"}
_OURS |= {"nodes", "segment_nodes", "segment_values", "prompt_token_ids", "logprobs"}


class _Node(NamedTuple):
    """A message with what it adds; lists have one entry per token, with `None` where the policy did not write."""

    parent: int | None
    message: dict[str, Any]
    is_sampled: bool
    token_ids: list[int]
    mask: list[int]
    columns: dict[str, list[float | None] | None]
    weights: list[float] | None
    has_other_weights: bool


def is_number(x: Any, low: float, high: float) -> bool:
    return type(x) in (int, float) and low <= x <= high and abs(x) <= sys.float_info.max


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


def is_verifiers(entry: Any) -> bool:
    """Whether the JSON value of a line is an episode of verifiers."""
    return isinstance(entry, dict) and isinstance(entry.get("traces"), list) and "task" in entry


def read_verifiers(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Reads `traces.jsonl`: what its rows have in common, and a row for each response.

    Any list of a node may be missing or null, which means unknown.
    Rollouts are a group if they have the same `group`, or without one the same task; each agent has its own groups.
    Left out are traces with an error, those of agents that are not trained, and those without a message of the policy.
    Tokens that the policy did not write have `loss_mask` 0. Tokens to which nobody assigned an advantage, or whose loss
    weight is 0, have `policy_mask` 0. `credit` is the advantage times the loss weight "rl", which is 1 if it is not
    given. `tokens` are not in the file.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is malformed, or no response is left; the message names the file and the line.
    """
    responses: list[dict[str, Any]] = []
    groups: dict[tuple, int] = {}
    facts: dict[str, set] = {"step": set(), "model": set(), "temperature": set()}
    left_out, others = 0, False
    for line, where in lines_of(path):
        episode = parse_json(line, where=where)
        if not is_verifiers(episode):
            raise ValueError(f"{where} is not an episode of verifiers, with task and traces: {path} mixes formats")
        step = _get(episode, "run", "work", "step")
        facts["step"].add(step if type(step) is int and step >= 0 else None)
        for trace in episode["traces"]:
            _check(isinstance(trace, dict), where, "traces", "objects", trace)
            of_trace = _responses(trace, where) if _is_trained(trace) else []
            left_out += not of_trace
            own_task = _get(trace, "task", "key") or _get(trace, "task", "hash") or _get(trace, "task", "data", "idx")
            task = _get(episode, "group", "id") or own_task
            key = (str(step), str(task or where), str(_get(trace, "agent", "name")))
            for response in of_trace:
                group = groups.setdefault(key, len(groups))
                others |= response.pop("has_other_weights")
                responses.append({**response, "group": group})
            for call in _listed(trace, "calls", where):
                model, heat = _get(call, "model"), _get(call, "sampling", "temperature")
                facts["model"].add(model if isinstance(model, str) else None)
                facts["temperature"].add(heat if is_number(heat, 0.0, math.inf) else None)
    step, model, temperature = (values.pop() if len(values) == 1 else None for values in facts.values())
    note = _note(any("credit" in response for response in responses), left_out, others)
    if not responses:
        raise ValueError(f"{path} holds no response. {note}".strip())
    header = {"step": step, "algorithm": NAME, "model": model, "temperature": temperature, "note": note}
    return {name: x for name, x in header.items() if x is not None}, responses


def _note(has_credit: bool, left_out: int, others: bool) -> str:
    parts = ["Credit is the saved advantage times the loss weight: verifiers saves no gradient."] * has_credit
    if others:
        parts.append(f"Loss weights other than {_STREAM!r} are of other terms of the loss and are left out.")
    if left_out:
        parts.append(f"Left out: {left_out} traces that failed, are of no trained agent, or hold no response.")
    return " ".join(parts)


def _is_trained(trace: dict[str, Any]) -> bool:
    return trace.get("ok") is not False and _get(trace, "agent", "trainable") is not False


def _responses(trace: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """A response for each path of a trace's graph that has a message of the policy of its own."""
    listed = _listed(trace, "nodes", where)
    nodes = [_node(node, place, f"{where}, node {place}") for place, node in enumerate(listed)]
    rewards, reward = _rewards(trace.get("rewards") or {}, where)
    calls = [call for call in _listed(trace, "calls", where) if isinstance(call, dict) and call.get("error") is None]
    is_cut = trace.get("stop_condition") in _CUT_OFF or (bool(calls) and calls[-1].get("finish_reason") == "length")
    data = _get(trace, "task", "data")
    columns = {name: x for name, x in data.items() if name not in _OURS} if isinstance(data, dict) else {}
    responses: list[dict[str, Any]] = []
    seen: set[int] = set()
    for path in _paths(nodes, listed):
        if all(place in seen or not nodes[place].is_sampled for place in path):
            continue
        response = _joined(nodes, path, seen, where)
        seen.update(path)
        responses.append({**columns, **response, "reward": reward, "rewards": rewards, "truncated": is_cut})
    return responses


def _paths(nodes: Sequence[_Node], listed: Sequence[dict[str, Any]]) -> Iterator[list[int]]:
    """The way from a root to each leaf, but to the leaves of compactions that were tried and not used."""
    inner, links = {node.parent for node in nodes}, [_links(node) for node in listed]
    used = {place for kind, place in chain(*links) if kind == "compaction"}
    for leaf in range(len(nodes)):
        if leaf in inner or (leaf not in used and any(kind == "compaction_attempt" for kind, _ in links[leaf])):
            continue
        path, place = [], leaf
        while place is not None:
            path.append(place)
            place = nodes[place].parent
        yield path[::-1]


def _links(node: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Type and node of each causal link to a node."""
    parents = node.get("semantic_parents")
    links = [(_get(link, "type"), _get(link, "node")) for link in (parents if isinstance(parents, list) else [])]
    return [(kind, place) for kind, place in links if type(place) is int]


def _joined(nodes: Sequence[_Node], path: Sequence[int], seen: set[int], where: str) -> dict[str, Any]:
    """The response of a path: from the policy's first message on. What comes before is the prompt."""
    first = next(i for i, place in enumerate(path) if nodes[place].is_sampled)
    before, after = ([nodes[place] for place in part] for part in (path[:first], path[first:]))
    messages = [node.message for node in after]
    response: dict[str, Any] = {
        "prompt": [node.message for node in before],
        "completion": messages if len(messages) > 1 else _text(messages[0].get("content")),
        "has_other_weights": any(node.has_other_weights for node in after),
    }
    sampled = [x for node in after for x in node.mask]
    if not any(sampled):
        if len(messages) > 1:
            what = "a conversation of several turns without token ids, in which the policy's tokens are unknown"
            raise ValueError(f"{where}: {what}: save the rollouts of the client for training (client.type train)")
        return response
    lead = sampled.index(1)  # the template opens the answer
    mask = [x for place in path[first:] for x in ([0] * len(nodes[place].mask) if place in seen else nodes[place].mask)]
    turns = accumulate(int(node.is_sampled) for node in after)
    turn_ids = [turn - 1 if x else -1 for node, turn in zip(after, turns, strict=True) for x in node.mask]
    columns = {name: _column(after, name, sampled) for name in _SAMPLED.values()}
    columns = {
        **columns,
        "token_ids": [i for node in after for i in node.token_ids],
        "loss_mask": mask,
        "turn_ids": turn_ids,
        "trainer_logprobs": columns["trainer_logprobs"] or columns["inference_logprobs"],
        "old_logprobs": columns["inference_logprobs"] or columns["trainer_logprobs"],
    }
    if columns["advantages"] is not None:
        weights = [x for node in after for x in node.weights or [1.0] * len(node.mask)]
        values = columns["advantages"]
        assigned = [m if a is not None and w else 0 for m, a, w in zip(mask, values, weights, strict=True)]
        columns["policy_mask"] = assigned
        columns["advantages"] = [a or 0.0 for a in values]
        columns["credit"] = [
            a * w if m else 0.0 for a, w, m in zip(columns["advantages"], weights, assigned, strict=True)
        ]
    opening = [i for node in before for i in node.token_ids] + columns["token_ids"][:lead]
    return response | {name: x and x[lead:] for name, x in columns.items()} | {"prompt_token_ids": opening}


def _column(nodes: Sequence[_Node], name: str, sampled: Sequence[int]) -> list[float | None] | None:
    """A column of a path: one entry per token, `None` where the policy did not write. Some advantages may be unknown;
    another column is unknown if one of its values is."""
    values = [x for node in nodes for x in node.columns[name] or [None] * len(node.mask)]
    known = [x is not None for x, s in zip(values, sampled, strict=True) if s]
    return values if (any(known) if name == "advantages" else all(known)) else None


def _node(node: Any, place: int, where: str) -> _Node:
    _check(isinstance(node, dict), where, "it", "an object", node)
    parent, message = node.get("parent"), node.get("message")
    _check(parent is None or (type(parent) is int and 0 <= parent < place), where, "parent", "a node before it", parent)
    _check(isinstance(message, dict) and isinstance(message.get("role"), str), where, "message", "a message", message)
    ids, mask = node.get("token_ids") or [], node.get("mask") or []
    _check(_all(ids, lambda x: type(x) is int and x >= 0), where, "token_ids", "token ids", ids)
    _check(_all(mask, lambda x: type(x) is bool), where, "mask", "true and false", mask)
    if len(ids) != len(mask):
        raise ValueError(f"{where}: {len(ids)} token_ids and {len(mask)} entries of mask: the file is damaged")
    columns = {ours: _spread(node.get(name) or None, name, mask, where) for name, ours in _SAMPLED.items()}
    streams = node.get("loss_weights") or {}
    _check(isinstance(streams, dict), where, "loss_weights", "lists by name", streams)
    for name, values in streams.items():
        _check(_all(values, lambda x: is_number(x, -math.inf, math.inf)), where, "loss_weights", "numbers", values)
        if len(values) != len(ids):
            raise ValueError(f"{where}: loss_weights {name!r:.40} has {len(values)} entries for {len(ids)} tokens")
    is_sampled = node.get("sampled") is True
    rest = bool(streams.keys() - {_STREAM})
    return _Node(parent, message, is_sampled, ids, [int(x) for x in mask], columns, streams.get(_STREAM), rest)


def _spread(values: Any, name: str, mask: list[bool], where: str) -> list[float | None] | None:
    """One entry per token of a list with one entry per sampled token."""
    if values is None:
        return None
    is_valid = _all(values, lambda x: x is None or is_number(x, -math.inf, math.inf))
    _check(is_valid, where, name, "finite numbers or null", values)
    if len(values) != sum(mask):
        raise ValueError(
            f"{where}: {name} has {len(values)} entries for {sum(mask)} sampled tokens: the file is damaged"
        )
    rest = iter(values)
    return [next(rest) if sampled else None for sampled in mask]


def _rewards(rewards: Any, where: str) -> tuple[dict[str, float], float | None]:
    """The score of each reward function, and their weighted sum; `None` if nothing was scored."""
    _check(isinstance(rewards, dict), where, "rewards", "an object", rewards)
    scored = {name: reward for name, reward in rewards.items() if reward is not None}
    for name, reward in scored.items():
        numbers = [reward.get("score"), reward.get("weight", 1.0)] if isinstance(reward, dict) else [None]
        is_score = _all(numbers, lambda x: is_number(x, -math.inf, math.inf))
        _check(is_score, where, f"reward {name!r:.40}", "a score", reward)
    total = sum(reward["score"] * reward.get("weight", 1.0) for reward in scored.values())
    return {name: reward["score"] for name, reward in scored.items()}, total if scored else None


def _text(content: Any) -> str:
    if isinstance(content, list):
        content = "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _get(entry: Any, *names: str) -> Any:
    """A value in nested objects, `None` if one of them is missing."""
    for name in names:
        entry = entry.get(name) if isinstance(entry, dict) else None
    return entry


def _listed(entry: dict[str, Any], name: str, where: str) -> list[Any]:
    """A list of an object, empty if it is missing or null."""
    value = entry.get(name)
    _check(value is None or isinstance(value, list), where, name, "a list", value)
    return value or []


def _all(values: Any, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(values, list) and all(map(is_valid, values))


def _check(holds: bool, where: str, name: str, wanted: str, got: Any) -> None:
    if not holds:
        raise ValueError(f"{where}: {name} must be {wanted}, got {got!r:.40}: the file is damaged")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, help="file that verifiers or prime-rl saved")
    parser.add_argument("rollouts", type=Path, help="JSONL file to write, in place of an older one")
    args = parser.parse_args(argv)
    if args.traces.resolve() == args.rollouts.resolve():
        parser.error(f"{args.rollouts} is the file to convert: name another one to write")
    try:
        header, rows = read_verifiers(args.traces)
        # ASCII, since JSON may hold half of a surrogate pair and UTF-8 may not
        lines = [json.dumps(line, allow_nan=False) for line in ({"header": header}, *rows)]
        write_atomically(args.rollouts, "\n".join(lines) + "\n")
    except (OSError, ValueError) as error:
        parser.exit(2, f"{error}\n")
    groups = len({row["group"] for row in rows})
    print(f"{args.rollouts} has {len(rows)} responses, groups: {groups}. {header['note']}".rstrip())


if __name__ == "__main__":
    main(sys.argv[1:])
