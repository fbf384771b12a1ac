"""Converts the rows of a source to prompts, answers and ids. Errors name the line."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from datasets import Dataset, concatenate_datasets

from ..support.errors import did_you_mean
from .readers import Records, answer_text, place, to_dataset
from .sets import PromptStyle, to_prompt


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IDS = ("id", "unique_id")
_MADE = ("prompt", "answer", "id")


def find_column(source: Dataset | Records, name: str, given: str | None, guesses: Sequence[str], flag: str) -> str:
    """The column that a flag names, or the first of the guesses that exists.

    Raises:
        ValueError: there is no such column.
    """
    columns, names = source.column_names, guesses if given is None else [given]
    found = [column for column in names if column in columns]
    if found:
        return found[0]
    hint = "" if given is None else did_you_mean(given, columns)
    other = ", or take a --reward that needs no answers" if flag == "--answer_column" else ""
    missing = " or ".join(map(repr, names))
    raise ValueError(f"{name!r} has no column {missing}: set {flag} to one of {', '.join(columns)}{other}{hint}")


def problems(source: Dataset | Records, name: str, column: str) -> list[str]:
    """The text of each problem, or of the last message if problems are messages.

    Raises:
        ValueError: a prompt is neither text nor messages, or empty.
    """
    return [p if isinstance(p, str) else str(p[-1]["content"]) for p in _prompts(source, name, column)]


def as_prompts(
    source: Dataset | Records,
    name: str,
    prompt_column: str,
    answer_column: str | None,
    *,
    style: PromptStyle,
    conversational: bool,
) -> Dataset:
    """The source with `prompt`, `answer` (text; left out if no column has it) and `id`, beside its other columns.

    Raises:
        ValueError: a prompt is neither text nor messages, or messages although the style is plain text; an answer is
            neither text nor a number; or a column of a text file has no single type.
    """
    prompts = _prompts(source, name, prompt_column)
    kept = [column for column in source.column_names if column not in _MADE]
    parts = [_columns(source, kept, answer_column)] if kept else []
    made = {}
    if all(isinstance(prompt, str) for prompt in prompts):
        made["prompt"] = pyarrow.array([to_prompt(text, style, conversational=conversational) for text in prompts])
    elif style.chat:
        parts.append(_columns(source, [prompt_column], None).rename_columns({prompt_column: "prompt"}))
    else:
        where = f"{name!r} holds messages in its column {prompt_column!r}"
        raise ValueError(f"{where}, and this --prompt_style is plain text: take another style, or write them as text")
    if answer_column is not None:
        made["answer"] = pyarrow.array(_answers(source, name, answer_column), pyarrow.string())
    ids = [source[column][:] for column in IDS if column in source.column_names]
    made["id"] = [row_id([column[i] for column in ids], Path(name).stem, i) for i in range(len(source))]
    return concatenate_datasets([*parts, Dataset(pyarrow.table(made))], axis=1)


def prompt_ids(tokenizer: "PreTrainedTokenizerBase", prompt: str | list[dict]) -> list[int]:
    """Token ids of a prompt as TRL's GRPOTrainer makes them (without its `chat_template_kwargs`)."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]


def row_id(own: Sequence[object], name: str, number: int) -> str:
    """The row's own id, prefixed with the name of the set if it is just a number; else name and row number."""
    found = next((value for value in own if value not in (None, "")), number)
    return f"{name}-{found}" if str(found).isdecimal() else str(found)


def _prompts(source: Dataset | Records, name: str, column: str) -> list[str | list[dict]]:
    prompts = source[column][:]
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"{name!r}, {place(source, number)} has no {column}: remove it, or check --prompt_column")
        if not isinstance(prompt, str) and not are_messages(prompt):
            what = f"column {column!r} holds a {type(prompt).__name__}, not text or messages with `role` and `content`"
            raise ValueError(f"{name!r}, {place(source, number)}: {what}: write it as text, or check --prompt_column")
    return prompts


def are_messages(prompt: Any) -> bool:
    """Whether a prompt is a list of messages, each with a role and a content."""
    return isinstance(prompt, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message
        for message in prompt
    )


def _answers(source: Dataset | Records, name: str, column: str) -> list[str | None]:
    answers = source[column][:]
    narrow = getattr(source.features[column], "dtype", "") if isinstance(source, Dataset) else ""
    if narrow in ("float16", "float32"):  # 0.1 in single precision is 0.10000000149011612 in double
        answers = [None if answer is None else np.dtype(narrow).type(answer) for answer in answers]
    texts = []
    for number, answer in enumerate(answers):
        try:
            texts.append(answer_text(answer))
        except ValueError as error:
            where = f"{name!r}, {place(source, number)}: column {column!r}"
            raise ValueError(f"{where} holds {error}: write it as text, or check --answer_column") from error
    return texts


def _columns(source: Dataset | Records, names: Sequence[str], answer_column: str | None) -> Dataset:
    if isinstance(source, Records):
        return to_dataset(source, names, textual=[answer_column, *IDS])
    return source.select_columns(list(names))
