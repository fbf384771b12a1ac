"""Loads the prompts and answers of a set: by name, from a file, or from the Hub."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from datasets import Dataset

from ..demo import TASKS
from ..rewards.reasoning_gym import reasoning_gym_rows
from ..support.conversation import asked_in
from ..support.errors import one_line
from .cleaning import CleaningReport, clean, find_overlap
from .prompts import as_prompts, find_column, prompt_ids, row_id
from .readers import FILE_FORMATS, IDS
from .sets import PROMPT_STYLES, SETS, PromptStyle, resolve_style
from .sources import load_known, load_other


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
_ANSWER_COLUMNS = ("answer", "solution", "target")
_GYM = "reasoning_gym:"


def flag(help: str, *, default: Any = None) -> Any:
    """A field that is a flag of the scripts."""
    return field(default=default, metadata={"help": help})


@dataclass
class DataArguments:
    """What to train or evaluate on. Each field is a flag of the scripts."""

    dataset_name: str | None = flag(
        f"{', '.join(SETS)}; reasoning_gym:TASK; a {', '.join(FILE_FORMATS)} file; or a Hub name. Default: the "
        "embedded task."
    )
    data_dir: str | None = flag("Folder with files of the known sets (gsm8k.jsonl, …), used instead of the Hub.")
    dataset_revision: str | None = flag("Commit, tag or branch of a Hub set. Default: pinned for a known set.")
    dataset_config: str | None = flag("Configuration of a Hub set, or the settings of a reasoning_gym task as YAML.")
    dataset_split: str | None = flag("Split to use. Default: train, or test for evaluation sets.")
    prompt_column: str | None = flag("Column of the prompts. Default: prompt, problem or question.")
    answer_column: str | None = flag("Column of the answers. Default: answer, solution or target.")
    prompt_style: str = flag(
        f"{', '.join(PROMPT_STYLES)}, or a text with {{problem}} in it. Write text: before it to use no chat template.",
        default="boxed",
    )
    max_prompt_tokens: int | None = flag("Drop rows whose prompt has more tokens.")
    decontaminate: list[str] | None = flag("Drop problems of these evaluation sets from the data, or of 'all'.")


def load_from_arguments(
    arguments: DataArguments, *, tokenizer: "PreTrainedTokenizerBase", seed: int, needs_answers: bool = True
) -> Dataset:
    """Calls `load_prompts` with the flags. Prompts are messages if the tokenizer has a chat template and the style is
    for chat."""
    if arguments.dataset_name is None:
        raise ValueError("there is no data: set --dataset_name")
    settings = {name.removeprefix("dataset_"): value for name, value in vars(arguments).items()}
    style = resolve_style(settings.pop("prompt_style"))
    settings["conversational"] = style.chat and tokenizer.chat_template is not None
    return load_prompts(**settings, style=style, tokenizer=tokenizer, seed=seed, needs_answers=needs_answers)


def hub_source(arguments: DataArguments) -> tuple[str | None, str | None]:
    """Hub id and revision of what the flags load; `None` if it comes from elsewhere."""
    name, revision = arguments.dataset_name, arguments.dataset_revision
    if name in SETS and arguments.data_dir is None:
        return SETS[name].repo, revision or SETS[name].revision
    is_elsewhere = name is None or name in {*SETS, *TASKS} or name.startswith(_GYM)
    return (None, None) if is_elsewhere or Path(name).suffix.lower() in FILE_FORMATS else (name, revision)


def depends_on_seed(name: str | None) -> bool:
    """Whether the rows of a set are drawn with the seed of the run, as those of the embedded tasks are."""
    return name is None or name in TASKS or name.startswith(_GYM)


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
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    max_prompt_tokens: int | None = None,
    decontaminate: Sequence[str] | None = None,
    seed: int = 42,
    needs_answers: bool = False,
) -> Dataset:
    """Loads a set with the columns `prompt`, `answer` and `id`.

    An answer is text, with the digits that the file has. A known set also has its bare `problem` and, if it has them,
    `level`, `names` and `truth`; other sets keep all their columns, and have no `answer` if no column holds it. All
    columns reach the reward functions. What was dropped or repaired is logged.

    Args:
        name (`str`):
            A set of `SETS`, `reasoning_gym:TASK`, a JSONL, JSON, Parquet or CSV file, or a name on the Hub.
        data_dir (`str`, *optional*):
            Folder that is searched for known sets instead of the Hub, see docs/data.md.
        revision (`str`, *optional*):
            Commit on the Hub, instead of the pin of a known set.
        split (`str`, *optional*):
            Defaults to `train`, or to `test` for evaluation sets.
        config (`str` or `dict`, *optional*):
            Configuration of a Hub set, or settings of a reasoning-gym task.
        prompt_column, answer_column (`str`, *optional*):
            Columns of a set that is not a known one. Default to the first of `prompt`, `problem`, `question` and of
            `answer`, `solution`, `target`.
        conversational (`bool`, *optional*, defaults to `False`):
            Whether prompts become messages, the system message first, for models with a chat template. Prompts that are
            messages already do not change.
        style (`str` or `PromptStyle`, *optional*, defaults to `"boxed"`):
            One of `PROMPT_STYLES`, or a text with `{problem}` in it.
        tokenizer, max_prompt_tokens (*optional*):
            Rows whose prompt has more than `max_prompt_tokens` tokens are dropped. Tokens are counted as in the
            trainer, with the chat template.
        decontaminate (sequence of `str`, *optional*):
            Evaluation sets whose problems are dropped, or `all`.
        seed (`int`, *optional*, defaults to 42):
            Seed of procedural tasks.
        needs_answers (`bool`, *optional*, defaults to `False`):
            Whether a set without a column of answers is refused; otherwise it is loaded without one.

    Raises:
        ValueError: there is no such file, set, split, column or style; a file cannot be read as it was written (the
            message gives the line); or no rows are left.
        OSError: a file cannot be opened.
        ConnectionError: the Hub cannot be reached.
    """
    style = resolve_style(style)
    if max_prompt_tokens is not None and tokenizer is None:
        raise ValueError("max_prompt_tokens needs a tokenizer")
    is_task = name.startswith(_GYM)
    if name in SETS:
        source, report = _load_set(name, data_dir=data_dir, revision=revision, split=split)
    elif is_task:
        source = Dataset.from_list(reasoning_gym_rows(name.removeprefix(_GYM), settings=_mapping(config), seed=seed))
    else:
        source = load_other(name, revision=revision, split=split, config=config)
    if name not in SETS:
        report = CleaningReport(name, rows=len(source))
    if name in SETS or is_task:
        if prompt_column or answer_column or (config is not None and not is_task):
            flags = "--prompt_column, --answer_column and --dataset_config"
            raise ValueError(f"{name!r} has its own {flags}: leave them out")
        prompt_column, answer_column = "problem", "answer"
    else:
        prompt_column = find_column(source, name, prompt_column, ("prompt", "problem", "question"), "--prompt_column")
        if needs_answers or answer_column is not None or set(_ANSWER_COLUMNS) & set(source.column_names):
            answer_column = find_column(source, name, answer_column, _ANSWER_COLUMNS, "--answer_column")
    data = as_prompts(source, name, prompt_column, answer_column, style=style, conversational=conversational)
    dropped: set[int] = set()
    if decontaminate:
        overlap = find_overlap(map(asked_in, source[prompt_column]), _evaluation_sets(name, decontaminate, data_dir))
        for known, rows in overlap.items():
            report.drop(f"that are in {known}", data.select(rows))
            dropped.update(rows)
    if max_prompt_tokens is not None:
        lengths = [len(prompt_ids(tokenizer, prompt)) for prompt in data["prompt"]]
        long = [i for i, length in enumerate(lengths) if length > max_prompt_tokens and i not in dropped]
        report.drop("with too long a prompt", data.select(long))
        dropped.update(long)
    data = data.select([i for i in range(len(data)) if i not in dropped])
    report.kept = len(data)
    has_changed = bool(report.dropped or report.repaired)
    data.info.description = str(report) if has_changed else ""
    # a warning, since the set is not the published one
    logger.log(logging.WARNING if has_changed else logging.INFO, "%s", report)
    if len(data) == 0:
        raise ValueError(f"no row of {name!r} is left ({report}): check --max_prompt_tokens and --decontaminate")
    return data


def warn_of_unknown_tokens(prompts: Sequence[str | list[dict]], tokenizer: "PreTrainedTokenizerBase") -> None:
    """Logs a warning if a quarter of the prompts' tokens are unknown: such a model can hardly read them."""
    ids = [token for prompt in prompts for token in tokenizer(asked_in(prompt))["input_ids"]]
    unknown = ids.count(tokenizer.unk_token_id)
    if tokenizer.unk_token_id is not None and 4 * unknown > len(ids):
        what = f"the model's tokenizer does not know {unknown} of the first {len(ids)} tokens of the data"
        logger.warning("%s: set --model_name_or_path (the embedded model knows only its own task)", what)


