"""Which shards of a run, or of several side by side, are shown, and under which title."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...observe.schema import FOLDER, Shard, prompt_text, read_shard
from ...observe.schema import steps as logged_steps
from ...support.files import named_path
from ..rollout_files import read_file, with_texts


MAX_TOKENS = 500_000  # of one page, about 20 MB


def read_runs(
    runs: Mapping[str, str | Path], steps: Sequence[int] | None = None, *, tokenizer: str | None = None
) -> tuple[list[Shard], str]:
    """The shards of several runs, for a page on which they stand side by side, and a note on what it lacks.

    Each shard has the name of its run as its algorithm. In a step, groups of the same prompt get the same number. One
    run is read by [`read_run`].

    Args:
        runs (`dict`):
            Each run by its name.
        steps, tokenizer:
            As for [`read_run`]. The runs share `MAX_TOKENS` equally.

    Raises:
        OSError, ValueError: see [`read_run`]; no run.
    """
    if not runs:
        raise ValueError("there is nothing to show: no run was given")
    if len(runs) == 1:
        return read_run(*runs.values(), steps, tokenizer=tokenizer)
    shards: list[Shard] = []
    notes, is_shared = [], False
    for name, run in runs.items():
        own, note = read_run(run, steps, tokenizer=tokenizer, room=MAX_TOKENS // len(runs))
        notes += [f"{name}: {note}"] if note else []
        for shard in own:
            known = {g: p for s in shards if s.header["step"] == shard.header["step"] for g, p in _prompts(s).items()}
            numbers: dict[int, int] = {}
            for group, prompt in _prompts(shard).items():
                same = [n for n, other in known.items() if other == prompt and n not in numbers.values()]
                is_shared |= bool(same)
                numbers[group] = same[0] if same else max([-1, *known, *numbers.values()]) + 1
            responses = [{**response, "group": numbers[response["group"]]} for response in shard.responses]
            trees = {numbers[group]: nodes for group, nodes in shard.trees.items() if group in numbers}
            settings = {"algorithm": shard.header["algorithm"], **(shard.header.get("settings") or {})}
            header = {**shard.header, "algorithm": name, "is_run": True, "settings": settings}
            shards.append(Shard(header, trees, responses))
    if not is_shared:
        notes.append("No step shows the same prompt in two runs: with equal data and seed, runs see the same prompts.")
    return shards, " ".join(notes)


def named_runs(words: Sequence[str | Path]) -> dict[str, Path]:
    """Runs by name, from words RUN or NAME=RUN. Without a name it is the last part of the path, or the whole path where
    another run has that name too.

    Raises:
        ValueError: two runs have the same name.
    """
    pairs = [named_path(word) for word in words]
    ends = [name or run_folder(path).resolve().name for name, path in pairs]
    names = [name or (path if ends.count(end) > 1 else end) for (name, path), end in zip(pairs, ends, strict=True)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two runs are named {twice[0]!r}: give them different names, NAME=RUN")
    return {name: run_folder(path) for name, (_, path) in zip(names, pairs, strict=True)}


def last_step(shards: Sequence[Shard]) -> int | None:
    """The last step that most runs have logged, `None` for files without steps."""
    steps = [shard.header["step"] for shard in shards]
    return max(reversed(dict.fromkeys(steps)), key=steps.count)


def _prompts(shard: Shard) -> dict[int, str]:
    """The prompt of each group. A row of a tree may have text of nodes in its own, so the shortest counts."""
    prompts: dict[int, str] = {}
    for response in shard.responses:
        text = prompt_text(response.get("prompt"))
        prompts[response["group"]] = min(prompts.get(response["group"], text), text, key=len)
    return prompts


def read_run(
    run: str | Path, steps: Sequence[int] | None = None, *, tokenizer: str | None = None, room: int | None = None
) -> tuple[list[Shard], str]:
    """The shards of a run in the order of their steps, and a note on steps that are left out.

    Args:
        run (`str` or `Path`):
            The output folder of a run, one shard file, or JSONL rows with credit, see
            [`~trl_credit.lab.rollout_files`].
        steps (list of `int`, *optional*):
            The steps. Defaults to the last steps, up to `room` tokens.
        tokenizer (`str`, *optional*):
            Folder or id of a model, for a file with token ids that lacks their texts.
        room (`int`, *optional*, defaults to `MAX_TOKENS`):
            Tokens of the last steps together.

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
        from ...demo import TASKS  # imports torch, which a page does not need
        from ...runs import checkpoints

        task = (checkpoints.read_run(run) or {}).get("task")
        fix = f"repeat its script with model={str(run)!r}, max_steps=1, log_credit=1 and another output_dir"
        if task is not None:
            data = f" --dataset_name {task['dataset_name']}" if task["dataset_name"] in TASKS else ""
            one_step = f"--config {run}/recipe.yaml --model_name_or_path {run}{data} --max_steps 1 --log_credit 1"
            fix = f"trl-credit train {one_step} --output_dir …"
        raise ValueError(f"{run} has no rollout log: to log a step of its model, {fix}")
    if missing := [step for step in steps or () if step not in paths]:
        raise ValueError(f"step {missing[0]} was not logged in {run}: it has steps {listed(sorted(paths))}")
    shards: list[Shard] = []
    room = room or MAX_TOKENS
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
