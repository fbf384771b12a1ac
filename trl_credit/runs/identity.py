"""What identifies a run: algorithm, settings that change the loss, functions, model and data."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from accelerate import Accelerator
from datasets import Dataset
from torch import nn
from transformers import TrainingArguments

from ..config import KNOBS, CreditConfig
from ..support.digests import digest_of


# fields of TrainingArguments that change what is learned; the length of a run may change at a resume
_OPTIMIZER = frozenset(
    """
    learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon
    max_grad_norm optim optim_args optim_target_modules neftune_noise_alpha seed data_seed bf16 fp16
    """.split()
)
# fields of TRL and of this package that do not change what is learned: engines, logs, the cut into micro-batches
FREE = frozenset(
    """
    cache_implementation ds3_gather_for_generation log_completions log_completions_hub_repo log_multimodal
    log_unique_prompts model_init_kwargs num_completions_to_print num_generations_eval pad_to_multiple_of
    steps_per_generation transformers_continuous_batching_config trust_remote_code use_transformers_continuous_batching
    use_transformers_paged use_vllm
    """.split()
).union(name for name, knob in KNOBS.items() if not knob.changes_loss)
_FREE_VLLM = "vllm_"
_OF_VLLM = ("vllm_importance_sampling", "vllm_structured_outputs")  # change the loss, or what is sampled
_VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures")
_MOST_ROWS = 20_000
_DECODED = ("Image(", "Audio(", "Video(", "Pdf(")  # columns that are decoded when they are read


class IdentifiedTrainer(Protocol):
    """The parts of a trainer that determine the identity of its run."""

    args: CreditConfig
    accelerator: Accelerator
    model: nn.Module
    processing_class: Any
    train_dataset: Any
    reward_funcs: Sequence[Any]
    reward_func_names: Sequence[str]
    functions: dict[str, Any]
    dtype_of_weights: str

    @property
    def algorithm_name(self) -> str: ...

    def custom_functions(self) -> dict[str, Callable]: ...


def identity(trainer: IdentifiedTrainer) -> dict[str, Any]:
    """What identifies a run in its checkpoints: name → JSON value. Functions, model and data are digests.

    Makes no collective call.
    """
    args = trainer.args
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    template = getattr(trainer.processing_class, "chat_template", None)
    return {
        "algorithm": trainer.algorithm_name,
        **_settings(args),
        **trainer.functions,
        "batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "model": _model(trainer),
        "tokenizer": {"chat_template": template and _digest(template), "tokens": len(tokenizer)},
        "data": _data(trainer.train_dataset),
    }


def differences(there: dict[str, Any], here: dict[str, Any], *, defaults: dict[str, Any]) -> dict[str, list[Any]]:
    """Fields whose values differ, with old and new value. A field that one release lacks counts as its default."""
    pairs = {n: [x.get(n, defaults.get(n)) for x in (there, here)] for n in dict.fromkeys([*there, *here])}
    # compared as text, since NaN is not equal to NaN
    return {name: pair for name, pair in pairs.items() if _text(pair[0]) != _text(pair[1])}


def in_words(changed: dict[str, list[Any]]) -> str:
    """Differences as text, such as "learning_rate 1e-06 → 1e-05, data.rows 64 → 32"."""
    found = []
    for name, (before, after) in changed.items():
        if isinstance(before, dict) and isinstance(after, dict):
            inner = differences(before, after, defaults={})
            found.append(in_words({f"{name}.{key}": pair for key, pair in inner.items()}))
        else:
            found.append(f"{name} {_short(before)} → {_short(after)}")
    return ", ".join(found)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else _text(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


def _digest(value: Any) -> str:
    return hashlib.sha256(_text(value).encode()).hexdigest()[:16]


def _settings(args: CreditConfig) -> dict[str, Any]:
    ours = {f.name for f in fields(CreditConfig)} - {f.name for f in fields(TrainingArguments)} - FREE
    names = [f.name for f in fields(CreditConfig) if f.name in ours or f.name in _OPTIMIZER]
    engine = [name for name in names if name.startswith(_FREE_VLLM) and not name.startswith(_OF_VLLM)]
    kept = [name for name in names if name not in engine and name not in args.custom_functions()]
    return {name: json.loads(_text(getattr(args, name))) for name in kept}


def functions_of(trainer: IdentifiedTrainer) -> dict[str, Any]:
    """Digests of the run's functions. Taken before any of them is called."""
    found = trainer.custom_functions()
    for name in ("rollout_func", "environment_factory"):
        if callable(given := getattr(trainer, name, None)):
            found[name] = given
    return {name: _function(function) for name, function in found.items()} | {"reward_funcs": _rewards(trainer)}


def _function(function: Any) -> str:
    return f"SHA-256 {digest_of(getattr(function, '__wrapped__', function))[:16]}"  # a guard wraps rewards


def _rewards(trainer: IdentifiedTrainer) -> dict[str, str]:
    """Digest of each reward function, or name of its model, with its weight."""
    found: dict[str, str] = {}
    weights = trainer.args.reward_weights or [None] * len(trainer.reward_funcs)
    for name, function, weight in zip(trainer.reward_func_names, trainer.reward_funcs, weights, strict=True):
        what = base_name(function.config) if isinstance(function, nn.Module) else _function(function)
        number = sum(key.partition(" ")[0] == name for key in found) + 1
        found[f"{name} {number}" if number > 1 else name] = what if weight is None else f"{what} * {weight:g}"
    return found


def _model(trainer: IdentifiedTrainer) -> dict[str, Any]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    settings = _stable(model.config.to_diff_dict())  # a newer transformers may add defaults to the full dict
    found = {"name": base_name(model.config), "config": _digest(settings), "dtype": trainer.dtype_of_weights}
    if revision := (trainer.args.model_init_kwargs or {}).get("revision"):
        found["revision"] = str(revision)
    if adapters := getattr(model, "peft_config", None):
        skipped = ("base_model_name_or_path", "inference_mode", "peft_version")
        kept = {n: {k: v for k, v in a.to_dict().items() if k not in skipped} for n, a in adapters.items()}
        found["adapter"] = _digest(kept)
    return found


def _stable(settings: Any) -> Any:
    """Settings of a model and of the models inside it, without those that loading and training change."""
    if not isinstance(settings, dict):
        return settings
    kept = {k: v for k, v in settings.items() if not str(k).endswith("_token_id") and k not in _VOLATILE}
    return {k: _stable(v) for k, v in kept.items()}


def base_name(config: Any) -> str:
    """Name of the model that a configuration was loaded from, without its folder: a folder may move."""
    name = getattr(config, "_name_or_path", "") or ""
    return Path(name).resolve().name if Path(name).exists() else name


def _data(dataset: Any) -> dict[str, Any]:
    if not isinstance(dataset, Dataset):  # a stream
        return {"columns": sorted(getattr(dataset, "column_names", None) or [])}
    features = dataset.features
    plain = [name for name in sorted(features) if not any(kind in repr(features[name]) for kind in _DECODED)]
    every = max(1, len(dataset) // _MOST_ROWS)
    rows = dataset.with_format(None).select_columns(plain)  # a transform may be random
    rows = rows if every == 1 else rows.select(range(0, len(dataset), every))
    digest = hashlib.sha256()
    for batch in rows.iter(1000):
        digest.update(_text(batch).encode())
    return {"rows": len(dataset), "columns": sorted(features), "content": digest.hexdigest()[:16]}
