"""Adapters (LoRA) as models: the folder of an adapter names its base, the model that it was trained on."""

import logging
from pathlib import Path

from .files import read_json
from .signals import is_main


logger = logging.getLogger(__name__)


def adapter_base(name: str | Path, *, says: str = "", needed: bool = True) -> str | None:
    """The base model of the adapter in a folder; `None` for any other model.

    Args:
        says (`str`, *optional*):
            What is done with the adapter, for one line in the log of the main process.
        needed (`bool`, *optional*, defaults to `True`):
            Whether the base must exist, if it is a folder.

    Raises:
        ValueError: the adapter names no base, one that does not exist, or a module that PEFT would import.
    """
    file = Path(name, "adapter_config.json")
    if Path(name, "config.json").is_file() or not file.is_file():
        return None
    settings = read_json(file)
    base = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
    if not isinstance(base, str):
        raise ValueError(f"{file} names no base model: set base_model_name_or_path in it to where the model is")
    if settings.get("megatron_config"):
        raise ValueError(f"{file} sets megatron_config, with which PEFT imports the module of megatron_core: remove it")
    is_id = not base.startswith((".", "~", "/")) and base.count("/") < 2 and not Path(base).is_dir()
    if needed and not (is_id or Path(base, "config.json").is_file()):
        what = f"{file} names the base model {base!r}, neither a folder with a config.json nor a name on the Hub"
        raise ValueError(f"{what}: set base_model_name_or_path in it to where the model is")
    if says and is_main():
        logger.warning("%s is an adapter of %s: %s", name, base, says)
    return base


def tokenizer_source(name: str) -> str:
    """Where the tokenizer of a model is: with it, or with the base of an adapter that was saved alone."""
    return (None if Path(name, "tokenizer_config.json").is_file() else adapter_base(name)) or name


def save_merged(name: str, base: str, folder: str, *, trust_remote_code: bool) -> None:
    """Merges an adapter into the weights of its base, on the CPU, and saves the result to a folder."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", trust_remote_code=trust_remote_code)
    PeftModel.from_pretrained(model, name).merge_and_unload().save_pretrained(folder)
