"""The folder of an adapter as the model of a trainer."""

from typing import Any

from peft import PeftModel
from transformers import AutoTokenizer
from trl.trainer.utils import create_model_from_path

from ..config import CreditConfig
from ..support.adapters import adapter_base, tokenizer_source


def with_adapter(model: Any, args: CreditConfig, kwargs: dict[str, Any]) -> Any:
    """The model for `GRPOTrainer`: the folder of an adapter becomes its base with the adapter, which is trained
    further; others are returned as they are. `kwargs` are those of the trainer, and get the adapter's tokenizer.

    Raises:
        ValueError: the base is missing, or a new adapter is asked for.
    """
    says = "the adapter is trained further (with beta above 0, the reference is the adapter as it is now)"
    if not isinstance(model, str) or (base := adapter_base(model, says=says)) is None:
        return model
    if kwargs.get("peft_config") is not None:
        what = f"{model!r} is an adapter, which is trained further, and peft_config (--use_peft) starts a new one"
        raise ValueError(f"{what}: leave it out, or merge the adapter into {base} first and train on the result")
    loading = {"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})}
    if args.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        loading["device_map"] = None
    if kwargs.get("quantization_config") is not None:
        loading["quantization_config"] = kwargs.pop("quantization_config")
    loaded = PeftModel.from_pretrained(create_model_from_path(base, **loading), model, is_trainable=True)
    if kwargs.get("processing_class") is None and (source := tokenizer_source(model)) == model:
        tokenizer = {"truncation_side": "left", "padding_side": "left", "trust_remote_code": args.trust_remote_code}
        kwargs["processing_class"] = AutoTokenizer.from_pretrained(source, **tokenizer)
    return loaded