def _load_set(
    name: str, *, data_dir: str | None, revision: str | None, split: str | None
) -> tuple[Dataset, CleaningReport]:
    known = SETS[name]
    if (split := split or next(iter(known.splits))) not in known.splits:
        raise ValueError(f"{name!r} has no split {split!r}: set --dataset_split to {' or '.join(known.splits)}")
    if data_dir is not None and revision is not None:
        raise ValueError("--dataset_revision is for the Hub: leave it or --data_dir out")
    source, where = load_known(name, split, revision=revision, data_dir=data_dir)
    rows = []
    for i, row in enumerate(source):
        try:
            rows.append({**known.read(row), "id": row_id([row.get(column) for column in IDS], name, i)})
            if not isinstance(rows[-1]["problem"], str):
                raise ValueError("no problem")
        # a file of that name may have any shape
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"{where!r} is not the set {name!r}: row {i}: {error}") from error
    rows, report = clean(rows, name=name, drop=not known.evaluation, english=known.english, distinct=known.distinct)
    if not rows:
        raise ValueError(f"{where!r} has no rows")
    data = Dataset.from_list(rows)
    if "level" in data.column_names and set(data["level"]) == {None}:
        data = data.remove_columns("level")
    return data, report


def _evaluation_sets(name: str, decontaminate: Sequence[str], data_dir: str | None) -> dict[str, list[str]]:
    """The problems of the sets of `--decontaminate`, by name."""
    sets = [known for known in SETS if SETS[known].evaluation] if "all" in decontaminate else decontaminate
    if unknown := [known for known in sets if known not in SETS or "test" not in SETS[known].splits]:
        choices = ", ".join(known for known in SETS if "test" in SETS[known].splits)
        raise ValueError(f"{unknown[0]!r} is not an evaluation set: set --decontaminate to all or some of {choices}")
    if name in sets and SETS[name].evaluation:
        raise ValueError(f"{name!r} is itself in --decontaminate: name other sets")
    return {known: _load_set(known, data_dir=data_dir, revision=None, split="test")[0]["problem"] for known in sets}


def _mapping(config: str | dict | None) -> dict:
    try:
        return dict((yaml.safe_load(config) if isinstance(config, str) else config) or {})
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ValueError(f"--dataset_config={config!r} must be like '{{size: 1000}}': {one_line(error)}") from error
