"""Tensors and JSON in one safetensors file, with a checksum: the large parts of a checkpoint."""

import hashlib
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
    text = json.dumps(state)
    with atomic_file(path) as partial:
        save_file(dict(tensors), partial, metadata={"state": text, "sha256": _checksum(tensors, text)})


def load_tensors(path: Path) -> tuple[dict[str, torch.Tensor], Any]:
    """The tensors and the state that [`save_tensors`] wrote.

    Raises:
        ValueError: the file is missing, was changed, or is not one that `save_tensors` wrote.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        text, checksum = metadata["state"], metadata["sha256"]
    except KeyError as error:
        raise ValueError(f"it has no {error}") from error
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(str(error)) from error
    if checksum != _checksum(tensors, text):
        raise ValueError("its checksum does not match its content")
    return tensors, json.loads(text)


def _checksum(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        if tensors[name].numel():  # an empty tensor may have strides that `view` refuses
            digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
