"""What identifies a run: algorithm, settings that change the loss, functions, model and data."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import nn
from transformers import TrainingArguments

from ..config import KNOBS, CreditConfig
from ..config.knobs import defaults, is_active, knobs_of
from ..config.trl_settings import TRL_ACTS
from ..passes.model_traits import micro_batch_terms
from ..support.digests import digest_of, function_label, json_text
from ..support.files import short_path
from ..support.functions import unique_names
from ..support.modules import digest_of_module, helper_modules
from ..support.source_code import code_of, needed_code
from .data_identity import data_identity
from .model_identity import base_name, model_identity, tokenizer_identity, weights_digest


_CODE_LENGTH = len("SHA-256 ") + 16
# fields of TrainingArguments that change what is learned; the length of a run may change at a resume
_OPTIMIZER = """learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps weight_decay adam_beta1 adam_beta2
adam_epsilon max_grad_norm optim optim_args optim_target_modules neftune_noise_alpha seed data_seed bf16 fp16""".split()
# fields of TRL and of this package that do not change what is learned: engines, logs, the cut into micro-batches
_FREE_OF_TRL = """cache_implementation ds3_gather_for_generation log_completions log_completions_hub_repo log_multimodal
log_unique_prompts model_init_kwargs num_completions_to_print num_generations_eval pad_to_multiple_of
steps_per_generation transformers_continuous_batching_config trust_remote_code use_transformers_continuous_batching
use_transformers_paged use_vllm""".split()
FREE = {*_FREE_OF_TRL, *(name for name, knob in KNOBS.items() if not knob.changes_loss)}
_REMOVED = {"refill_surplus"}  # settings that records of 0.2.0 have
_VLLM_THAT_COUNTS = ("vllm_importance_sampling", "vllm_structured_outputs")  # change the loss, or the samples


def identity(trainer: Any) -> dict[str, Any]:
    """What identifies the run of a [`~trl_credit.runs.resumable.ResumableTrainer`] in its checkpoints: name → JSON
    value. Functions, model and data are digests. Makes no collective call.
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


