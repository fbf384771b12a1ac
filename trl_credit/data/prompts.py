"""Converts the rows of a source to prompts, answers and ids. Errors name the row."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from datasets import Dataset, concatenate_datasets

from ..support.errors import did_you_mean
from .readers import IDS, answer_text
from .sets import PromptStyle, to_prompt


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def find_column(source: Dataset, name: str, wanted: str | None, guesses: Sequence[str], flag: str) -> str:
    """The column that a flag names, or the first of the guesses that exists.

    Raises:
        ValueError: there is no such column.
    """
    columns, names = source.column_names, guesses if wanted is None else [wanted]
    if (column := next((n for n in names if n in columns), None)) is not None:
        return column
    hint = "" if wanted is None else did_you_mean(wanted, columns)
    other = ", or take a --reward that needs no answers" if flag == "--answer_column" else ""
    missing = " or ".join(map(repr, names))
    raise ValueError(f"{name!r} has no column {missing}: set {flag} to one of {', '.join(columns)}{other}{hint}")


def as_prompts(
    source: Dataset,
    name: str,
    prompt_column: str,
    answer_column: str | None,
    *,
    style: PromptStyle,
    conversational: bool,
) -> Dataset:
    """The source with `prompt`, `answer` (text; left out if no column has it) and `id`, beside its other columns.

    Raises:
        ValueError: a prompt is neither text nor messages, or messages although the style is plain text; or an answer
            is neither text nor a number.
    """
    prompts = source[prompt_column][:]
    for row, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"{name!r}, row {row} has no {prompt_column}: remove it, or check --prompt_column")
        if not isinstance(prompt, str) and not are_messages(prompt):
            what = f"column {prompt_column!r} holds neither text nor messages with `role` and `content`"
            raise ValueError(f"{name!r}, row {row}: {what}: write it as text, or check --prompt_column")
    columns: dict[str, Any] = {}
    replaced = source.select_columns([c for c in source.column_names if c not in ("prompt", "answer", "id")])
    if all(isinstance(prompt, str) for prompt in prompts):
        columns["prompt"] = [to_prompt(text, style, conversational=conversational) for text in prompts]
    elif style.chat:
        messages = source.select_columns([prompt_column]).rename_columns({prompt_column: "prompt"})
        replaced = concatenate_datasets([replaced, messages], axis=1)
    else:
        raise ValueError(f"{name!r} holds messages in {prompt_column!r}, and --prompt_style is plain text: change one")
    if answer_column is not None:
        columns["answer"] = pyarrow.array(_answers(source, name, answer_column), pyarrow.string())
    ids = [source[column][:] for column in IDS if column in source.column_names]
    columns["id"] = [row_id([column[i] for column in ids], Path(name).stem, i) for i in range(len(source))]
    return concatenate_datasets([replaced, Dataset(pyarrow.table(columns))], axis=1)


def prompt_ids(tokenizer: "PreTrainedTokenizerBase", prompt: str | list[dict], **template: Any) -> list[int]:
    """Token ids of a prompt as TRL's GRPOTrainer makes them. `template` are its `chat_template_kwargs`."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True, **template)["input_ids"]


def row_id(own: Sequence[object], name: str, number: int) -> str:
    """The row's own id, prefixed with the name of the set if it is just a number; else name and row number."""
    id_ = next((value for value in own if value not in (None, "")), number)
    return f"{name}-{id_}" if str(id_).isdecimal() else str(id_)


def are_messages(prompt: Any) -> bool:
    """Whether a prompt is a list of messages, each with a role and a content."""
    return isinstance(prompt, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message
        for message in prompt
    )


def _answers(source: Dataset, name: str, column: str) -> list[str | None]:
    answers = source[column][:]
    dtype = getattr(source.features[column], "dtype", "")
    if dtype in ("float16", "float32"):  # 0.1 in single precision is 0.10000000149011612 in double
        answers = [None if answer is None else np.dtype(dtype).type(answer) for answer in answers]
    texts = []
    for row, answer in enumerate(answers):
        try:
            texts.append(answer_text(answer))
        except ValueError as error:
            raise ValueError(f"{name!r}, row {row}: column {column!r} holds {error}: check --answer_column") from error
    return texts
