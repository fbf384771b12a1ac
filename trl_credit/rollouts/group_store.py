"""Groups that wait for a later batch, and their file in a checkpoint."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..loss.batch_rows import Row
from ..support.files import atomic_file


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
    text = json.dumps([group.texts for group in groups])
    with atomic_file(path) as partial:
        save_file(tensors, partial, metadata={"groups": text, "sha256": _checksum(tensors, text)})


def load_groups(path: Path) -> list[Group]:
    """The groups that [`save_groups`] wrote.

    Raises:
        ValueError: the file is missing, was changed, or is not one that `save_groups` wrote.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            texts = json.loads(metadata["groups"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        if metadata["sha256"] != _checksum(tensors, metadata["groups"]):
            raise ValueError("its checksum does not match its content")
        rows: list[list[Row]] = [[{} for _ in text["examples"]] for text in texts]
        for name, x in tensors.items():
            i, _, rest = name.partition("/")
            if rest not in REWARDS:
                j, _, entry = rest.partition("/")
                rows[int(i)][int(j)][entry] = x
        found = []
        for i, text in enumerate(texts):
            found.append(Group(rows[i], *(tensors[f"{i}/{name}"] for name in REWARDS), **text))
    except (OSError, LookupError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        what = f"cannot restore the waiting groups from {path} ({error})"
        raise ValueError(f"{what}: resume from another checkpoint.") from error
    return found


def _checksum(tensors: dict[str, torch.Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
