"""What makes a run this run and no other: algorithm, settings that change the loss, functions, model and data."""

import hashlib
import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import nn
from transformers import TrainingArguments

from ..config import CreditConfig
from ..names import digest_of


# of TrainingArguments, those that change what is learnt; how long a run is may change from one life to the next
_OPTIMIZER = (
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "optim",
    "optim_args",
    "optim_target_modules",
    "neftune_noise_alpha",
    "seed",
    "data_seed",
    "bf16",
    "fp16",
)
# of TRL's and our own, those that do not: of engines, of logs, and of how a batch is cut into pieces
FREE = (
    "allow_changed",
    "overwrite_output_dir",
    "reward_timeout",
    "nonfinite_patience",
    "length_sort",
    "shared_prefix",
    "skip_without_credit",
    "log_credit",
    "log_credit_groups",
    "rollout_batch_size",
    "cache_implementation",
    "ds3_gather_for_generation",
    "log_completions",
    "log_completions_hub_repo",
    "log_multimodal",
    "log_unique_prompts",
    "model_init_kwargs",
    "num_completions_to_print",
    "num_generations_eval",
    "pad_to_multiple_of",
    "steps_per_generation",
    "transformers_continuous_batching_config",
    "trust_remote_code",
    "use_transformers_continuous_batching",
    "use_transformers_paged",
    "use_vllm",
)
_FREE_VLLM = "vllm_"
_OF_VLLM = ("vllm_importance_sampling", "vllm_structured_outputs")  # which change the loss, or what is sampled
_VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures")
_MOST_ROWS = 20_000


def identity(trainer: Any) -> dict[str, Any]:
    """What a run keeps in its checkpoints to be known by: name → JSON value. Functions, model and data as digests.

    On one process alone: it makes no collective call.
    """
    args = trainer.args
    return {
        "algorithm": trainer.algorithm_name,
        **_settings(args),
        **trainer.functions,
        "batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "model": _model(trainer),
        "tokenizer": _tokenizer(trainer.processing_class),
        "data": _data(trainer.train_dataset),
    }


def differences(there: dict[str, Any], here: dict[str, Any], *, defaults: dict[str, Any]) -> dict[str, list[Any]]:
    """Names of which the values differ, with both. A field that one of two releases does not have is at its default."""
    names = list(dict.fromkeys([*here, *there]))
    pairs = {n: [there.get(n, defaults.get(n)), here.get(n, defaults.get(n))] for n in names}
    return {name: pair for name, pair in pairs.items() if _differ(*pair)}


def in_words(changed: dict[str, list[Any]]) -> str:
    """ "learning_rate 1e-06 → 1e-05, data.rows 64 → 32"."""
    return ", ".join(_in_words(name, before, after) for name, (before, after) in changed.items())


def _in_words(name: str, before: Any, after: Any) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        parts = {f"{name}.{key}": [before.get(key), after.get(key)] for key in dict.fromkeys([*before, *after])}
        return in_words({key: pair for key, pair in parts.items() if pair[0] != pair[1]})
    return f"{name} {_short(before)} → {_short(after)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _differ(before: Any, after: Any) -> bool:
    return json.dumps(_json(before), sort_keys=True) != json.dumps(_json(after), sort_keys=True)  # NaN is not NaN


def _settings(args: CreditConfig) -> dict[str, Any]:
    ours = {f.name for f in fields(CreditConfig)} - {f.name for f in fields(TrainingArguments)} - set(FREE)
    names = [f.name for f in fields(CreditConfig) if f.name in ours or f.name in _OPTIMIZER]
    engine = [name for name in names if name.startswith(_FREE_VLLM) and not name.startswith(_OF_VLLM)]
    kept = [name for name in names if name not in engine and name not in args.own_functions()]
    return {name: _json(getattr(args, name)) for name in kept}


