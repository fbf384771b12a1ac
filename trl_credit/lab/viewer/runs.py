"""Which shards of a run are shown, and under which title."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from ...observe.schema import FOLDER, Shard, read_shard
from ...observe.schema import steps as logged_steps
from ..rollout_files import read_file
from ..rollout_files.texts import FastTokenizer, with_texts


MAX_TOKENS = 500_000  # of one page, about 20 MB


def read_run(
    run: str | Path, steps: Sequence[int] | None = None, *, tokenizer: str | None = None, in_python: bool = False
) -> tuple[list[Shard], str]:
    """The shards of a run in the order of their steps, and a note on steps that are left out.

    Args:
        run (`str` or `Path`):
            The output folder of a run, one shard file, or another file with credit, see
            [`~trl_credit.lab.rollout_files`].
        steps (list of `int`, *optional*):
            The steps. Defaults to the last steps, up to `MAX_TOKENS`.
        tokenizer (`str`, *optional*):
            Folder or id of a model, for a file with token ids that lacks their texts.
        in_python (`bool`, *optional*, defaults to `False`):
            Whether messages name arguments of Python instead of flags.

    Raises:
        OSError: the file does not exist.
        ValueError: nothing was logged, a step was not logged, a file is damaged, or it holds no credit.
    """
    run, step_is = run_folder(run), "step=" if in_python else "--step "
    if run.is_file():
        shard = read_file(run)
        if tokenizer is not None:
            shard = with_texts(shard, FastTokenizer(tokenizer))
        if steps and list(steps) != [shard.header["step"]]:
            raise ValueError(f"{step_is}{steps[0]}: {run} is the shard of step {shard.header['step']}")
        if "note" not in shard.header:
            return [shard], ""
        _check_shown(shard, run)
        return [shard], str(shard.header["note"])
    if tokenizer is not None:
        raise ValueError(f"--tokenizer is for a file of others: the logs of {run} hold their texts")
    if not run.exists():
        raise FileNotFoundError(f"{run} does not exist: give the output folder of a run, or a shard file")
    found = dict(logged_steps(run))
    if not found:
        if in_python:
            raise ValueError(f"{run} has no rollout log: train with log_credit=10 in the configuration")
        other = f"`trl-credit explain {shlex.quote(str(run))}`, which samples responses of its model"
        raise ValueError(f"{run} has no rollout log: train with --log_credit 10, or run {other}")
    if steps:
        if missing := [step for step in steps if step not in found]:
            raise ValueError(f"{step_is}{missing[0]} was not logged in {run}: it has steps {listed(sorted(found))}")
        return [read_shard(found[step]) for step in sorted(set(steps))], ""
    shards: list[Shard] = []
    room = MAX_TOKENS
    for step, path in reversed(found.items()):
        shard = read_shard(path)
        room -= sum(len(response["tokens"]) for response in shard.responses)
        if shards and room < 0:
            left_out = listed([other for other in found if other <= step])
            return shards[::-1], f"The page is full, so these steps are left out: {left_out}. Use --step to see one."
        shards.append(shard)
    return shards[::-1], ""


def _check_shown(shard: Shard, path: Path) -> None:
    """Checks a file that is not a shard, whose responses may lack any column."""
    responses, model = shard.responses, shard.header.get("model")
    if not responses:
        raise ValueError(f"{path} holds no response")
    if all(response.get("credit") is None and response.get("advantages") is None for response in responses):
        raise ValueError(f"{path} holds no credit: trl-credit explain {path} --model NAME computes it")
    if any(response.get("tokens") is None for response in responses):
        named = f" {model!r:.80}" if isinstance(model, str) else " with the model's folder or id"
        raise ValueError(f"{path} lacks the texts of its tokens: give --tokenizer{named}")


def run_folder(run: str | Path) -> Path:
    """The run's folder, if `run` is the folder of its shards inside it. Other paths are returned unchanged."""
    run = Path(run)
    return run.parent if run.name == FOLDER and not (run / FOLDER).is_dir() else run


def run_title(run: str | Path) -> str:
    """The last two parts of a run's path."""
    return "/".join(run_folder(run).resolve().parts[-2:]).removeprefix("/")


def listed(steps: Sequence[int]) -> str:
    """Steps as text, shortened in the middle."""
    return ", ".join(map(str, steps if len(steps) <= 5 else [*steps[:2], "…", steps[-1]]))
