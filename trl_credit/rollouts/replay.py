"""Training rows that outlive the generation batch they were made in (SPO, arXiv 2505.23564, App. D)."""

import hashlib
import json
import random
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..files import put_in_place


class Column(NamedTuple):
    """How numbers by token are kept: `array`'s letter in memory and between processes, the type in a file."""

    code: str
    dtype: torch.dtype


_COLUMNS = {
    "prompt_ids": Column("i", torch.int64),
    "completion_ids": Column("i", torch.int64),
    "advantages": Column("f", torch.float64),  # of tensors of float32, so that nothing is rounded
    "segments": Column("i", torch.int64),
    "sampling_logps": Column("f", torch.float32),
    "behavior_logps": Column("f", torch.float32),
    "quarters": Column("b", torch.int64),
    "visible_until": Column("i", torch.int64),
}
_OPTIONAL = ("quarters",)  # which buffers of 0.1 do not have


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a training batch: a prefix as prompt, and what was written after it.

    What has a number per token becomes an `array` of int32 or float32 (quarters: int8), whatever sequence is given; an
    array that is one already is kept, so that rows may share it, in memory and in what is sent to other processes.

    Attributes:
        question: Key of the prompt that the row belongs to.
        prompt_ids: Prompt and the tokens already written, shape (P,).
        completion_ids: Shape (C,), C ≥ 1.
        advantages: Shape (C,).
        segments: Number of the credited segment of each token, −1 where this row does not credit it, shape (C,).
        accuracy: p̂ of the prompt in [0, 1], for difficulty weights.
        sampling_logps: Of the engine that wrote the completion, nats, shape (C,), or `None`.
        behavior_logps: π_old of the training model when the row was made, shape (C,), or `None` while unknown.
        quarters: Quarter of its response, 0 … 3, that each token lies in, −1 where that is not known, shape (C,), or
            `None`; for the metrics.
        birth: Iteration in which the row was made.
        visible_until: For a row that holds several branches of a tree: token i of prompt and completion is seen by the
            tokens from i up to, and without, this one; shape (P + C,). `None` where that is all that follow.
        nodes: Of its tree, by their numbers in `Node.walk`: those on the way to the row's last node, or all those in
            the row where it holds several branches. `None` where that is not known any more.
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
        for name, (code, _) in _COLUMNS.items():
            values = getattr(self, name)
            if values is not None and getattr(values, "typecode", None) != code:
                object.__setattr__(self, name, array(code, values))


def question_key(prompt_ids: Sequence[int]) -> str:
    """A short key that is the same for the same prompt tokens, in every process and run."""
    return hashlib.blake2b(json.dumps(list(prompt_ids)).encode(), digest_size=8).hexdigest()


def question_number(key: str) -> int:
    """A key as an integer that a tensor of type int64 holds; 0 for that of no question."""
    return int.from_bytes(bytes.fromhex(key), signed=True)


