"""One HTML file that shows shards of a rollout log, and needs neither a server nor a network.

What a policy wrote is text and stays text: it is in a block of JSON in which no tag can end, the script puts it on the
page as text nodes alone, and the page's Content-Security-Policy lets nothing run or load but its own script and styles.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ..logs import Shard
from .columns import Coded, code_numbers, code_places
from .fields import HEADER, NODE, RESPONSE, taken
from .palette import css


SCRIPTS = ("data.js", "metrics.js", "text.js", "tree.js", "panel.js", "navigation.js", "viewer.js")
NUMBERS = (
    "credit",
    "kl_credit",
    "advantages",
    "trainer_logprobs",
    "old_logprobs",
    "inference_logprobs",
    "ref_logprobs",
    "log_weight",
    "entropy",
    "loss_mask",
    "policy_mask",
    "is_clipped",
    "selected",
    "segment_ids",
    "turn_ids",
)


def build_page(
    shards: Sequence[Shard],
    *,
    title: str,
    start: dict[str, int] | None = None,
    note: str = "",
    table: Sequence[Sequence[str]] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """A page that shows shards: the steps of a run, or what several algorithms make of the same responses.

    Args:
        shards (list of `Shard`):
            At least one. Those of one step that differ in algorithm are shown side by side.
        title (`str`):
            What is shown: the name of a run.
        start (`dict`, *optional*):
            The `step`, `group` and `index` of the response that is shown first. What it leaves out is the first one, of
            groups the first that has credit.
        note (`str`, *optional*):
            A line below the title.
        table (list of lists of `str`, *optional*):
            Shown above the responses, in a section that can be closed; the first row is the head, the first column
            names the rows.
        notes (list of `str`):
            Lines below the table.

    Returns:
        `str`: HTML, 5 to 40 bytes per token, by how many columns are logged and vary.

    Raises:
        ValueError: there are no shards, a row of the table is not as long as its head, or a field holds what it must
            not; the message names it.
    """
    if not shards:
        raise ValueError("there is nothing to show: no shard was given")
    for i, row in enumerate(table or ()):
        if len(row) != len(table[0]):
            raise ValueError(f"row {i} of the table has {len(row)} cells, its head {len(table[0])}")
    prompts: dict[str, int] = {}
    vocabulary: dict[tuple[int | None, str], int] = {}
    coded = [_coded_shard(shard, prompts, vocabulary) for shard in shards]
    data = {
        "start": _start(shards, start or {}),
        "prompts": list(prompts),
        "token_ids": [token for token, _ in vocabulary],
        "tokens": [text for _, text in vocabulary],
        "shards": coded,
    }
    script = "\n".join(_asset(name) for name in SCRIPTS)
    style = css() + _asset("viewer.css")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {source_hash(script)}",
            f"style-src {source_hash(style)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    page = environment.from_string(_asset("template.html")).render(
        title=title,
        note=note,
        table=table or [],
        notes=notes,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        data=Markup(inert_json(data)),
    )
    # half a character, which JSON may hold and UTF-8 may not, becomes a question mark
    return page.encode("utf-8", "replace").decode("utf-8")


def inert_json(data: object) -> str:
    """JSON in which no HTML begins or ends, whatever its texts hold."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub(r"[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _coded_shard(
    shard: Shard, prompts: dict[str, int], vocabulary: dict[tuple[int | None, str], int]
) -> dict[str, Any]:
    header = taken(shard.header, HEADER, where="the header")
    responses = []
    for response in shard.responses:
        where = f"response {response['group']}/{response['index']} of step {header['step']}"
        tokens = response["tokens"]
        ids = response.get("token_ids") or [None] * len(tokens)
        places = [vocabulary.setdefault(pair, len(vocabulary)) for pair in zip(ids, tokens, strict=True)]
        responses.append(
            {
                **taken(response, RESPONSE, where=where),
                "prompt": prompts.setdefault(str(response.get("prompt") or ""), len(prompts)),
                "length": len(tokens),
                "columns": {"tokens": code_places(places), **_columns(response, where)},
            }
        )
    trees = {
        str(group): [taken(node, NODE, where=f"a node of tree {group} of step {header['step']}") for node in nodes]
        for group, nodes in shard.trees.items()
    }
    return {"header": header, "trees": trees, "responses": responses}


def _columns(response: dict[str, Any], where: str) -> dict[str, Coded]:
    columns: dict[str, Coded] = {}
    for name in NUMBERS:
        values = response.get(name)
        if values is None:
            continue
        # on-policy, three of the four log-probabilities are one
        twin = next((o for o in columns if name.endswith("_logprobs") and response[o] == values), None)
        try:
            columns[name] = f"={twin}" if twin is not None else code_numbers(values)
        except ValueError as error:
            raise ValueError(f"{name} of {where}: {error}") from error
    return columns


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _start(shards: Sequence[Shard], start: dict[str, int]) -> dict[str, int]:
    """`start` with a group: one whose responses all earned the same has nothing to show."""
    if "group" in start:
        return start
    shard = next((one for one in shards if one.header["step"] == start.get("step")), shards[0])
    groups = [r["group"] for r in shard.responses if any(r.get("credit") or ())]
    if not groups:
        return start
    group = next((group for group in groups if group in shard.trees), groups[0])  # trees stand first
    return {"step": shard.header["step"], "group": group} | start


def source_hash(text: str) -> str:
    """How a Content-Security-Policy names a script or style that stands in the page itself."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
