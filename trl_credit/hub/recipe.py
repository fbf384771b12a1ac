"""The recipe that repeats a run: the settings that may leave this machine and that are not the command line's
defaults."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

import yaml
from accelerate.state import AcceleratorState, PartialState
from transformers import TrainingArguments
from trl import GRPOConfig

from ..config import CreditConfig, active_part
from ..config.knobs import is_active
from ..config.trl_settings import TRL_ACTS
from ..demo import DEMO_SEGMENTS, task_of_model
from .public import Public


T = TypeVar("T")
logger = logging.getLogger(__name__)

TRL_FIELDS = frozenset(f.name for f in fields(GRPOConfig))
# Fields with text that may leave this machine, of transformers, of TRL, and of the command line. Text in any other
# field of theirs stays here; numbers, truth values and choices cannot hold a secret.
PUBLIC_TEXT = frozenset(
    """
    lr_scheduler_type lr_scheduler_kwargs optim optim_args optim_target_modules gradient_checkpointing_kwargs
    torch_compile_backend torch_compile_mode liger_kernel_config logging_strategy eval_strategy include_for_metrics
    include_num_input_tokens_seen save_strategy metric_for_best_model accelerator_config parallelism_config deepspeed
    fsdp fsdp_config debug dataloader_multiprocessing_context label_names train_sampling_strategy length_column_name

    model_init_kwargs pad_to_multiple_of generation_kwargs chat_template_kwargs cache_implementation vllm_mode
    vllm_model_impl vllm_structured_outputs_regex importance_sampling_level multi_objective_aggregation scale_rewards
    loss_type vllm_importance_sampling_mode log_completions_hub_repo transformers_continuous_batching_config

    algo reward evaluation_protocol evaluate_on dataset_name dataset_revision dataset_config dataset_split prompt_column
    answer_column prompt_style decontaminate model_name_or_path model_revision dtype attn_implementation
    lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type bnb_4bit_quant_type
    bnb_4bit_quant_storage
    """.split()
)
# what describes this machine, an account, the display, or one start of the run, or what others determine; transformers
# 5.24 sets `activation_checkpointing` by TRL's `gradient_checkpointing`, which older ones know too
PRIVATE = frozenset(
    """
    push_to_hub hub_private_repo hub_always_push hub_strategy disable_tqdm local_rank ddp_find_unused_parameters
    ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_timeout vllm_server_port vllm_server_timeout
    vllm_group_port overwrite_output_dir allow_changed generation_batch_size activation_checkpointing
    activation_checkpointing_kwargs
    """.split()
)
# building a configuration with these changes the process, or turns them into other types
_NOT_TWICE = ("deepspeed", "fsdp", "fsdp_config", "accelerator_config", "parallelism_config")
COMMAND_LINE = {"logging_steps": 1}  # the command line's defaults that are not those of the configuration


def recipe_of(
    args: CreditConfig, choices: Collection[Any], public: Public, *, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The public settings of a run that the command line would not choose by itself, as values that YAML can hold.

    `choices` are the dataclasses beside the configuration; `more` comes first.
    """
    recipe, defaults = dict(more or {}), dict(COMMAND_LINE)
    for part in choices:
        recipe |= changed(part)
        if task := task_of_model(getattr(part, "model_name_or_path", None)):
            defaults |= task.settings | active_part(DEMO_SEGMENTS, vars(args))
    return public.value(recipe | changed(args, defaults=defaults))


def to_yaml(recipe: dict[str, Any]) -> str:
    """`name: value` lines, which `--config` takes back."""
    return yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=100)


def public_fields(settings: Any) -> list[str]:
    """Names of a dataclass's fields that a recipe may show: without those in `PRIVATE`, all knobs of a
    [`CreditConfig`], fields without text, fields in `PUBLIC_TEXT`, and fields that declare `metadata={"public": True}`.
    """
    public = {f.name for f in fields(settings) if f.name in PUBLIC_TEXT or f.metadata.get("public")}
    if isinstance(settings, CreditConfig):
        public |= {f.name for f in fields(settings)} - TRL_FIELDS
    names = [f.name for f in fields(settings) if f.init and f.name not in PRIVATE]
    return [name for name in names if name in public or not _holds_text(getattr(settings, name))]


def _holds_text(value: Any) -> bool:
    if isinstance(value, (list, tuple, set)):
        return any(map(_holds_text, value))
    return not (value is None or isinstance(value, (bool, int, float, Enum)))


def changed(settings: Any, *, defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The public fields of a dataclass whose values are not their defaults, including fields that were set to `None`,
    and without fields of TRL that have no effect.

    The dataclass built from these fields has the same public fields. `defaults` replace those of the dataclass.
    """
    defaults = {name: value for name, value in (defaults or {}).items() if hasattr(settings, name)}
    if isinstance(settings, TrainingArguments):
        defaults |= {"output_dir": settings.output_dir, "report_to": "none"}
    names = [name for name in public_fields(settings) if is_active(settings, TRL_ACTS.get(name, ()))]
    recipe: dict[str, Any] = {}
    for _ in range(4):  # a field that was set may change the default of another one
        try:
            values = {name: value for name, value in recipe.items() if name not in _NOT_TWICE}
            other = vars(build(type(settings), **{**defaults, **values}))
        except ValueError as error:
            logger.warning("the recipe may lack a field that another one sets by default: %s", error)
            break
        recipe |= {x: getattr(settings, x) for x in names if x not in recipe and getattr(settings, x) != other[x]}
        if recipe.get("importance") == recipe.get("importance_sampling_level") and "top_entropy_quantile" not in recipe:
            recipe.pop("importance_sampling_level", None)  # `importance` sets it, unless TRL's two were set together
    return {name: recipe[name] for name in names if name in recipe}


def build(kind: type[T], **values: Any) -> T:
    """`kind(**values)`, a dataclass, without an effect on a running trainer: transformers resets Accelerate's state for
    each new configuration, and this function restores it."""
    states = [(shared, dict(shared)) for shared in (PartialState._shared_state, AcceleratorState._shared_state)]
    try:
        return kind(**values)
    finally:
        for shared, before in states:
            shared.update(before)