class ReplayBuffer:
    """Rows by question, each drawn once at most, within `life` iterations of its birth.

    Every iteration draws from at most `cap` rows of a question, in turn from one question after the other, so that as
    many questions as possible are in a batch. What is not drawn stays until it is too old.

    Args:
        life (`int`):
            Iterations in which a row may be drawn: that of its birth and the `life − 1` after it.
        cap (`int` or `None`):
            Rows of one question per iteration, at most.
        seed (`int`, *optional*, defaults to `0`):
            Of the draws.
        legacy (`bool`, *optional*, defaults to `False`):
            The released code's behaviour: `cap` rows of every question are taken out, what exceeds the batch is lost,
            and a batch that is not full is filled by repetition.
    """

    def __init__(self, *, life: int, cap: int | None, seed: int = 0, legacy: bool = False) -> None:
        self.life, self.cap, self.legacy = life, cap, legacy
        self.iteration = 0
        self.expired = 0  # rows, in all
        self._random = random.Random(seed)
        self._rows: dict[str, list[Row]] = defaultdict(list)

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def add(self, rows: Sequence[Row]) -> None:
        """Takes in rows, born in the iteration that runs."""
        for row in rows:
            self._rows[row.question].append(replace(row, birth=self.iteration))

    def draw(self, n: int) -> list[Row]:
        """At most `n` rows, which leave the buffer; ends the iteration. A batch that takes all rows keeps their order.

        With `legacy`, exactly `n` unless the buffer is empty.
        """
        self._expire()
        if not self.legacy and (self.cap is None or max(map(len, self._rows.values()), default=0) <= self.cap):
            if len(self) <= n:
                drawn = [row for rows in self._rows.values() for row in rows]
                self._rows.clear()
                self.iteration += 1
                return drawn
        drawn = self._draw_legacy(n) if self.legacy else self._draw_in_turn(n)
        self.iteration += 1
        return drawn

    def _expire(self) -> None:
        for question in list(self._rows):
            rows = self._rows[question]
            young = [row for row in rows if self.iteration - row.birth < self.life]
            self.expired += len(rows) - len(young)
            if young:
                self._rows[question] = young
            else:
                del self._rows[question]

    def _draw_in_turn(self, n: int) -> list[Row]:
        questions = list(self._rows)
        self._random.shuffle(questions)
        drawn: list[Row] = []
        taken = 0
        while questions and len(drawn) < n and (self.cap is None or taken < self.cap):
            questions = questions[: n - len(drawn)]
            for question in questions:
                rows = self._rows[question]
                index = self._random.randrange(len(rows))
                rows[index], rows[-1] = rows[-1], rows[index]  # so that the removal costs nothing
                drawn.append(rows.pop())
            questions = [question for question in questions if self._rows[question]]
            taken += 1
        for question in [question for question, rows in self._rows.items() if not rows]:
            del self._rows[question]
        return drawn

    def _draw_legacy(self, n: int) -> list[Row]:
        union: list[Row] = []
        for question in list(self._rows):
            rows = self._rows.pop(question)
            self._random.shuffle(rows)
            cap = len(rows) if self.cap is None else self.cap
            union += rows[:cap]
            if rows[cap:]:
                self._rows[question] = rows[cap:]
        self._random.shuffle(union)
        while union and len(union) < n:
            union = union + union
        return union[:n]

    def save(self, path: Path) -> None:
        """Writes the rows and the state of the draws to one safetensors file, whole or not at all."""
        rows = [row for group in self._rows.values() for row in group]
        tensors: dict[str, torch.Tensor] = {}
        for name, (code, dtype) in _COLUMNS.items():
            values = [getattr(row, name) for row in rows]
            lengths = [-1 if value is None else len(value) for value in values]
            tensors[f"{name}/length"] = torch.tensor(lengths, dtype=torch.int64)
            known = [np.asarray(value) for value in values if value is not None]
            tensors[name] = torch.from_numpy(np.concatenate([np.zeros(0, dtype=code), *known])).to(dtype)
        tensors["accuracy"] = torch.tensor([row.accuracy for row in rows], dtype=torch.float64)
        tensors["birth"] = torch.tensor([row.birth for row in rows], dtype=torch.int64)
        version, internal, gauss = self._random.getstate()
        state = {
            "questions": [row.question for row in rows],
            "iteration": self.iteration,
            "expired": self.expired,
            "random": [version, list(internal), gauss],
        }
        partial = path.with_suffix(".partial")
        text = json.dumps(state)
        save_file(tensors, partial, metadata={"state": text, "sha256": _checksum(tensors, text)})
        put_in_place(partial, path)

    def load(self, path: Path) -> None:
        """Restores what `save` wrote.

        Raises:
            ValueError: the file is missing, is not one that `save` wrote, or has been changed since.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                state = json.loads(metadata["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            # those of 0.1 have no checksum
            if metadata.get("sha256", whole := _checksum(tensors, metadata["state"])) != whole:
                raise ValueError("its checksum is not that of its content")
            rows = _unpack(tensors, state["questions"])
            version, internal, gauss = state["random"]
            self._random.setstate((version, tuple(internal), gauss))
            self.iteration, self.expired = int(state["iteration"]), int(state["expired"])
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise ValueError(
                f"cannot restore the replay buffer from {path} ({error}): resume from another checkpoint."
            ) from error
        self._rows.clear()
        for row in rows:
            self._rows[row.question].append(row)


def _checksum(tensors: dict[str, torch.Tensor], state: str) -> str:
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].numpy())
    return digest.hexdigest()


def _unpack(tensors: dict[str, torch.Tensor], questions: list[str]) -> list[Row]:
    columns: dict[str, list[Any]] = {}
    for name in _COLUMNS:
        if name in _OPTIONAL and name not in tensors:
            columns[name] = [None] * len(questions)
            continue
        lengths = tensors[f"{name}/length"].tolist()
        parts = iter(tensors[name].split([length for length in lengths if length >= 0]))
        columns[name] = [None if length < 0 else next(parts).tolist() for length in lengths]
    columns["accuracy"], columns["birth"] = tensors["accuracy"].tolist(), tensors["birth"].tolist()
    return [
        Row(question, **{name: values[i] for name, values in columns.items()}) for i, question in enumerate(questions)
    ]
