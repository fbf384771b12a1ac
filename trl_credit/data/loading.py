"""Prompts and answers by the name of a set, from a file, or from the Hub."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset

from ..rewards.reasoning_gym import reasoning_gym_rows
from .cleaning import CleaningReport, clean, find_overlap
from .files import FILE_FORMATS, find_file, from_hub, load_other, read_path
from .prompts import IDS, as_prompts, find_column, problems, row_id
from .records import Records
from .sets import PROMPT_STYLES, SETS, PromptStyle, resolve_style


logger = logging.getLogger(__name__)
PROMPT_COLUMNS = ("prompt", "problem", "question")
ANSWER_COLUMNS = ("answer", "solution", "target")
GYM = "reasoning_gym:"


@dataclass
class DataArguments:
    """What to train or evaluate on. Each field is a flag of the scripts."""

    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": f"{', '.join(SETS)}; reasoning_gym:TASK; a {', '.join(FILE_FORMATS)} file; or a Hub name. Default: "
            "the embedded task."
        },
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder with files of the known sets (gsm8k.jsonl, …), instead of the Hub."}
    )
    dataset_revision: str | None = field(
        default=None, metadata={"help": "Commit, tag or branch of a set of the Hub. Default: the known set's pin."}
    )
    dataset_config: str | None = field(
        default=None, metadata={"help": "Configuration on the Hub; of a reasoning_gym task its settings, as YAML."}
    )
    dataset_split: str | None = field(default=None, metadata={"help": "Default: train; test of evaluation sets."})
    prompt_column: str | None = field(default=None, metadata={"help": "Default: prompt, problem or question."})
    answer_column: str | None = field(default=None, metadata={"help": "Default: answer, solution or target."})
    prompt_style: str = field(
        default="boxed",
        metadata={
            "help": f"{', '.join(PROMPT_STYLES)}, or a text with {{problem}} in it; text: before one leaves the chat "
            "template out."
        },
    )
    max_prompt_tokens: int | None = field(default=None, metadata={"help": "Rows with a longer prompt are dropped."})
    decontaminate: list[str] | None = field(
        default=None, metadata={"help": "Evaluation sets whose problems are dropped from the data, or 'all'."}
    )


def load_from_arguments(arguments: DataArguments, *, tokenizer: Any, seed: int, needs_answers: bool = True) -> Dataset:
    """`load_prompts` of the flags; messages where the tokenizer has a chat template and the style is for chat."""
    if arguments.dataset_name is None:
        raise ValueError("there is no data: set --dataset_name")
    style = resolve_style(arguments.prompt_style)
    return load_prompts(
        arguments.dataset_name,
        data_dir=arguments.data_dir,
        revision=arguments.dataset_revision,
        split=arguments.dataset_split,
        config=arguments.dataset_config,
        prompt_column=arguments.prompt_column,
        answer_column=arguments.answer_column,
        conversational=style.chat and tokenizer.chat_template is not None,
        style=style,
        tokenizer=tokenizer,
        max_prompt_tokens=arguments.max_prompt_tokens,
        decontaminate=arguments.decontaminate or (),
        seed=seed,
        needs_answers=needs_answers,
    )


def hub_source(arguments: DataArguments) -> tuple[str | None, str | None]:
    """Id and revision on the Hub of what the flags load; `None` for what comes from elsewhere."""
    name = arguments.dataset_name
    if name is None or name == "demo" or name.startswith(GYM) or Path(name).suffix.lower() in FILE_FORMATS:
        return None, None
    if name not in SETS:
        return name, arguments.dataset_revision
    if arguments.data_dir is not None:
        return None, None
    return SETS[name].repo, arguments.dataset_revision or SETS[name].revision


def load_prompts(
    name: str,
    *,
    data_dir: str | None = None,
    revision: str | None = None,
    split: str | None = None,
    config: str | dict | None = None,
    prompt_column: str | None = None,
    answer_column: str | None = None,
    conversational: bool = False,
    style: str | PromptStyle = "boxed",
    tokenizer: Any = None,
    max_prompt_tokens: int | None = None,
    decontaminate: Sequence[str] = (),
    seed: int = 42,
    needs_answers: bool = False,
) -> Dataset:
    """Loads a set with the columns `prompt`, `answer` and `id`.

    An answer is text, with the digits that the file has. A known set has besides these its bare `problem` and what it
    has of `level`, `names` and `truth`; other sets keep all their columns, and have no `answer` where no column holds
    it. They go to the reward functions. What was dropped or repaired is logged.

    Args:
        name (`str`):
            A set of `SETS`, `reasoning_gym:TASK`, a JSONL, JSON, Parquet, Arrow or CSV file, or a name on the Hub.
        data_dir (`str`, *optional*):
            Folder where known sets are looked for instead of on the Hub, see docs/data.md.
        revision (`str`, *optional*):
            Commit on the Hub, in place of a known set's pin.
        split (`str`, *optional*):
            Defaults to `train`, of evaluation sets to `test`.
        config (`str` or `dict`, *optional*):
            Configuration of a set of the Hub; settings of a reasoning-gym task.
        prompt_column, answer_column (`str`, *optional*):
            Which columns they are, where the set is not a known one; by default the first of `prompt`, `problem`,
            `question` and of `answer`, `solution`, `target`.
        conversational (`bool`, *optional*, defaults to `False`):
            Whether prompts are messages, the system's first, for models with a chat template. Prompts that are messages
            already stay as they are.
        style (`str` or `PromptStyle`, *optional*, defaults to `"boxed"`):
            One of `PROMPT_STYLES`, or a text with `{problem}` in it.
        tokenizer, max_prompt_tokens (*optional*):
            Rows with more tokens are dropped. They are counted as the trainer makes them, with the chat template.
        decontaminate (sequence of `str`, *optional*):
            Evaluation sets whose problems are dropped, or `all`.
        seed (`int`, *optional*, defaults to 42):
            Of procedural tasks.
        needs_answers (`bool`, *optional*, defaults to `False`):
            Whether a set without a column of answers is refused. If not, it has none here either.

    Raises:
        ValueError: no such file, set, split, column or style; a file that cannot be read as it was written, with the
            line; or no rows left.
        OSError: a file that cannot be opened.
        ConnectionError: the Hub cannot be reached.
    """
    style = resolve_style(style)
    if max_prompt_tokens is not None and tokenizer is None:
        raise ValueError("max_prompt_tokens needs a tokenizer")
    if (name in SETS or name.startswith(GYM)) and (prompt_column or answer_column):
        raise ValueError(f"leave out --prompt_column and --answer_column: the columns of {name!r} are known")
    if name.startswith(GYM):
        rows = reasoning_gym_rows(name.removeprefix(GYM), settings=_settings(config), seed=seed)
        source, report = Dataset.from_list(rows), CleaningReport(name, rows=len(rows))
    elif name in SETS:
        if config is not None:
            raise ValueError(f"leave out --dataset_config: that of {name!r} is known")
        source, report = _load_known(name, data_dir=data_dir, revision=revision, split=split)
    else:
        source = load_other(name, revision=revision, split=split, config=config)
        report = CleaningReport(name, rows=len(source))
        prompt_column = find_column(source, name, prompt_column, PROMPT_COLUMNS, "--prompt_column")
        if needs_answers or answer_column is not None or set(ANSWER_COLUMNS) & set(source.column_names):
            answer_column = find_column(source, name, answer_column, ANSWER_COLUMNS, "--answer_column")
    known = name in SETS or name.startswith(GYM)
    prompt_column, answer_column = prompt_column or "problem", answer_column or ("answer" if known else None)
    data = as_prompts(source, name, prompt_column, answer_column, style=style, conversational=conversational)
    if decontaminate:
        data = _without_overlap(data, problems(source, name, prompt_column), report, decontaminate, data_dir)
    if max_prompt_tokens is not None:
        fits = [i for i, prompt in enumerate(data["prompt"]) if prompt_tokens(prompt, tokenizer) <= max_prompt_tokens]
        report.too_long = len(data) - len(fits)
        data = data.select(fits)
    report.kept = len(data)
    data.info.description = str(report) if report.changed else ""
    # not to be missed: it is another set than the published one
    logger.log(logging.WARNING if report.changed else logging.INFO, "%s", report)
    if len(data) == 0:
        raise ValueError(f"no row of {name!r} is left ({report}): check --max_prompt_tokens and --decontaminate")
    return data


def prompt_tokens(prompt: str | list[dict], tokenizer: Any) -> int:
    """Tokens of a prompt as TRL's GRPOTrainer makes them (without its `chat_template_kwargs`)."""
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    return len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"])


