"""What makes a run this run and no other: algorithm, settings that change the loss, functions, model and data."""

import hashlib
import json
from collections.abc import Iterable
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
_FREE = (
    "allow_changed",
    "overwrite_output_dir",
    "reward_timeout",
    "nonfinite_patience",
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
        **_functions(trainer, args),
        "batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "reward_funcs": dict(_rewards(trainer)),
        "model": _model(trainer),
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
    ours = {f.name for f in fields(CreditConfig)} - {f.name for f in fields(TrainingArguments)} - set(_FREE)
    names = [f.name for f in fields(CreditConfig) if f.name in ours or f.name in _OPTIMIZER]
    engine = [name for name in names if name.startswith(_FREE_VLLM) and not name.startswith(_OF_VLLM)]
    kept = [name for name in names if name not in engine and name not in args.own_functions()]
    return {name: _json(getattr(args, name)) for name in kept}


def _functions(trainer: Any, args: CreditConfig) -> dict[str, str]:
    found = {knob: digest_of(args.own_function(knob)) for knob in args.own_functions()}
    if (method := trainer.credit_method) is not None:
        found["credit"] = digest_of(method)
    return {knob: f"SHA-256 {digest[:16]}" for knob, digest in found.items()}


def _rewards(trainer: Any) -> Iterable[tuple[str, str]]:
    for name, function in zip(trainer.reward_func_names, trainer.reward_funcs, strict=True):
        if isinstance(function, nn.Module):
            yield name, _base_name(function.config)
        else:
            # each of them is in a guard
            yield name, f"SHA-256 {digest_of(getattr(function, '__wrapped__', function))[:16]}"


def _model(trainer: Any) -> dict[str, Any]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    settings = {k: v for k, v in model.config.to_dict().items() if not k.endswith("_token_id") and k not in _VOLATILE}
    found = {"name": _base_name(model.config), "config": _digest(settings)}
    if revision := (trainer.args.model_init_kwargs or {}).get("revision"):
        found["revision"] = str(revision)
    if adapters := getattr(model, "peft_config", None):
        of_adapters = {name: config.to_dict() for name, config in adapters.items()}
        for config in of_adapters.values():
            for key in ("base_model_name_or_path", "inference_mode", "peft_version"):
                config.pop(key, None)
        found["adapter"] = _digest(of_adapters)
    return found


def _base_name(config: Any) -> str:
    name = getattr(config, "_name_or_path", "") or ""
    return Path(name).resolve().name if Path(name).exists() else name  # a folder may be elsewhere tomorrow


def _data(dataset: Any) -> dict[str, Any]:
    if not isinstance(dataset, Dataset):  # which is read as it goes
        return {"columns": sorted(getattr(dataset, "column_names", None) or [])}
    features = dataset.features
    plain = [name for name in sorted(features) if not any(kind in repr(features[name]) for kind in _HEAVY)]
    every = max(1, len(dataset) // _MOST_ROWS)
    part = dataset.select_columns(plain)
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
