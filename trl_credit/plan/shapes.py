"""A model in numbers: from its configuration, without its weights, or from what is said of it."""

import re
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from ..mistakes import one_line
from .formulas import Shape


VOCABULARY = 151_936  # Qwen's, where nothing is said
_UNITS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def read_shape(name: str, *, revision: str | None = None, adapter: Any = None) -> Shape:
    """The shape of a model in a folder or in the cache of the Hub. Neither weights nor network are needed.

    Args:
        name (`str`):
            A folder with `config.json`, or a name on the Hub.
        revision (`str`, *optional*):
            Of the Hub.
        adapter (`peft.PeftConfig`, *optional*):
            Of a LoRA that is trained in the place of the weights.

    Raises:
        ValueError: no configuration is at hand, or transformers has no such architecture.
    """
    fix = "give --parameters, --layers and --hidden_size, such as --parameters 1.5B --layers 28 --hidden_size 1536"
    try:
        config = AutoConfig.from_pretrained(name, revision=revision, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"no configuration of {name!r} is in a folder or in the cache of the Hub: {fix}") from error
    try:
        return shape_of(config, adapter=adapter)
    except (ValueError, ImportError, AttributeError) as error:
        raise ValueError(f"{name!r} cannot be counted ({one_line(error)[:80]}): {fix}") from error


def shape_of(config: Any, *, adapter: Any = None) -> Shape:
    """The shape of a model with this configuration, whose tensors are made without memory. Raises what transformers
    does."""
    said = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    finally:
        logging.set_verbosity(said)
    text = config.get_text_config()
    head = model.get_output_embeddings().weight
    ends = {id(head), id(model.get_input_embeddings().weight)}
    share = _expert_share(text)
    matrix = 0
    for key, p in model.named_parameters():
        if p.dim() > 1 and id(p) not in ends:
            matrix += int(p.numel() * (share if ".experts." in key else 1))
    heads = text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    names = [key for key, _ in model.named_parameters()]
    total, trained = sum(p.numel() for p in model.parameters()), None
    if adapter is not None:
        from peft import get_peft_model

        with torch.device("meta"):
            model = get_peft_model(model, adapter, low_cpu_mem_usage=True)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in model.parameters())
    return Shape(
        parameters=total,
        trained=total if trained is None else trained,
        matrix=matrix,
        vocabulary=head.size(0),
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        inner=_inner(text),
        attention=heads * width,
        keys=(getattr(text, "num_key_value_heads", None) or heads) * width,
        has_head_norms=any(key.endswith("q_norm.weight") for key in names),
    )


def _expert_share(text: Any) -> float:
    """Of a mixture's experts, the share that a token goes through."""
    experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None)
    return getattr(text, "num_experts_per_tok", experts) / experts if experts else 1.0


def _inner(text: Any) -> int:
    width = getattr(text, "moe_intermediate_size", None)
    if width:
        return width * text.num_experts_per_tok
    return getattr(text, "intermediate_size", None) or 4 * text.hidden_size


def said_shape(parameters: str, *, layers: int | None, hidden: int | None, vocabulary: int | None) -> Shape:
    """A shape from what is known of a model where its configuration is not at hand: tied embeddings, and a feed-forward
    part of three matrices, from what the rest leaves it.

    Raises:
        ValueError: a number is missing or no number, or the sizes need more parameters than there are.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", parameters.strip().upper())
    if found is None:
        raise ValueError(f"--parameters must be a number such as 1.5B or 350M, got {parameters!r}")
    count = round(float(found[1]) * _UNITS[found[2]])
    for flag, value in (("--layers", layers), ("--hidden_size", hidden)):
        if value is None:
            raise ValueError(f"--parameters goes with --layers and --hidden_size: set {flag}")
        if value < 1:
            raise ValueError(f"{flag} must be at least 1, got {value}")
    vocabulary = VOCABULARY if vocabulary is None else vocabulary
    matrix = count - vocabulary * hidden
    inner = (matrix // layers - 4 * hidden**2) // (3 * hidden)
    if inner < 1:
        raise ValueError(
            f"--parameters {parameters} is too few for {layers} layers of width {hidden:,} and {vocabulary:,} tokens: "
            "check --layers, --hidden_size and --vocabulary"
        )
    return Shape(count, count, matrix, vocabulary, hidden, layers, inner, hidden, hidden)