def warn_of_unknown_tokens(prompts: Sequence[str | list[dict]], tokenizer: Any) -> None:
    """Logs a warning where a quarter of the prompts' tokens are unknown ones: such a model can hardly read them."""
    texts = [prompt if isinstance(prompt, str) else str(prompt[-1]["content"]) for prompt in prompts]
    ids = [token for text in texts for token in tokenizer(text)["input_ids"]]
    unknown = ids.count(tokenizer.unk_token_id)
    if tokenizer.unk_token_id is not None and 4 * unknown > len(ids):
        logger.warning(
            "the model's tokenizer does not know %d of the first %d tokens of the data: set --model_name_or_path (the "
            "embedded model knows only the characters of its own task)",
            unknown,
            len(ids),
        )


def _load_known(
    name: str, *, data_dir: str | None, revision: str | None, split: str | None
) -> tuple[Dataset, CleaningReport]:
    known = SETS[name]
    split = split or next(iter(known.splits))
    if split not in known.splits:
        raise ValueError(f"{name!r} has no split {split!r}: set --dataset_split to {' or '.join(known.splits)}")
    if data_dir is not None and revision is not None:
        raise ValueError("--dataset_revision is for the Hub: leave it or --data_dir out")
    if data_dir is None:
        source, where = from_hub(name, split, revision), known.repo
    else:
        path = find_file(name, split, data_dir)
        source, where = read_path(path, split), str(path)
    rows = []
    for i, row in enumerate(source):
        try:
            rows.append({**known.read(row), "id": row_id([row.get(c) for c in IDS], name, i)})
            if not isinstance(rows[-1]["problem"], str):
                raise ValueError("no problem")
        # whatever shape a file of that name may have
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
            place = f"line {source.lines[i]}" if isinstance(source, Records) else f"row {i}"
            raise ValueError(f"{where!r} is not the set {name!r}: {place}: {error}") from error
    rows, report = clean(rows, name=name, drop=not known.evaluation, english=known.english, distinct=known.distinct)
    if not rows:
        raise ValueError(f"{where!r} has no rows")
    data = Dataset.from_list(rows)
    if "level" in data.column_names and not any(level is not None for level in data["level"]):
        data = data.remove_columns("level")
    return data, report