def _micro_batch(trainer: Any, model: nn.Module) -> dict[str, int]:
    """Rows of a micro-batch, where the loss depends on how a batch is cut into them; else empty."""
    terms, rows = micro_batch_terms(trainer, model).values(), trainer.args.per_device_train_batch_size
    compared = {"rows": ("process", rows), "rows_of_all_processes": ("all", rows * trainer.args.world_size)}
    return {name: count for name, (whose, count) in compared.items() if whose in terms}


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
            inside = differences(before, after, defaults={})
            texts.append(in_words({f"{name}.{key}": pair for key, pair in inside.items()}))
            continue
        # digests of functions or modules, perhaps with a weight or a place
        codes = [str(x)[:_CODE_LENGTH] for x in (before, after) if str(x).startswith("SHA-256")]
        if len(set(codes)) == 2:
            texts.append(f"the code of `{name.partition('.')[2] or name}` changed")
        elif codes and None in (before, after):
            texts.append(f"{name} {'added' if before is None else 'left out'}")
        else:
            texts.append(f"{name} {_short(before)} → {_short(after)}")
    return ", ".join(texts)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json_text(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _settings(args: CreditConfig) -> dict[str, Any]:
    ours = {f.name for f in fields(CreditConfig)} - {f.name for f in fields(TrainingArguments)} - FREE
    ours.update(_OPTIMIZER, (name for name, knob in knobs_of(type(args)).items() if knob.changes_loss))
    own = {f.name for f in fields(args)} - {f.name for f in fields(CreditConfig)} - knobs_of(type(args)).keys()
    names = {f.name for f in fields(args)} & (ours | own) - args.custom_functions().keys()
    names -= {name for name in names if name.startswith("vllm_") and not name.startswith(_VLLM_THAT_COUNTS)}
    # as if what has no effect had been left out
    idle = {n: value for n, value in defaults(type(args)).items() if not is_active(args, TRL_ACTS.get(n, ()))}
    values = {f.name: idle.get(f.name, getattr(args, f.name)) for f in fields(args) if f.name in names}
    return {name: json.loads(json_text(value)) for name, value in values.items()}


def functions_of(trainer: Any) -> dict[str, Any]:
    """Digests of the run's functions, and of the modules that they need. Taken before any of them is called."""
    single, environments = _single_functions(trainer), _environments(trainer)
    return {
        **{name: _digest(function) for name, function in single.items()},
        "environment_factory": {name: _digest(factory) for name, factory in environments.items()},
        # their order is that of the prompt
        "tools": {function_label(x): f"{_digest(x)} at {i}" for i, x in enumerate(trainer.arguments["tools"] or [])},
        "reward_funcs": _rewards(trainer),
        "modules": modules_of(trainer),
    }


def codes_of(trainer: Any) -> dict[str, Any]:
    """What the functions of a run of the command line need of their files, by their place in its identity: see
    [`~trl_credit.support.source_code.code_of`]."""
    rewards = zip(unique_names(trainer.reward_func_names), trainer.task["reward"], strict=False)
    names = trainer.args.custom_functions() | {f"reward_funcs.{label}": name for label, name in rewards}
    codes = {place: code_of(name) for place, name in names.items()}
    return {place: code | {"code": _code(code["code"])} for place, code in codes.items() if code is not None}


def row_identity(record: dict[str, Any]) -> dict[str, Any]:
    """The identity in a run's record. Functions count by what they need of their files, where that is known."""
    identity = dict(record["identity"])
    for place, code in record.get("code", {}).items():
        setting, _, name = place.partition(".")
        if not name:
            identity[setting] = code["code"]
        elif name in identity[setting]:  # a digest, perhaps with a weight
            identity[setting] = identity[setting] | {name: code["code"] + identity[setting][name][_CODE_LENGTH:]}
    return identity


def edited(record: dict[str, Any]) -> list[str]:
    """What has changed since a run in its functions and in the modules that they need: "`f` in line 3 of mine.py". A
    file that is gone, or is no Python now, cannot be compared."""
    texts = []
    for code in record.get("code", {}).values():
        with contextlib.suppress(OSError, SyntaxError):
            now, line = needed_code(code["file"], code["function"])
            if _code(now) != code["code"]:
                texts.append(f"`{code['function']}` in line {line} of {short_path(code['file'])}")
    modules = record["identity"].get("modules") or {}
    return texts + [f"module {name}" for name in differences(modules, modules_now(modules, loaded={}), defaults={})]


def modules_of(trainer: Any) -> dict[str, str]:
    """Digests of the modules that the run's functions need and have loaded so far, by name."""
    functions = [*_single_functions(trainer).values(), *_environments(trainer).values()]
    functions += trainer.reward_funcs + (trainer.arguments["tools"] or [])
    return {name: _code(digest) for name, digest in helper_modules(functions).items()}


def modules_now(recorded: dict[str, str], *, loaded: dict[str, str]) -> dict[str, str]:
    """What became of the modules of a record: those that are not loaded yet are found by their files.

    A module that only one of two runs has loaded is no difference: whatever imports it now has changed as well.
    """
    files = {name: digest_of_module(name) for name in recorded.keys() - loaded.keys()}
    now = loaded | {name: _code(digest) for name, digest in files.items() if digest is not None}
    return recorded | {name: digest for name, digest in now.items() if name in recorded}


def _single_functions(trainer: Any) -> dict[str, Callable]:
    args, rollout = trainer.args, trainer.arguments["rollout_func"]
    custom = {knob: args.custom_function(knob) for knob in args.custom_functions()}
    return custom if rollout is None else custom | {"rollout_func": rollout}


def _environments(trainer: Any) -> dict[str, Any]:
    environments = trainer.arguments["environment_factory"]
    return environments if isinstance(environments, dict) else {"": environments} if environments else {}


def _digest(function: Any) -> str:
    return _code(digest_of(getattr(function, "__wrapped__", function)))  # not of the guard around it


def _code(digest: str) -> str:
    return f"SHA-256 {digest}"[:_CODE_LENGTH]


def _rewards(trainer: Any) -> dict[str, str]:
    """Digest of each reward function, or name of its model, with its weight."""
    functions, weights = trainer.reward_funcs, trainer.args.reward_weights
    codes = [base_name(f.config) if isinstance(f, nn.Module) else _digest(f) for f in functions]
    if weights is not None:  # TRL adds the environments' own rewards, with weight 1
        weights = [*weights, *[1.0] * (len(codes) - len(weights))]
        codes = [f"{code} * {weight:g}" for code, weight in zip(codes, weights, strict=True)]
    return dict(zip(unique_names(trainer.reward_func_names), codes, strict=True))


def _reward_models(trainer: Any) -> dict[str, Any]:
    """Digest of the weights of each reward function that is a model: number and name → digest."""
    pairs = enumerate(zip(trainer.reward_func_names, trainer.reward_funcs, strict=True), 1)
    models = {f"{i} {name}": function for i, (name, function) in pairs if isinstance(function, nn.Module)}
    return {name: weights_digest(model.config, trainer.args) for name, model in models.items()}
