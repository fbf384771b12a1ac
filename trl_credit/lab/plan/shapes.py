"""The sizes of a model, from its configuration without its weights, from a table, or given by hand."""

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import torch
import yaml
from peft import PeftConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from ...support.adapters import adapter_base
from ...support.errors import one_line
from .formulas import Shape


VOCABULARY = 151_936  # Qwen's
GET_CONFIG = "hf download MODEL config.json, or name a folder that has config.json"
_UNITS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def read_shape(name: str, *, revision: str | None = None, adapter: PeftConfig | None = None) -> Shape:
    """The sizes of a model in a folder or in the cache of the Hub, else those of `model_sizes.yaml`. Needs neither
    weights nor network.

    Args:
        name (`str`):
            A folder with `config.json`, that of an adapter, or a name on the Hub.
        revision (`str`, *optional*):
            Revision on the Hub.
        adapter (`peft.PeftConfig`, *optional*):
            A LoRA that is trained instead of the weights.

    Raises:
        ValueError: there is no configuration and the table lacks the model, or transformers does not know the
            architecture.
    """
    if (base := adapter_base(name)) is not None:
        adapter = PeftConfig.from_pretrained(name)
        adapter.inference_mode = False
        shape = read_shape(base, adapter=adapter)
        further = f"{name} is an adapter of {base}, and is trained further"
        return replace(shape, source=further if shape.source is None else f"{further}; {shape.source}")
    fix = "give --parameters, --layers and --hidden_size, such as --parameters 1.5B --layers 28 --hidden_size 1536"
    if adapter is not None:  # which are counted on a configuration
        fix = f"--use_peft needs its config.json: {GET_CONFIG}"
    try:
        config = AutoConfig.from_pretrained(name, revision=revision, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        known = None if Path(name).is_dir() else known_sizes(name)
        if known is None:
            where = "is in a folder or in the cache of the Hub, and the package's table lacks it"
            raise ValueError(f"no configuration of {name!r} {where}: {fix}") from error
        model, config = known
        tuned = "" if model == name else f", from which {name} is made,"
        return replace(shape_of(config, adapter=adapter), source=f"sizes of {model}{tuned} from the package's table")
    try:
        return shape_of(config, adapter=adapter)
    except (ValueError, ImportError, AttributeError) as error:
        raise ValueError(f"the size of {name!r} is unknown ({one_line(error)[:80]}): {fix}") from error


def known_sizes(name: str) -> tuple[str, PreTrainedConfig] | None:
    """The model of `model_sizes.yaml` that a name stands for, and a configuration of its sizes; `None` if the table
    lacks it. A tuned model has the sizes of the model that it was made from."""
    table = yaml.safe_load((files(__package__) / "model_sizes.yaml").read_text(encoding="utf-8"))
    model = table["tuned"].get(name.removesuffix("/"), name)
    if model not in table["sizes"]:
        return None
    return model, AutoConfig.for_model(**table["sizes"][model])


def shape_of(config: PreTrainedConfig, *, adapter: PeftConfig | None = None) -> Shape:
    """The sizes of a model with this configuration, made without memory. Raises transformers' errors."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    text = config.get_text_config()
    head = model.get_output_embeddings().weight
    ends = {id(head), id(model.get_input_embeddings().weight)}
    matrix = sum(p.numel() for p in model.parameters() if p.dim() > 1 and id(p) not in ends)
    has_head_norms = any(key.endswith("q_norm.weight") for key, _ in model.named_parameters())
    heads = text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    if expert_width := getattr(text, "moe_intermediate_size", None):
        inner = expert_width * text.num_experts_per_tok
    if adapter is not None:
        with torch.device("meta"):
            model = get_peft_model(model, adapter, low_cpu_mem_usage=True)
    return Shape(
        parameters=sum(p.numel() for p in model.parameters()),
        trained=sum(p.numel() for p in model.parameters() if adapter is None or p.requires_grad),
        matrix=matrix,
        vocabulary=head.size(0),
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        inner=inner,
        attention=heads * width,
        keys=(getattr(text, "num_key_value_heads", None) or heads) * width,
        has_head_norms=has_head_norms,
        context=getattr(text, "max_position_embeddings", Shape.context),
    )


def manual_shape(parameters: str, layers: int | None, hidden: int | None, vocabulary: int | None = None) -> Shape:
    """The sizes of a model whose configuration is not available. It has tied embeddings, and a feed-forward block of
    three matrices that has the remaining parameters.

    Raises:
        ValueError: a number is missing or malformed, or the sizes need more parameters than there are.
    """
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", parameters.strip().upper())
    if number is None:
        raise ValueError(f"--parameters must be a number such as 1.5B or 350M, got {parameters!r}")
    count = round(float(number[1]) * _UNITS[number[2]])
    if layers is None or hidden is None:
        raise ValueError("--parameters goes with the other sizes: set --layers and --hidden_size")
    vocabulary = vocabulary or VOCABULARY
    matrix = count - vocabulary * hidden
    inner = (matrix // layers - 4 * hidden**2) // (3 * hidden)
    if inner < 1:
        what = f"{layers} layers of width {hidden:,} and {vocabulary:,} tokens"
        raise ValueError(f"--parameters {parameters} is too few for {what}: check the sizes")
    return Shape(count, count, matrix, vocabulary, hidden, layers, inner, hidden, hidden)
