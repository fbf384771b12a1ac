"""A run's rollout log as a data set and as a static Space: the folders that a push with `--with_rollouts` sends.

They hold the texts of the run's data and of its responses. Only the fields that are named here get into the data set.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from jinja2 import Environment, StrictUndefined

from ...hub.files import publishable, refuse_tokens
from ...hub.public import Public, escape
from ...hub.push import Repository, interruptible
from ...observe.schema import TOKEN_INTEGERS, TOKEN_NUMBERS, Shard, read_shard, steps
from ...support.files import atomic_file, inside, write_atomically


DATASET_FOLDER, SPACE_FOLDER = "credit_rollouts", "credit_space"  # in the run's folder
RESPONSES, TREES, STEPS = "responses.parquet", "trees.parquet", "steps.parquet"
PAGE = "index.html"
TEMPLATE = Path(__file__).with_name("assets") / "rollouts.md.jinja"

_FLOATS, _INTS = pa.list_(pa.float32()), pa.list_(pa.int32())
_SCHEMAS = {
    RESPONSES: {
        **dict.fromkeys(("step", "group", "index"), pa.int32()),
        **dict.fromkeys(("algorithm", "prompt", "answer", "completion"), pa.string()),
        "reward": pa.float64(),
        "rewards": pa.list_(pa.struct({"name": pa.string(), "value": pa.float64()})),
        "truncated": pa.bool_(),
        "tokens": pa.list_(pa.string()),
        **dict.fromkeys((*TOKEN_INTEGERS, "nodes", "segment_nodes"), _INTS),
        **dict.fromkeys((*TOKEN_NUMBERS, "segment_values"), _FLOATS),
    },
    TREES: {
        **dict.fromkeys(("step", "group", "id", "parent", "depth", "tokens"), pa.int32()),
        "text": pa.string(),
        **dict.fromkeys(("value", "advantage", "reward"), pa.float64()),
        **dict.fromkeys(("trained", "truncated"), pa.bool_()),
    },
    STEPS: {
        "step": pa.int32(),
        "steps": _INTS,
        **dict.fromkeys(("algorithm", "trainer", "trl_credit", "model", "eos_token", "settings"), pa.string()),
        **dict.fromkeys(("trace_decay", "beta", "temperature"), pa.float64()),
        "clip": pa.list_(pa.float64()),
    },
}


def push_with_rollouts(
    folder: str | Path, repo: Repository, *, page: str, commit_message: str = "End of training"
) -> list[str]:
    """Pushes the model as [`~trl_credit.hub.push`] does, then its rollout log as the data set `repo_id-rollouts` and
    the page as the static Space `repo_id-credit`, in one commit each. All three repositories are opened before anything
    is sent.

    Args:
        repo ([`~trl_credit.hub.Repository`]):
            Repository of the model. `private` is of all three; data set and Space have the branch `main` alone.
        page (`str`):
            HTML of the page of the rollout log.
        folder, commit_message:
            As for `push`.

    Returns:
        `list[str]`: URLs of the three commits.

    Raises:
        ValueError: as `push`, or the run has no rollout log, or a text in it holds a token. Nothing was sent.
        PushError, OSError, PushInterrupted: as `push`. Each repository has all of its commit or nothing.
    """
    root, repo_id = Path(folder), repo.repo_id
    files = publishable(root)
    refuse_tokens(root, files, repo.token)
    write_rollouts(folder, page=page, token=repo.token)
    retry = repo.retry_command(folder, with_rollouts=True)
    beside = {
        DATASET_FOLDER: replace(repo, repo_id=f"{repo_id}-rollouts", repo_type="dataset", revision=None),
        SPACE_FOLDER: replace(repo, repo_id=f"{repo_id}-credit", repo_type="space", revision=None),
    }
    with interruptible(folder, retry):
        hint = f"Nothing was sent. To try again: {retry}"
        model, *_ = [each.open(hint=hint) for each in (repo, *beside.values())]
        write_cards(folder, model)
        urls = [repo.commit(root, files, message=commit_message, retry=retry)]
        for part, other in beside.items():
            replaced = (RESPONSES, STEPS, TREES)
            files = [file for file in ("README.md", *replaced, PAGE) if (root / part / file).is_file()]
            urls.append(other.commit(root / part, files, message=commit_message, retry=retry, replaced=replaced))
    return urls


def write_rollouts(folder: str | Path, *, page: str, token: str | None = None) -> None:
    """Writes the data set and the page into the folder of a run, without their cards. Sends nothing.

    Args:
        folder (`str` or `Path`):
            Folder of a run that was trained with `log_credit`.
        page (`str`):
            HTML of the page.
        token (`str`, *optional*):
            The token of the push, a secret.

    Raises:
        ValueError: the run has no rollout log, a shard is damaged, or a text in it holds a secret.
        OSError: the folders cannot be written.
    """
    root, logged = Path(folder), steps(folder)
    if not logged:
        raise ValueError(f"{folder} has no rollout log: train with --log_credit 10, or leave out --with_rollouts")
    public = Public(token)
    rows: dict[str, list[dict[str, Any]]] = {TREES: [], STEPS: []}
    data = inside(root, DATASET_FOLDER)
    data.mkdir(exist_ok=True)
    (data / TREES).unlink(missing_ok=True)  # of an earlier run
    with (
        atomic_file(data / RESPONSES) as file,
        pq.ParquetWriter(file, pa.schema(_SCHEMAS[RESPONSES]), compression="zstd") as writer,
    ):
        for _, path in logged:
            shard = read_shard(path)
            if any(map(public.holds_token, _texts(shard))):
                raise ValueError(f"{path} holds your access token, or another secret: leave out --with_rollouts")
            writer.write_table(_table(RESPONSES, [_response(row, shard) for row in shard.responses]))
            nodes = [{**node, "group": group} for group, nodes in shard.trees.items() for node in nodes]
            rows[TREES] += [{**node, "step": shard.header["step"]} for node in nodes]
            settings = json.dumps(public.value(shard.header.get("settings") or {}))
            rows[STEPS].append({**shard.header, "settings": settings})
    for name, entries in rows.items():
        if entries:
            with atomic_file(data / name) as file:
                pq.write_table(_table(name, entries), file, compression="zstd")
    write_atomically(inside(root, SPACE_FOLDER) / PAGE, page)


def write_cards(folder: str | Path, repo_id: str) -> None:
    """Writes the cards of the data set and the Space that belong to the model `repo_id`. Raises OSError."""
    data, name = Path(folder) / DATASET_FOLDER, repo_id.split("/")[-1]
    files = [file for file in _SCHEMAS if (data / file).is_file()]
    configs = [{"config_name": file.partition(".")[0], "data_files": file} for file in files]
    configs[0]["default"] = True
    algorithms = pq.read_table(data / STEPS, columns=["algorithm"])["algorithm"].to_pylist()
    card = Environment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(TEMPLATE.read_text("utf-8"))
    names = {"model": repo_id, "dataset": f"{repo_id}-rollouts", "space": f"{repo_id}-credit"}
    counts = {"count": f"{pq.read_metadata(data / RESPONSES).num_rows:,}", "logged": f"{len(algorithms):,}"}
    text = card.render(algorithm=escape(algorithms[-1]), has_trees=TREES in files, **names, **counts)
    tags = ["trl-credit", "trl", "grpo", "reinforcement-learning"]
    about = {"pretty_name": f"Rollouts of {name} with credit per token", "tags": tags, "configs": configs}
    write_atomically(data / "README.md", f"{_front(about)}{text}")
    about = {"title": f"Credit per token of {name}", "sdk": "static", "app_file": PAGE, "tags": ["trl-credit"]}
    about |= {"models": [repo_id], "datasets": [names["dataset"]]}
    write_atomically(Path(folder) / SPACE_FOLDER / "README.md", _front(about))


def _texts(shard: Shard) -> set[str]:
    """Every text of a shard, once."""
    texts = {json.dumps(shard.header, ensure_ascii=False)}
    for response in shard.responses:
        texts |= {str(response.get(name)) for name in ("prompt", "completion", "answer")}
        texts.add("".join(response["tokens"]))
    return texts | {str(node.get("text")) for nodes in shard.trees.values() for node in nodes}


def _response(response: dict[str, Any], shard: Shard) -> dict[str, Any]:
    answer = response.get("answer")
    return {
        **response,
        "step": shard.header["step"],
        "algorithm": shard.header["algorithm"],
        "prompt": str(response.get("prompt") or ""),
        "answer": answer if isinstance(answer, str | None) else json.dumps(answer, ensure_ascii=False),
        "rewards": [{"name": name, "value": x} for name, x in (response.get("rewards") or {}).items()],
    }


def _table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema(_SCHEMAS[name]))


def _front(values: dict[str, Any]) -> str:
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}---\n"
