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
from ..support.modules import helper_modules
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
_MOST_NAMED = 8  # differences of one kind in a message


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
    found = {"rows": rows} if "process" in terms else {}
    return found | ({"rows_of_all_processes": rows * trainer.args.world_size} if "all" in terms else {})


def differences(there: dict[str, Any], here: dict[str, Any], *, defaults: dict[str, Any]) -> dict[str, list[Any]]:
    """Fields whose values differ, with old and new value. A field that one release lacks counts as its default."""
    pairs = {n: [x.get(n, defaults.get(n)) for x in (there, here)] for n in {**there, **here} if n not in _REMOVED}
    # compared as text, since NaN is not equal to NaN
    return {name: pair for name, pair in pairs.items() if json_text(pair[0]) != json_text(pair[1])}


def in_words(changed: dict[str, list[Any]]) -> str:
    """Differences as text, such as "learning_rate 1e-06 → 1e-05, the code of `reward` changed, data.rows 64 → 32"."""
    found = []
    for name, (before, after) in changed.items():
        if isinstance(before, dict) and isinstance(after, dict):
            inner = [(f"{name}.{key}", pair) for key, pair in differences(before, after, defaults={}).items()]
            more = [f"{len(inner) - _MOST_NAMED} more of {name}"] if len(inner) > _MOST_NAMED else []
            found += [in_words(dict(inner[:_MOST_NAMED])), *more]
        else:
            found.append(_change_of_function(name, before, after) or f"{name} {_short(before)} → {_short(after)}")
    return ", ".join(found)


def _change_of_function(name: str, before: Any, after: Any) -> str:
    """The words for a pair of digests of functions or modules, perhaps with a weight or a place; empty for others."""
    found = [re.match(r"SHA-256 (\w+) ?(.*)", x) if isinstance(x, str) else None for x in (before, after)]
    kind, _, own = name.partition(".")
    if own and None in (before, after) and any(found):  # both are `None` in no pair
        return f"{name} {'added' if before is None else 'left out'}"
    if None in found:
        return ""
    texts = [f"the code of `{own or kind}` changed"] * (found[0][1] != found[1][1])
    return ", ".join(texts + [f"{name} {found[0][2] or '* 1'} → {found[1][2] or '* 1'}"] * (found[0][2] != found[1][2]))


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
    found = trainer.custom_functions()
    if (rollout := trainer.given["rollout_func"]) is not None:
        found["rollout_func"] = rollout
    environments, tools = trainer.given["environment_factory"], trainer.given["tools"] or []
    named = environments if isinstance(environments, dict) else {"": environments} if environments else {}
    rewards = [x for x in trainer.reward_funcs if not isinstance(x, nn.Module)]
    every = [*found.values(), *named.values(), *tools, *rewards]
    modules = [helper_modules(_unguarded(function)) for function in every]
    return {
        **{name: _function(function) for name, function in found.items()},
        "environment_factory": {name: _function(factory) for name, factory in named.items()},
        # their order is that of the prompt
        "tools": {function_label(x): f"{_function(x)} at {i}" for i, x in enumerate(tools)},
        "reward_funcs": _rewards(trainer),
        "modules": {name: f"SHA-256 {digest[:16]}" for one in modules for name, digest in one.items()},
    }


def _unguarded(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)


def _function(function: Any) -> str:
    return f"SHA-256 {digest_of(_unguarded(function))[:16]}"


def _rewards(trainer: IdentifiedTrainer) -> dict[str, str]:
    """Digest of each reward function, or name of its model, with its weight."""
    found: dict[str, str] = {}
    count, given = len(trainer.reward_funcs), trainer.args.reward_weights
    weights = [None] * count if given is None else [*given, *[1.0] * (count - len(given))]  # TRL adds environments' own
    names = unique_names(trainer.reward_func_names)
    for name, function, weight in zip(names, trainer.reward_funcs, weights, strict=True):
        what = base_name(function.config) if isinstance(function, nn.Module) else _function(function)
        found[name] = what if weight is None else f"{what} * {weight:g}"
    return found


def _reward_models(trainer: IdentifiedTrainer) -> dict[str, Any]:
    """Digest of the weights of each reward function that is a model: number and name → digest."""
    pairs = enumerate(zip(trainer.reward_func_names, trainer.reward_funcs, strict=True), 1)
    models = {f"{i} {name}": function for i, (name, function) in pairs if isinstance(function, nn.Module)}
    return {name: weights_digest(model.config, trainer.args) for name, model in models.items()}
