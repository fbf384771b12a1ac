"""What identifies a run's model and tokenizer. No weight is read from memory, where it may be a shard."""

from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from ..config import CreditConfig
from ..demo import TASKS, DemoTask
from ..support.digests import sampled_digest, short_digest


_VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures")


def model_identity(model: Any, *, dtype: str, weights: str | None, revision: Any) -> dict[str, Any]:
    """Name → JSON value.

    Args:
        model (`torch.nn.Module`):
            Unwrapped.
        dtype (`str`):
            Of its weights.
        weights (`str` or `None`):
            What [`weights_digest`] gave before training.
        revision:
            The one that was asked for, or `None`.
    """
    settings = _stable(model.config.to_diff_dict())  # a newer transformers may add defaults to the full dict
    identity = {"name": base_name(model.config), "config": short_digest(settings), "dtype": dtype, "weights": weights}
    if revision:
        identity["revision"] = str(revision)
    if adapters := getattr(model, "peft_config", None):
        skipped = ("base_model_name_or_path", "inference_mode", "peft_version")
        kept = {n: {k: v for k, v in a.to_dict().items() if k not in skipped} for n, a in adapters.items()}
        identity["adapter"] = short_digest(kept)
    return identity


def _stable(settings: Any) -> Any:
    """Settings of a model and of the models inside it, without those that loading and training change."""
    if not isinstance(settings, dict):
        return settings
    kept = {k: v for k, v in settings.items() if not str(k).endswith("_token_id") and k not in _VOLATILE}
    return {k: _stable(v) for k, v in kept.items()}


def tokenizer_identity(processing_class: Any, *, eos_token_ids: list[int] | None) -> dict[str, Any]:
    """Name → JSON value.

    Args:
        processing_class:
            A tokenizer, or a processor that has one.
        eos_token_ids (`list[int]` or `None`):
            The tokens that end a response; `None` if it is the tokenizer's own alone.
    """
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    template = getattr(processing_class, "chat_template", None)
    return {
        "chat_template": template and short_digest(template),
        "tokens": len(tokenizer),
        "vocabulary": short_digest(tokenizer.get_vocab()),
        # of the configurations of the model, which loading and training change, these are what acts
        "eos_token_ids": sorted(eos_token_ids or [tokenizer.eos_token_id]),
        "pad_token_id": tokenizer.pad_token_id,
    }


def base_name(config: Any) -> str:
    """Name of the model that a configuration was loaded from, without its folder: a folder may move."""
    return without_folder(getattr(config, "_name_or_path", "") or "")


def without_folder(name: str) -> str:
    """The last part of the path of a folder or file that exists; any other name as it is."""
    return Path(name).resolve().name if Path(name).exists() else name


def is_folder(config: Any, folder: str | Path) -> bool:
    """Whether a model was loaded from a folder."""
    name = getattr(config, "_name_or_path", "") or ""
    return bool(name) and Path(name).is_dir() and Path(name).resolve() == Path(folder).resolve()


def embedded_task(config: Any) -> DemoTask | None:
    """The embedded task whose checkpoint a model was loaded from."""
    return next((task for task in TASKS.values() if is_folder(config, task.model_path)), None)


def weights_digest(config: Any, args: CreditConfig, *, subfolder: str = "") -> str | None:
    """Digest of the files that a model was loaded from: sizes and samples, see
    [`~trl_credit.support.digests.sampled_digest`].

    A model of the Hub is found in the Hub's cache, or else its commit stands for it. `None` for a model that was loaded
    from neither, and for one whose files the run will replace.
    """
    name, commit = getattr(config, "_name_or_path", "") or "", getattr(config, "_commit_hash", None)
    if not name or is_folder(config, args.output_dir):
        return None
    folder: Path | None = Path(name)
    if not folder.is_dir():
        try:
            cached = try_to_load_from_cache(name, "config.json", revision=commit)
        except ValueError:  # no name on the Hub
            return commit
        folder = Path(cached).parent if isinstance(cached, str) else None
    patterns = () if folder is None else ("*.safetensors", "pytorch_model*.bin")  # in the order of transformers
    kinds = (list((folder / subfolder).glob(pattern)) for pattern in patterns)
    return next((sampled_digest(files) for files in kinds if files), commit)
