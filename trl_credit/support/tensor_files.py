"""Tensors and JSON in one safetensors file: the large parts of a checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .files import atomic_file


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], *, state: Any) -> None:
    """Writes contiguous tensors of the CPU and `state`, of JSON types, whole or not at all."""
    with atomic_file(path) as partial:
        save_file(dict(tensors), partial, metadata={"state": json.dumps(state)})


def load_tensors(path: Path) -> tuple[dict[str, torch.Tensor], Any]:
    """The tensors and the state that [`save_tensors`] wrote.

    Raises:
        ValueError: the file is missing, damaged, or not one that `save_tensors` wrote.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads((file.metadata() or {})["state"])
    except (KeyError, OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{path.name} is missing or damaged: {error}") from error
