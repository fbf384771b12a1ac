"""One HTML file that shows shards of a rollout log without a server or a network.

A policy's text must stay text: it is in a JSON block in which no tag can end, the script adds it to the page as text
nodes only, and the page's Content-Security-Policy allows nothing but the page's own script and styles.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ...observe.schema import LOGPROBS, TOKEN_INTEGERS, TOKEN_NUMBERS, Shard, gold_answer, prompt_text, rounded
from .columns import Column, encode_indices, encode_numbers
from .excerpt import opening_response
from .palette import css


SCRIPTS = "data metrics text search tree totals panel navigation legend columns save viewer".split()
# fields that the script reads, besides columns
_HEADER = ("step", "algorithm", "is_run", "model", "clip", "trace_decay", "beta", "temperature")
_RESPONSE = ("group", "index", "nodes", "segment_nodes", "reward", "rewards", "segment_values", "truncated")
_NODE = ("id", "parent", "tokens", "value", "advantage", "reward", "trained", "text")
Table = dict[Any, int]  # what is stored once, with its index


def build_page(
    shards: Sequence[Shard],
    *,
    title: str,
    start: dict[str, int] | None = None,
    note: str = "",
    table: Sequence[Sequence[str]] = (),
    notes: Sequence[str] = (),
) -> str:
    """A page of shards: the steps of a run, or the credit of several algorithms for the same responses.

    Args:
        shards (list of `Shard`):
            At least one. Shards of the same step but different algorithms are shown side by side.
        title (`str`):
            Title of the page, such as the name of a run.
        start (`dict`, *optional*):
            The `step`, `group` and `index` of the response that is shown first. Defaults to the one with the largest
            Σ |credit| of a group that has credit, with a tree if there is one, and whose rewards differ most.
        note (`str`, *optional*):
            A line below the title.
        table (list of lists of `str`, *optional*):
            A table above the responses. The first row is the head, the first column names the rows.
        notes (list of `str`, *optional*):
            Lines below the table.

    Returns:
        `str`: HTML, 5 to 40 bytes per token, depending on the logged columns.

    Raises:
        ValueError: there are no shards, or a column has the wrong type; the message names it.
    """
    if not shards:
        raise ValueError("there is nothing to show: no shard was given")
    prompts: Table = {}
    vocabulary: Table = {}
    encoded = [_shard(shard, prompts, vocabulary) for shard in shards]
    tokens = {"token_ids": [token for token, _ in vocabulary], "tokens": [text for _, text in vocabulary]}
    data = {"start": _start(shards, start or {}), "prompts": list(prompts), **tokens, "shards": encoded}
    script, style = "\n".join(asset(f"{name}.js") for name in SCRIPTS), css() + asset("viewer.css")
    script = re.sub(r"^ *//.*\n", "", script, flags=re.MULTILINE)  # comments are for readers of the source
    sources = f"script-src {source_hash(script)}; style-src {source_hash(style)}"
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    texts = {"title": title, "note": note, "table": table, "notes": notes}
    texts["policy"] = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    trusted = {"style": Markup(style), "script": Markup(script), "data": Markup(inert_json(data))}
    page = environment.from_string(asset("template.html")).render(**texts, **trusted)
    # JSON may hold half of a surrogate pair and UTF-8 may not: it becomes a question mark
    return page.encode("utf-8", "replace").decode("utf-8")


def inert_json(data: object) -> str:
    """JSON in which no HTML begins or ends, whatever its texts are."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub(r"[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _shard(shard: Shard, prompts: Table, vocabulary: Table) -> dict[str, Any]:
    settings = shard.header.get("settings") or {}
    shown = {name: x if isinstance(x, (str, bool)) else str(x) for name, x in settings.items()}
    header = {**_finite(shard.header, _HEADER), "settings": shown}
    of_step = "" if header["step"] is None else f" of step {header['step']}"
    responses = []
    for response in shard.responses:
        where = f"response {response['group']}/{response['index']}{of_step}"
        tokens = response["tokens"]
        ids = response.get("token_ids") or [None] * len(tokens)
        indices = [vocabulary.setdefault(pair, len(vocabulary)) for pair in zip(ids, tokens, strict=True)]
        fields = _finite(response, _RESPONSE)
        fields["prompt"] = prompts.setdefault(prompt_text(response.get("prompt")), len(prompts))
        fields["answer"] = gold_answer(response)
        columns = {"tokens": encode_indices(indices), **_columns(response, where)}
        responses.append({**fields, "length": len(tokens), "columns": columns})
    trees = {str(group): [_finite(node, _NODE) for node in nodes] for group, nodes in shard.trees.items()}
    return {"header": header, "trees": trees, "responses": responses}


def _finite(entry: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """These fields of an entry; `None` for a missing field and for a number that is not finite."""
    return {name: rounded(entry.get(name)) for name in names}


def _columns(response: dict[str, Any], where: str) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name in (*TOKEN_NUMBERS, *TOKEN_INTEGERS):
        values = response.get(name)
        if values is None or name == "token_ids":
            continue
        # on-policy, three of the four log-probabilities are equal
        twin = next((other for other in columns if name in LOGPROBS and response[other] == values), None)
        try:
            columns[name] = f"={twin}" if twin is not None else encode_numbers(values)
        except ValueError as error:
            raise ValueError(f"{name} of {where}: {error}") from error
    return columns


def asset(name: str) -> str:
    """The text of a file of the page."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _start(shards: Sequence[Shard], start: dict[str, int]) -> dict[str, int]:
    """`start` with the response to open with."""
    step = next((s.header["step"] for s in shards if s.header["step"] == start.get("step")), shards[0].header["step"])
    first = opening_response([shard for shard in shards if shard.header["step"] == step])
    return start if "group" in start or first is None else {"step": step} | first | start


def source_hash(text: str) -> str:
    """The source expression of a Content-Security-Policy for an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
