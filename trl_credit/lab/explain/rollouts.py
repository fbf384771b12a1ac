"""Reads the responses to explain: of a rollout log, or of another file."""

from collections import Counter
from pathlib import Path

from ...observe.schema import Shard, steps
from ..rollout_files import read_file
from ..viewer.runs import read_run, run_folder


def read_rollouts(source: str | Path, *, step: int | None = None) -> Shard:
    """Reads the responses of one logged step of a run, of a shard, or of another file.

    A row of a JSONL file has `prompt` and `completion` (texts, or lists of messages) and `reward`. It may have
    `logprobs` and `entropy` (nats), `tokens`, `token_ids`, `old_logprobs` and `loss_mask`, one entry per token, and
    `truncated`. Rows with the same `group`, or without one the same prompt, are a group. Other fields are kept for
    reward functions.

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
    path = run_folder(source)
    if path.is_dir():
        last = [number for number, _ in steps(path)][-1:]
        shard = read_run(path, last if step is None else [step])[0][0]
    elif step is not None:
        raise ValueError(f"--step {step}: {path} is a file, which has no steps: give the folder of the run")
    else:
        shard = read_file(path)
    if shard.trees or (shard.header.get("settings") or {}).get("rollouts") == "tree":
        raise ValueError(f"{path} holds rows of trees, which are parts of responses: look at them with trl-credit view")
    if all(response.get("reward") is None for response in shard.responses):
        raise ValueError(f"{path} has no reward, and advantages are computed from rewards")
    if max(Counter(response["group"] for response in shard.responses).values()) < 2:
        raise ValueError(f"{path} has no two responses to one prompt: advantages are computed within a group")
    return shard
