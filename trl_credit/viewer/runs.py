"""Which shards of a run are shown, and by what name."""

from collections.abc import Sequence
from pathlib import Path

from ..logs import FOLDER, Shard, read_shard
from ..logs import steps as logged_steps


TOKENS = 500_000  # of one page, which is then about 20 MB; older steps are left out, and named


def read_run(run: str | Path, steps: Sequence[int] | None = None) -> tuple[list[Shard], str]:
    """Shards of a run, in the order of their steps, and a line on what was left out.

    Args:
        run (`str` or `Path`):
            The output folder of a run, or one shard file.
        steps (list of `int`, *optional*):
            The steps. Default: the last ones, as many as a page holds.

    Raises:
        OSError: there is no such file.
        ValueError: nothing was logged, or not these steps; or a shard is damaged.
    """
    run = folder_of(run)
    if run.is_file():
        shard = read_shard(run)
        if steps and list(steps) != [shard.header["step"]]:
            raise ValueError(f"--step {steps[0]}: {run} is the shard of step {shard.header['step']}")
        return [shard], ""
    if not run.exists():
        raise FileNotFoundError(f"{run} does not exist: name the output folder of a run, or a shard file")
    found = dict(logged_steps(run))
    if not found:
        raise ValueError(f"{run} holds no rollout log: train with --log_credit 10, or name the folder of such a run")
    if steps:
        if missing := [step for step in steps if step not in found]:
            raise ValueError(f"--step {missing[0]} was not logged in {run}: {_listed(sorted(found))} were")
        return [read_shard(found[step]) for step in sorted(set(steps))], ""
    shards: list[Shard] = []
    room = TOKENS
    for step, path in reversed(found.items()):
        shard = read_shard(path)
        room -= sum(len(response["tokens"]) for response in shard.responses)
        if shards and room < 0:
            left = [other for other in found if other <= step]
            return shards[::-1], f"Too large for one page, and left out: step {_listed(left)}. --step shows one."
        shards.append(shard)
    return shards[::-1], ""


def folder_of(run: str | Path) -> Path:
    """The run's folder, where the folder of its shards is named; else what is named."""
    run = Path(run)
    return run.parent if run.name == FOLDER and not (run / FOLDER).is_dir() else run


def name_of(run: str | Path) -> str:
    """A run as its page is titled: the last two parts of its path."""
    return "/".join(folder_of(run).resolve().parts[-2:]).removeprefix("/")


def _listed(steps: Sequence[int]) -> str:
    if len(steps) <= 5:
        return ", ".join(map(str, steps))
    return f"{steps[0]}, {steps[1]}, … {steps[-1]}"
