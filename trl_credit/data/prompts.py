"""From the rows of a source to prompts, answers and ids: checked, and named by line where they cannot be right."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Value, concatenate_datasets

from .columns import answer_text, in_pieces, to_dataset
from .files import did_you_mean
from .records import Records
from .sets import PromptStyle, to_prompt


IDS = ("id", "unique_id")
_MADE = ("prompt", "answer", "id")
_TEXT = Value("string")


def find_column(source: Dataset | Records, name: str, wanted: str | None, guesses: tuple[str, ...], flag: str) -> str:
    """The column that a flag names, or the first guess that there is.

    Raises:
        ValueError: there is none.
    """
    if wanted is None:
        found = [c for c in guesses if c in source.column_names]
        if found:
            return found[0]
        wanted = " or ".join(map(repr, guesses))
    elif wanted in source.column_names:
        return wanted
    else:
        wanted = f"{wanted!r}{did_you_mean(wanted, source.column_names)}"
    other = ", or take a --reward that needs no answers" if flag == "--answer_column" else ""
    raise ValueError(f"{name!r} has no column {wanted}: set {flag} to one of {', '.join(source.column_names)}{other}")


def problems(source: Dataset | Records, name: str, column: str) -> list[str]:
    """The text of each problem, of messages that of the last.

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
    """The source with `prompt`, `answer` (text; left out where no column has it) and `id`, beside its other columns.

    Raises:
        ValueError: a prompt is neither text nor messages, or messages where the style is plain text; an answer is
            neither text nor a number; or a column of a text file has no one type.
    """
    prompts = _prompts(source, name, prompt_column)
    parts = [_columns(source, rest, answer_column)] if (rest := _rest(source)) else []
    is_text = all(isinstance(prompt, str) for prompt in prompts)
    if not is_text and not style.chat:
        raise ValueError(
            f"{name!r} holds messages in its column {prompt_column!r}, which want a chat template, and this "
            "--prompt_style is plain text: take another style, or write the prompts as text"
        )
    if not is_text:
        messages = _columns(source, [prompt_column], None)
        parts.append(messages if prompt_column == "prompt" else messages.rename_column(prompt_column, "prompt"))
    answers = [] if answer_column is None else _answers(source, name, answer_column)
    own = [source[column][:] for column in IDS if column in source.column_names]

    def made(part: slice) -> dict[str, list]:
        columns = {}
        if is_text:
            columns["prompt"] = [to_prompt(text, style, conversational=conversational) for text in prompts[part]]
        if answer_column is not None:
            columns["answer"] = answers[part]
        numbers = range(part.start, part.stop)
        return {**columns, "id": [row_id([column[i] for column in own], Path(name).stem, i) for i in numbers]}

    prompt = [{"role": _TEXT, "content": _TEXT}] if conversational else _TEXT
    features = {column: prompt if column == "prompt" else _TEXT for column in made(slice(0, 0))}
    parts.append(in_pieces(len(source), features, made))
    return concatenate_datasets(parts, axis=1)


def _prompts(source: Dataset | Records, name: str, column: str) -> list[str | list[dict]]:
    prompts = source[column][:]
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"{_place(source, name, number)} has no {column}: take it out, or check --prompt_column")
        if not isinstance(prompt, str) and not _are_messages(prompt):
            raise ValueError(
                f"{_place(source, name, number)}: column {column!r} holds a {type(prompt).__name__}, neither text nor "
                "a list of messages with `role` and `content`: write it as text, or check --prompt_column"
            )
    return prompts


def _are_messages(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message
        for message in prompt
    )


def _answers(source: Dataset | Records, name: str, column: str) -> list[str | None]:
    answers = source[column][:]
    if isinstance(source, Dataset) and (narrow := getattr(source.features[column], "dtype", "")) in (
        "float16",
        "float32",
    ):  # 0.1 of single precision is 0.10000000149011612 of double
        answers = [None if answer is None else np.dtype(narrow).type(answer) for answer in answers]
    texts = []
    for number, answer in enumerate(answers):
        try:
            texts.append(answer_text(answer))
        except ValueError as error:
            raise ValueError(
                f"{_place(source, name, number)}: column {column!r} holds {error}: write it as text, or check "
                "--answer_column"
            ) from error
    return texts


def _place(source: Dataset | Records, name: str, number: int) -> str:
    return f"{name!r}, line {source.lines[number]}" if isinstance(source, Records) else f"{name!r}, row {number}"


def _rest(source: Dataset | Records) -> list[str]:
    return [column for column in source.column_names if column not in _MADE]


def _columns(source: Dataset | Records, names: Sequence[str], answer_column: str | None) -> Dataset:
    if isinstance(source, Records):
        return to_dataset(source, names, textual=[c for c in (answer_column, *IDS) if c is not None])
    return source.select_columns(list(names))


def row_id(own: Sequence[object], name: str, number: int) -> str:
    """The row's own id, with the name of the set before it where it is just a number; else name and row number."""
    found = next((value for value in own if value not in (None, "")), number)
    return f"{name}-{found}" if str(found).isdecimal() else str(found)
