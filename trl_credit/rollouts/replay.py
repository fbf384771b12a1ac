"""Training rows, padded or kept beyond their generation batch (SPO, arXiv 2505.23564, App. D)."""

import random
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from ..loss import keys
from ..support.tensor_files import load_tensors, save_tensors


# fields with a number per token: the `array` typecode in memory, between processes and in a file. Advantages come from
# float32 tensors, so float32 rounds nothing
_COLUMNS = dict.fromkeys(("prompt_ids", "completion_ids", "segments", "visible_until"), "i")
_COLUMNS |= dict.fromkeys(("advantages", "sampling_logps", "behavior_logps"), "f") | {"quarters": "b"}


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a training batch: a prefix as prompt, and what was written after it.

    Fields with a number per token become an `array` of int32 or float32 (quarters: int8). A matching array is kept as
    it is, so rows can share it, in memory and when sent to other processes.

    Attributes:
        question: Key of the row's prompt.
        prompt_ids: Prompt and the tokens already written, shape (P,).
        completion_ids: Shape (C,), C ≥ 1.
        advantages: Shape (C,).
        segments: Number of each token's credited segment, −1 for tokens without credit in this row, shape (C,).
        accuracy: p̂ of the prompt in [0, 1], for difficulty weights.
        sampling_logps: Log-probabilities (nats) from the engine that sampled, shape (C,), or `None`.
        behavior_logps: π_old of the training model when the row was made, nats, shape (C,), or `None` if unknown.
        quarters: Quarter of its response, 0 … 3, for each token, −1 if unknown, shape (C,), or `None`; for the metrics.
        birth: Iteration in which the row was made.
        visible_until: For a row with several branches of a tree: tokens i to `visible_until[i] − 1` of prompt and
            completion see token i, shape (P + C,). `None`: all later tokens see it.
        nodes: Numbers in `Node.walk` of the nodes on the way to the row's last node, or of all nodes in the row if it
            has several branches; `None` if unknown.
        segment_nodes: The node of each segment number, or `None`.
    """

    question: str
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    advantages: Sequence[float]
    segments: Sequence[int]
    accuracy: float = float("nan")
    sampling_logps: Sequence[float] | None = None
    behavior_logps: Sequence[float] | None = None
    quarters: Sequence[int] | None = None
    birth: int = 0
    visible_until: Sequence[int] | None = None
    nodes: tuple[int, ...] | None = None
    segment_nodes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, code in _COLUMNS.items():
            values = getattr(self, name)
            if values is not None and getattr(values, "typecode", None) != code:
                object.__setattr__(self, name, array(code, values))


def padded(
    rows: Sequence[Sequence[float]], *, value: float, side: str = "right", width: int | None = None
) -> torch.Tensor:
    """Rows of numbers as a tensor (B, L) of the type of `value` (int64 or float32), which fills the rest.

    L is the length of the longest row, or `width`, which extends it on the right.
    """
    tensors = [torch.tensor(row, dtype=torch.tensor(value).dtype) for row in rows]
    table = pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)
    return table if width is None else pad(table, (0, width - table.size(1)), value=value)


def visible_columns(rows: Sequence[Row], *, prompt_width: int, width: int) -> torch.Tensor:
    """`visible_until` of rows, in the columns of a padded batch: int64, shape (B, P + T).

    TRL passes it to the model as `token_type_ids`, and [`~trl_credit.passes.attention.tree_attention`] turns it into an
    attention mask.
    """
    visible = torch.zeros(len(rows), prompt_width + width, dtype=torch.long)
    for i, row in enumerate(rows):
        left, length = prompt_width - len(row.prompt_ids), len(row.prompt_ids) + len(row.completion_ids)
        visible[i, left : left + length] = left + torch.tensor(row.visible_until or [length] * length)
    return visible


def question_number(key: str) -> int:
    """A key as an int64; 0 for the empty key."""
    return int.from_bytes(bytes.fromhex(key), signed=True)


class ReplayBuffer:
    """Rows by question; each row is drawn at most once, within `life` iterations of its birth.

    Every iteration draws at most `cap` rows of a question, from one question after the other, so that a batch has as
    many questions as possible. The other rows stay until they are too old.

    Args:
        life (`int`):
            Iterations in which a row may be drawn: that of its birth and the next `life − 1`.
        cap (`int` or `None`):
            Maximum number of rows of one question per iteration.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the draws.
        legacy (`bool`, *optional*, defaults to `False`):
            The released code's behaviour: `cap` rows of every question leave the buffer, rows beyond the batch are
            lost, and repetition fills a batch that is too small.
    """

    def __init__(self, *, life: int, cap: int | None, seed: int = 0, legacy: bool = False) -> None:
        self.life, self.cap, self.legacy = life, cap, legacy
        self.iteration = 0
        self.expired = 0  # number of rows, in total
        self._random = random.Random(seed)
        self._rows: list[Row] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rows: Sequence[Row]) -> None:
        """Adds rows, born in the current iteration."""
        self._rows += [replace(row, birth=self.iteration) for row in rows]

    def draw(self, n: int) -> list[Row]:
        """Removes and returns at most `n` rows, and ends the iteration. A batch that takes all rows keeps their order.

        With `legacy` it returns exactly `n` rows unless the buffer is empty.
        """
        by_question: defaultdict[str, list[Row]] = defaultdict(list)
        for row in self._rows:
            if self.iteration - row.birth < self.life:
                by_question[row.question].append(row)
        young = sum(map(len, by_question.values()))
        self.expired += len(self) - young
        if self.legacy:
            drawn = self._draw_legacy(n, by_question)
        elif young <= n and (self.cap is None or all(len(rows) <= self.cap for rows in by_question.values())):
            drawn = [row for rows in by_question.values() for row in rows]
            by_question.clear()
        else:
            drawn = self._draw_in_turn(n, by_question)
        self._rows = [row for rows in by_question.values() for row in rows]
        self.iteration += 1
        return drawn

    def _draw_in_turn(self, n: int, by_question: dict[str, list[Row]]) -> list[Row]:
        drawn: list[Row] = []
        questions = list(by_question)
        self._random.shuffle(questions)
        for _ in range(n if self.cap is None else self.cap):
            questions = questions[: n - len(drawn)]
            for question in questions:
                rows = by_question[question]
                index = self._random.randrange(len(rows))
                rows[index], rows[-1] = rows[-1], rows[index]  # removing the last one is cheap
                drawn.append(rows.pop())
            questions = [question for question in questions if by_question[question]]
        return drawn

    def _draw_legacy(self, n: int, by_question: dict[str, list[Row]]) -> list[Row]:
        union: list[Row] = []
        for rows in by_question.values():
            self._random.shuffle(rows)
            union += rows[: self.cap]
            del rows[: self.cap]
        self._random.shuffle(union)
        while union and len(union) < n:
            union = union + union
        return union[:n]

    def save(self, path: Path) -> None:
        """Writes the rows and the state of the random draws to one safetensors file, whole or not at all."""
        tensors: dict[str, torch.Tensor] = {}
        for name, code in _COLUMNS.items():
            values = [getattr(row, name) for row in self._rows]
            lengths = [-1 if value is None else len(value) for value in values]
            tensors[f"{name}/length"] = torch.tensor(lengths, dtype=torch.int64)
            known = [np.asarray(value) for value in values if value is not None]
            tensors[name] = torch.from_numpy(np.concatenate([np.zeros(0, dtype=code), *known]))
        tensors["accuracy"] = torch.tensor([row.accuracy for row in self._rows], dtype=torch.float64)
        tensors["birth"] = torch.tensor([row.birth for row in self._rows], dtype=torch.int64)
        counts = {"iteration": self.iteration, "expired": self.expired}
        questions = [row.question for row in self._rows]
        save_tensors(path, tensors, state={"questions": questions, "random": self._random.getstate(), **counts})

    def load(self, path: Path) -> None:
        """Restores what `save` wrote. A refused file changes nothing.

        Raises:
            ValueError: the file is missing, was changed, or is not one that `save` wrote.
        """
        tensors, state = load_tensors(path)
        columns: dict[str, list[Any]] = {name: tensors[name].tolist() for name in ("accuracy", "birth")}
        for name in _COLUMNS:
            lengths = tensors[f"{name}/length"].tolist()
            parts = iter(tensors[name].split([length for length in lengths if length >= 0]))
            columns[name] = [None if length < 0 else next(parts).tolist() for length in lengths]
        rows = zip(state["questions"], *columns.values(), strict=True)
        self._rows = [Row(question, **dict(zip(columns, values, strict=True))) for question, *values in rows]
        version, internal, gauss = state["random"]
        self._random.setstate((version, tuple(internal), gauss))
        self.iteration, self.expired = state["iteration"], state["expired"]


def padded_rows(rows: Sequence[Row], *, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Rows as TRL pads them, with `visible_until` if any of them has several branches."""
    prompts, completions = [row.prompt_ids for row in rows], [row.completion_ids for row in rows]
    batch = {
        keys.PROMPT_IDS: padded(prompts, value=pad_token_id, side="left"),
        keys.PROMPT_MASK: padded([[1] * len(ids) for ids in prompts], value=0, side="left"),
        keys.COMPLETION_IDS: padded(completions, value=pad_token_id),
        keys.COMPLETION_MASK: padded([[1] * len(ids) for ids in completions], value=0),
    }
    if any(row.visible_until is not None for row in rows):
        widths = {"prompt_width": batch[keys.PROMPT_IDS].size(1), "width": batch[keys.COMPLETION_IDS].size(1)}
        batch[keys.VISIBLE_UNTIL] = visible_columns(rows, **widths)
    return batch
