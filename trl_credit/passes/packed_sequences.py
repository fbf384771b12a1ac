"""Packed sequences: rows one after the other, for attention whose kernels take sequences of unequal lengths."""

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
import trl
from packaging.version import Version
from torch import nn


KERNELS = ("flash_attention_2", "flash_attention_3", "flash_attention_4")


def takes_packed_sequences(model: nn.Module) -> bool:
    """Whether a model passes the lengths of sequences on, and TRL computes no logits of the prompts between them."""
    parameters = inspect.signature(type(model).forward).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return takes_all and Version(trl.__version__) >= Version("1.14")


def sequence_attention(model: nn.Module, lengths: Sequence[int], device: torch.device) -> AbstractContextManager:
    """A context in which forward passes over one row treat it as sequences of these lengths (tokens).

    Kernels get the lengths. Other attention of transformers finds the sequences by their positions, which start at 0.
    """
    bounds = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    positions = torch.cat([torch.arange(n) for n in lengths]).to(device)
    given = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    given |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    given |= {"position_ids": positions.unsqueeze(0), "attention_mask": None}
    return model.register_forward_pre_hook(lambda module, args, kwargs: (args, kwargs | given), with_kwargs=True)
