"""Which shards of a run are shown, and under which title."""

from collections.abc import Sequence
from pathlib import Path

from ...observe.schema import FOLDER, Shard, read_shard
from ...observe.schema import steps as logged_steps
from ..rollout_files import read_file, with_texts


MAX_TOKENS = 500_000  # of one page, about 20 MB


def read_run(
    run: str | Path, steps: Sequence[int] | None = None, *, tokenizer: str | None = None
) -> tuple[list[Shard], str]:
    """The shards of a run in the order of their steps, and a note on steps that are left out.

    Args:
        run (`str` or `Path`):
            The output folder of a run, one shard file, or JSONL rows with credit, see
            [`~trl_credit.lab.rollout_files`].
        steps (list of `int`, *optional*):
            The steps. Defaults to the last steps, up to `MAX_TOKENS`.
        tokenizer (`str`, *optional*):
            Folder or id of a model, for a file with token ids that lacks their texts.

    Raises:
        OSError: the file does not exist.
        ValueError: nothing was logged, a step was not logged, a file is damaged, or it holds no credit.
    """
    run = run_folder(run)
    if run.is_file():
        return _read_file(run, steps, tokenizer)
    if not run.exists():
        raise FileNotFoundError(f"{run} does not exist: give the output folder of a run, or a shard file")
    paths = dict(logged_steps(run))
    if not paths:
        one_step = f"--config {run}/recipe.yaml --model_name_or_path {run} --max_steps 1 --log_credit 1"
        fix = f"train with --log_credit 10, or log a step of its model: trl-credit train {one_step} --output_dir …"
        raise ValueError(f"{run} has no rollout log: {fix}")
    if missing := [step for step in steps or () if step not in paths]:
        raise ValueError(f"step {missing[0]} was not logged in {run}: it has steps {listed(sorted(paths))}")
    shards: list[Shard] = []
    room = MAX_TOKENS
    for step in sorted(set(steps) if steps else paths, reverse=True):
        shard = read_shard(paths[step])
        room -= sum(len(response["tokens"]) for response in shard.responses)
        if shards and room < 0 and not steps:
            left_out = listed([other for other in paths if other <= step])
            return shards[::-1], f"The page is full, so these steps are left out: {left_out}. Use --step to see one."
        shards.append(shard)
    return shards[::-1], ""


def _read_file(path: Path, steps: Sequence[int] | None, tokenizer: str | None) -> tuple[list[Shard], str]:
    shard = read_file(path)
    if tokenizer is not None:
        shard = with_texts(shard, tokenizer)
    if steps and list(steps) != [shard.header["step"]]:
        raise ValueError(f"{path} is the file of step {shard.header['step']}: leave out the step")
    responses, note = shard.responses, shard.header.get("note", "")
    if "note" in shard.header and all(response.get("credit") is None for response in responses):
        raise ValueError(f"{path} holds no response with credit: trl-credit explain {path} --model NAME computes it")
    if any(response.get("tokens") is None for response in responses):
        model = shard.header.get("model") or "MODEL"
        raise ValueError(f"{path} lacks the texts of its tokens: give --tokenizer {model!r:.80}")
    return [shard], note


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