def _without_overlap(
    data: Dataset, texts: list[str], report: CleaningReport, decontaminate: Sequence[str], data_dir: str | None
) -> Dataset:
    sets = [known for known in SETS if SETS[known].evaluation] if "all" in decontaminate else list(decontaminate)
    for known in sets:
        if known not in SETS or "test" not in SETS[known].splits:
            choices = ", ".join(known for known in SETS if "test" in SETS[known].splits)
            raise ValueError(f"{known!r} is no evaluation set: set --decontaminate to all, or to some of {choices}")
        if known == report.name and SETS[known].evaluation:
            raise ValueError(f"{known!r} cannot be free of itself: check --decontaminate")
    evaluation = {
        known: _load_known(known, data_dir=data_dir, revision=None, split="test")[0]["problem"] for known in sets
    }
    found = find_overlap(texts, evaluation)
    ids = data["id"]
    report.overlap = {known: [ids[i] for i in numbers] for known, numbers in found.items()}
    inside = {i for numbers in found.values() for i in numbers}
    return data.select([i for i in range(len(data)) if i not in inside])


def _settings(config: str | dict | None) -> dict:
    try:
        settings = yaml.safe_load(config) if isinstance(config, str) else config or {}
    except yaml.YAMLError as error:
        raise ValueError(f"--dataset_config cannot be read as YAML: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"--dataset_config of a task must be like '{{size: 1000}}', not {config!r}")
    return settings
