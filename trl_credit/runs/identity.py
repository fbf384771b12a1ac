"""What identifies a run: algorithm, settings that change the loss, functions, model and data."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol

from accelerate import Accelerator
from torch import nn
from transformers import TrainingArguments

from ..config import KNOBS, CreditConfig
from ..config.knobs import defaults, is_active, knobs_of
from ..config.trl_settings import TRL_ACTS
from ..passes.model_traits import micro_batch_terms
from ..support.digests import digest_of, function_label, json_text
from ..support.functions import unique_names
from ..support.modules import digest_of_module, helper_modules
from .data_identity import data_identity
from .model_identity import base_name, model_identity, tokenizer_identity, weights_digest


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
_REMOVED = {"refill_surplus"}  # settings that records of 0.2.0 have
_FREE_VLLM = "vllm_"
_OF_VLLM = ("vllm_importance_sampling", "vllm_structured_outputs")  # change the loss, or what is sampled


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
    given: dict[str, Any]
    dtype_of_weights: str
    weights: str | None
    first_rows: list[Any]

    @property
    def algorithm_name(self) -> str: ...

    def custom_functions(self) -> dict[str, Callable]: ...


def identity(trainer: IdentifiedTrainer) -> dict[str, Any]:
    """What identifies a run in its checkpoints: name → JSON value. Functions, model and data are digests.

    Makes no collective call.
    """
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    revision = (args.model_init_kwargs or {}).get("revision")
    stop = getattr(trainer, "eos_token_ids", None)  # older TRL lacks it
    return {
        "algorithm": trainer.algorithm_name,
        **_settings(args),
        **trainer.functions,
        "reward_models": _reward_models(trainer),
        "batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "micro_batch": _micro_batch(trainer, model),
        "model": model_identity(model, dtype=trainer.dtype_of_weights, weights=trainer.weights, revision=revision),
        "tokenizer": tokenizer_identity(trainer.processing_class, eos_token_ids=stop),
        "data": data_identity(trainer.train_dataset, first_rows=trainer.first_rows),
    }


def _micro_batch(trainer: IdentifiedTrainer, model: nn.Module) -> dict[str, int]:
    """Rows of a micro-batch, where the loss depends on how a batch is cut into them; else empty."""
    terms, rows = micro_batch_terms(trainer, model).values(), trainer.args.per_device_train_batch_size
    of_one = {"rows": rows} if "process" in terms else {}
    return of_one | ({"rows_of_all_processes": rows * trainer.args.world_size} if "all" in terms else {})


def differences(there: dict[str, Any], here: dict[str, Any], *, defaults: dict[str, Any]) -> dict[str, list[Any]]:
    """Fields whose values differ, with old and new value. A field that one release lacks counts as its default."""
    pairs = {n: [x.get(n, defaults.get(n)) for x in (there, here)] for n in {**there, **here} if n not in _REMOVED}
    # compared as text, since NaN is not equal to NaN
    return {name: pair for name, pair in pairs.items() if json_text(pair[0]) != json_text(pair[1])}


def in_words(changed: dict[str, list[Any]]) -> str:
    """Differences as text, such as "learning_rate 1e-06 → 1e-05, the code of `reward` changed, data.rows 64 → 32"."""
    texts = []
    for name, (before, after) in changed.items():
        if isinstance(before, dict) and isinstance(after, dict):
            texts.append(in_words({f"{name}.{key}": x for key, x in differences(before, after, defaults={}).items()}))
            continue
        # digests of functions or modules, perhaps with a weight or a place
        codes = [re.match(r"SHA-256 (\w+) ?(.*)", x) if isinstance(x, str) else None for x in (before, after)]
        if None not in codes and codes[0][1] != codes[1][1]:
            texts.append(f"the code of `{name.partition('.')[2] or name}` changed")
        elif None not in codes:
            texts.append(f"{name} {codes[0][2] or '* 1'} → {codes[1][2] or '* 1'}")
        elif any(codes) and None in (before, after):
            texts.append(f"{name} {'added' if before is None else 'left out'}")
        else:
            texts.append(f"{name} {_short(before)} → {_short(after)}")
    return ", ".join(texts)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json_text(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _settings(args: CreditConfig) -> dict[str, Any]:
    ours = {f.name for f in fields(CreditConfig)} - {f.name for f in fields(TrainingArguments)} - FREE
    ours.update(name for name, knob in knobs_of(type(args)).items() if knob.changes_loss)
    names = [f.name for f in fields(args) if f.name in ours or f.name in _OPTIMIZER]
    engine = [name for name in names if name.startswith(_FREE_VLLM) and not name.startswith(_OF_VLLM)]
    kept = [name for name in names if name not in engine and name not in args.custom_functions()]
    # as if what has no effect had been left out
    idle = {n: value for n, value in defaults(type(args)).items() if not is_active(args, TRL_ACTS.get(n, ()))}
    return {name: json.loads(json_text(idle.get(name, getattr(args, name)))) for name in kept}


def functions_of(trainer: IdentifiedTrainer) -> dict[str, Any]:
    """Digests of the run's functions, and of the modules that they need. Taken before any of them is called."""
    single, environments = _single_functions(trainer), _environments(trainer)
    return {
        **{name: _function(function) for name, function in single.items()},
        "environment_factory": {name: _function(factory) for name, factory in environments.items()},
        # their order is that of the prompt
        "tools": {function_label(x): f"{_function(x)} at {i}" for i, x in enumerate(trainer.given["tools"] or [])},
        "reward_funcs": _rewards(trainer),
        "modules": modules_of(trainer),
    }


