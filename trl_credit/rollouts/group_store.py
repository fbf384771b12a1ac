"""Groups that wait for a later batch, and their file in a checkpoint."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..loss.batch_rows import Row
from ..support.tensor_files import load_tensors, save_tensors


REWARDS = ("rewards", "rewards_per_func", "correct")  # of a `Batch`, for the rows of all processes


@dataclass
class Group:
    """The responses to one prompt, on the CPU, the same on all processes.

    Attributes:
        rows: Entries of each response, see [`~trl_credit.loss.batch_rows.split_rows`].
        rewards, rewards_per_func, correct: As in [`~trl_credit.loss.batch.Batch`], shapes (G,), (G, functions), (G,).
        examples: The row of the data set of each response.
        logged: The entry of each response in the table of completions.
        born: Optimizer steps before it was sampled.
    """

    rows: list[Row]
    rewards: torch.Tensor
    rewards_per_func: torch.Tensor
    correct: torch.Tensor
    examples: list[dict[str, Any]]
    logged: list[dict[str, Any]]
    born: int

    @property
    def texts(self) -> dict[str, Any]:
        """What is not a tensor."""
        return {"examples": self.examples, "logged": self.logged, "born": self.born}


def is_storable(group: Group) -> bool:
    """Whether a checkpoint can keep the group: its rows of the data set and what was logged must be JSON types."""
    try:
        json.dumps(group.texts)
    except (TypeError, ValueError):
        return False
    return True


def save_groups(path: Path, groups: Sequence[Group]) -> None:
    """Writes groups to one safetensors file, whole or not at all."""
    tensors: dict[str, torch.Tensor] = {}
    for i, group in enumerate(groups):
        tensors |= {f"{i}/{name}": getattr(group, name).cpu().contiguous() for name in REWARDS}
        tensors |= {f"{i}/{j}/{name}": x.contiguous() for j, row in enumerate(group.rows) for name, x in row.items()}
    save_tensors(path, tensors, state=[group.texts for group in groups])


def load_groups(path: Path) -> list[Group]:
    """The groups that [`save_groups`] wrote.

    Raises:
        ValueError: the file is missing, was changed, or is not one that `save_groups` wrote.
    """
    try:
        tensors, texts = load_tensors(path)
        rows: list[list[Row]] = [[{} for _ in text["examples"]] for text in texts]
        for name, x in tensors.items():
            i, _, rest = name.partition("/")
            if rest not in REWARDS:
                j, _, entry = rest.partition("/")
                rows[int(i)][int(j)][entry] = x
        parts = [[tensors[f"{i}/{name}"] for name in REWARDS] for i in range(len(texts))]
        return [Group(own, *part, **text) for own, part, text in zip(rows, parts, texts, strict=True)]
    except (LookupError, TypeError, ValueError) as error:
        what = f"cannot restore the waiting groups from {path} ({error})"
        raise ValueError(f"{what}: resume from another checkpoint.") from error
