"""The data sets that are known by name, how a row of each is read, and the prompts of the papers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import yaml

from ..rewards import extract_answer
from ..support.errors import choose
from .readers import answer_text


_AS_TEXT = "text:"


@dataclass(frozen=True)
class Split:
    """One split of a set: its name on the Hub, its configuration, and further names that its file may have."""

    hub: str
    config: str | None = None
    files: Sequence[str] = ()


@dataclass(frozen=True)
class DataSet:
    """A set of problems.

    Args:
        repo (`str`):
            Repository on the Hub.
        read (`Callable`):
            Maps a row of the Hub or of a file to a dict with `problem`, `answer` and what else the set has.
        splits (`dict[str, Split]`):
            Splits by name; the first is the default.
        revision (`str`, *optional*):
            The commit that it is pinned to, 40 hexadecimal digits.
        evaluation (`bool`):
            Whether the set is for evaluation: cleaning drops no rows, and `decontaminate="all"` includes it.
        english, distinct, copies (`bool`):
            Cleaning: whether Chinese rows are dropped, whether duplicates and conflicting golds are dropped, and
            whether the Hub holds every row many times.
    """

    repo: str
    read: Callable[[dict], dict]
    splits: dict[str, Split]
    revision: str | None = None
    evaluation: bool = False
    english: bool = False
    distinct: bool = False
    copies: bool = False


@dataclass(frozen=True)
class PromptStyle:
    """`template`, which contains `{problem}`, is the user's message. It follows the `system` message if there is one.

    `chat=False` is for base models: the prompt stays plain text even if the tokenizer has a chat template. The prefix
    `text:` before a name or a template sets `chat=False`.
    """

    template: str = "{problem}"
    system: str | None = None
    chat: bool = True


def read_problem(row: dict) -> dict:
    """Reads `problem`, `question` or `prompt` with an `answer`, or a `final_answer`, which is a list with one entry or
    several: most sets, and the files of all."""
    return _problem(_first(row, "problem", "question", "prompt"), _first(row, "final_answer", "answer"))


def read_gsm8k(row: dict) -> dict:
    """`answer` may be the solution that ends in `#### 72`."""
    problem = read_problem(row)
    return {**problem, "answer": (problem["answer"] or "").rpartition("####")[2].strip()}


def read_math(row: dict) -> dict:
    """Without an `answer`, the gold is what the solution boxes. `level` is "Level 5", or "Level ?" in two rows."""
    answer = row["answer"] if "answer" in row else extract_answer(_first(row, "solution")) or ""
    level = str(row.get("level", "")).removeprefix("Level ")
    return _problem(_first(row, "problem"), answer, level=int(level) if level.isdecimal() else None)


def read_dapo(row: dict) -> dict:
    """`prompt` is one message, the problem in the style `dapo`; the gold is in `reward_model`."""
    if isinstance(problem := _first(row, "problem", "prompt"), list):
        problem = problem[-1]["content"]
    gold = row["reward_model"]["ground_truth"] if "reward_model" in row else _first(row, "answer", "solution")
    before, after = PROMPT_STYLES["dapo"].template.split("{problem}")
    return _problem(problem.removeprefix(before).removesuffix(after), gold)


def read_orz(row: dict) -> dict:
    """A pair of turns: the question, and the assistant's with `ground_truth`. As JSON of lists, columns `0` and `1`."""
    if "0" not in row and "conversations" not in row:
        return read_problem(row)
    question, reply = row["conversations"] if "conversations" in row else (row["0"], row["1"])
    return _problem(question["value"].strip(), reply["ground_truth"]["value"])


def read_knights_and_knaves(row: dict) -> dict:
    """`names`, and who is a knight in `truth`; the answer is the list of "(1) Zoey is a knight"."""
    answer = _first(row, "answer", "solution_text_format")
    truth = [bool(knight) for knight in _first(row, "truth", "solution")]
    return _problem(_first(row, "problem", "quiz"), answer, names=list(_first(row, "names")), truth=truth)


def resolve_style(style: str | PromptStyle) -> PromptStyle:
    """A style by its name, or by a text with `{problem}` in it; after `text:`, the same without chat template.

    Raises:
        ValueError: no style has that name.
    """
    if isinstance(style, PromptStyle):
        return style
    if style in PROMPT_STYLES:
        return PROMPT_STYLES[style]
    if style.startswith(_AS_TEXT):
        return replace(resolve_style(style.removeprefix(_AS_TEXT)), chat=False)
    if "{problem}" in style:
        return PromptStyle(style)
    raise ValueError(f"unknown --prompt_style {style!r}, without {{problem}} in it{choose(style, PROMPT_STYLES)}")


def to_prompt(problem: str | list[dict], style: PromptStyle, *, conversational: bool) -> str | list[dict]:
    """A problem in its style: messages, or their text with an empty line between them. Messages do not change."""
    if not isinstance(problem, str):
        return problem
    # not str.format, since problems and templates are full of braces
    text = style.template.replace("{problem}", problem)
    if not conversational:
        return text if style.system is None else f"{style.system}\n\n{text}"
    system = [] if style.system is None else [{"role": "system", "content": style.system}]
    return [*system, {"role": "user", "content": text}]


def _problem(problem: object, answer: object, **others: object) -> dict:
    return {"problem": problem, "answer": answer_text(answer), **others}


def _first(row: dict, *columns: str) -> object:
    for column in columns:
        if column in row:
            return row[column]
    raise ValueError(f"there is no column {' or '.join(columns)}, but {', '.join(map(str, row))}")


def _from_yaml(name: str) -> dict[str, dict]:
    return yaml.safe_load((files(__package__) / f"{name}.yaml").read_text(encoding="utf-8"))


def _data_set(read: str = "problem", *, splits: dict[str, dict], **fields: Any) -> DataSet:
    splits = {name: Split(**split) for name, split in splits.items()}
    return DataSet(read=globals()[f"read_{read}"], splits=splits, **fields)


SETS = {name: _data_set(**fields) for name, fields in _from_yaml("sets").items()}
PROMPT_STYLES = {name: PromptStyle(**fields) for name, fields in _from_yaml("prompt_styles").items()}