def modules_of(trainer: IdentifiedTrainer) -> dict[str, str]:
    """Digests of the modules that the run's functions need and have loaded so far, by name."""
    rewards = [function for function in trainer.reward_funcs if not isinstance(function, nn.Module)]
    functions = [*_single_functions(trainer).values(), *_environments(trainer).values(), *rewards]
    loaded = helper_modules(map(_unguarded, [*functions, *(trainer.given["tools"] or [])]))
    return {name: f"SHA-256 {digest[:16]}" for name, digest in loaded.items()}


def modules_now(recorded: dict[str, str], *, loaded: dict[str, str]) -> dict[str, str]:
    """What became of the modules of a record: those that are not loaded yet are found by their files.

    A module that only one of two runs has loaded is no difference: whatever imports it now has changed as well.
    """
    files = {name: digest_of_module(name) for name in recorded.keys() - loaded.keys()}
    now = {name: f"SHA-256 {digest[:16]}" for name, digest in files.items() if digest is not None} | loaded
    return {name: now.get(name, digest) for name, digest in recorded.items()}


def _single_functions(trainer: IdentifiedTrainer) -> dict[str, Callable]:
    rollout = trainer.given["rollout_func"]
    return trainer.custom_functions() | ({} if rollout is None else {"rollout_func": rollout})


def _environments(trainer: IdentifiedTrainer) -> dict[str, Any]:
    environments = trainer.given["environment_factory"]
    return environments if isinstance(environments, dict) else {"": environments} if environments else {}


def _unguarded(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)


def _function(function: Any) -> str:
    return f"SHA-256 {digest_of(_unguarded(function))[:16]}"


def _rewards(trainer: IdentifiedTrainer) -> dict[str, str]:
    """Digest of each reward function, or name of its model, with its weight."""
    digests: dict[str, str] = {}
    count, weights = len(trainer.reward_funcs), trainer.args.reward_weights
    # TRL adds the environments' own rewards, with weight 1
    each = [None] * count if weights is None else [*weights, *[1.0] * (count - len(weights))]
    names = unique_names(trainer.reward_func_names)
    for name, function, weight in zip(names, trainer.reward_funcs, each, strict=True):
        digest = base_name(function.config) if isinstance(function, nn.Module) else _function(function)
        digests[name] = digest if weight is None else f"{digest} * {weight:g}"
    return digests


def _reward_models(trainer: IdentifiedTrainer) -> dict[str, Any]:
    """Digest of the weights of each reward function that is a model: number and name → digest."""
    pairs = enumerate(zip(trainer.reward_func_names, trainer.reward_funcs, strict=True), 1)
    models = {f"{i} {name}": function for i, (name, function) in pairs if isinstance(function, nn.Module)}
    return {name: weights_digest(model.config, trainer.args) for name, model in models.items()}