def functions_of(trainer: Any) -> dict[str, Any]:
    """The part of the identity that functions have, before one of them has been called."""
    args = trainer.args
    found = {knob: args.own_function(knob) for knob in args.own_functions()}
    if (method := trainer.credit_method) is not None:
        found["credit"] = method
    for name in ("rollout_func", "environment_factory"):
        if callable(given := getattr(trainer, name, None)):
            found[name] = given
    return {name: _function(function) for name, function in found.items()} | {"reward_funcs": _rewards(trainer)}


def _function(function: Any) -> str:
    return f"SHA-256 {digest_of(getattr(function, '__wrapped__', function))[:16]}"  # rewards are in a guard


def _rewards(trainer: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    weights = trainer.args.reward_weights or [None] * len(trainer.reward_funcs)
    for name, function, weight in zip(trainer.reward_func_names, trainer.reward_funcs, weights, strict=True):
        what = base_name(function.config) if isinstance(function, nn.Module) else _function(function)
        number = sum(key.partition(" ")[0] == name for key in found) + 1
        # which of them has which weight
        found[f"{name} {number}" if number > 1 else name] = what if weight is None else f"{what} * {weight:g}"
    return found


def _tokenizer(processing_class: Any) -> dict[str, Any]:
    template = getattr(processing_class, "chat_template", None)
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    return {"chat_template": template and _digest(template), "tokens": len(tokenizer)}


def _model(trainer: Any) -> dict[str, Any]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    settings = _lasting(model.config.to_diff_dict())  # defaults may be added by a newer transformers
    found = {"name": base_name(model.config), "config": _digest(settings), "dtype": trainer.dtype_of_weights}
    if revision := (trainer.args.model_init_kwargs or {}).get("revision"):
        found["revision"] = str(revision)
    if adapters := getattr(model, "peft_config", None):
        of_adapters = {name: config.to_dict() for name, config in adapters.items()}
        for config in of_adapters.values():
            for key in ("base_model_name_or_path", "inference_mode", "peft_version"):
                config.pop(key, None)
        found["adapter"] = _digest(of_adapters)
    return found


def _lasting(settings: Any) -> Any:
    """Settings of a model, and of the models in it, without what loading and training change."""
    if not isinstance(settings, dict):
        return settings
    kept = {k: v for k, v in settings.items() if not str(k).endswith("_token_id") and k not in _VOLATILE}
    return {k: _lasting(v) for k, v in kept.items()}


def base_name(config: Any) -> str:
    name = getattr(config, "_name_or_path", "") or ""
    return Path(name).resolve().name if Path(name).exists() else name  # a folder may be elsewhere tomorrow


def _data(dataset: Any) -> dict[str, Any]:
    if not isinstance(dataset, Dataset):  # which is read as it goes
        return {"columns": sorted(getattr(dataset, "column_names", None) or [])}
    features = dataset.features
    plain = [name for name in sorted(features) if not any(kind in repr(features[name]) for kind in _HEAVY)]
    every = max(1, len(dataset) // _MOST_ROWS)
    part = dataset.with_format(None).select_columns(plain)  # a transform may be another one each time
    rows = part if every == 1 else part.select(range(0, len(dataset), every))
    digest = hashlib.sha256()
    for batch in rows.iter(1000):
        digest.update(json.dumps(batch, sort_keys=True, default=str).encode())
    return {"rows": len(dataset), "columns": sorted(features), "content": digest.hexdigest()[:16]}


_HEAVY = ("Image(", "Audio(", "Video(", "Pdf(")  # which are decoded when they are read


def _digest(value: Any) -> str:
    def plain(x: Any) -> Any:
        return sorted(map(str, x)) if isinstance(x, (set, frozenset)) else str(x)

    return hashlib.sha256(json.dumps(value, sort_keys=True, default=plain).encode()).hexdigest()[:16]


def defaults_of(args: CreditConfig) -> dict[str, Any]:
    """Field → default. A configuration at its defaults would do, but building one resets Accelerate's state."""
    plain = {f.name: f.default for f in fields(args) if f.default is not MISSING}
    return plain | {f.name: f.default_factory() for f in fields(args) if f.default_factory is not MISSING}
