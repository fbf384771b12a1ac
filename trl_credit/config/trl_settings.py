"""Settings of TRL and transformers: values that are refused before anything is loaded, since there they are an error
that comes late or does not name the field, a division by zero, or another formula; and when a field has an effect.
"""

from pathlib import Path

from transformers import AutoConfig, AutoTokenizer
from transformers import __version__ as version
from transformers.integrations import INTEGRATION_TO_CALLBACK

from ..support.adapters import adapter_base
from ..support.errors import one_line
from .knobs import FINITE, NOT_NEGATIVE, POSITIVE, SHARE, Condition, Values, anything_but, list_of, number, one_of, when


_TRACKER = one_of(*sorted({*INTEGRATION_TO_CALLBACK, "all", "none"}))
_TRACKERS = list_of(_TRACKER)
_TABLE: dict[Values, str] = {
    number("at least 1", lambda x: x >= 1): "per_device_train_batch_size per_device_eval_batch_size num_iterations "
    "gradient_accumulation_steps steps_per_generation generation_batch_size max_completion_length "
    "vllm_tensor_parallel_size ref_model_sync_steps lora_r lora_alpha",
    number("at least 2, for responses to be compared", lambda x: x >= 2): "num_generations",
    NOT_NEGATIVE: "learning_rate adam_epsilon warmup_steps logging_steps",
    number("0 or more", lambda x: x >= 0): "epsilon epsilon_high top_p dataloader_num_workers",
    number("positive", lambda x: x > 0): "delta",
    POSITIVE: "temperature repetition_penalty num_train_epochs sapo_temperature_neg sapo_temperature_pos",
    number("above 0 and at most 1", lambda x: 0 < x <= 1): "vllm_gpu_memory_utilization",
    SHARE: "min_p top_entropy_quantile",
    number("at least 0 and below 1", lambda x: 0 <= x < 1): "adam_beta1 adam_beta2 lora_dropout",
    number("at least 0 and below 2**32", lambda x: 0 <= x < 2**32): "seed",
    number("at least 1, or 0 (all tokens; also -1)", lambda x: x >= -1): "top_k",
    FINITE: "beta weight_decay entropy_coef max_steps save_steps eval_steps num_generations_eval save_total_limit",
    number("a number", lambda x: x == x): "max_grad_norm entropy_coef_min entropy_coef_max entropy_target",
    list_of(FINITE, "finite numbers, one per reward function"): "reward_weights",
    Values("a tracker, or a list", lambda x: _TRACKER.holds(x) or _TRACKERS.holds(x), _TRACKER.names): "report_to",
    Values("`name: value` pairs", lambda x: isinstance(x, dict) or str(x).startswith("{")): "model_init_kwargs",
    # with some unknown choices TRL silently trains by another formula, or stops in the first step
    one_of("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"): "loss_type",
    one_of("token", "sequence"): "importance_sampling_level",
    one_of("group", "batch", "none", True, False): "scale_rewards",
    one_of("sum_then_normalize", "normalize_then_sum"): "multi_objective_aggregation",
    one_of("colocate", "server"): "vllm_mode",
}
TRL_VALUES: dict[str, Values] = {name: values for values, names in _TABLE.items() for name in names.split()}
NONE_TOO = ("top_k", "top_p", "repetition_penalty", "max_grad_norm")  # may be `None`, whatever their annotations say

_VLLM = when(use_vllm=True)
_SERVER = _VLLM | when(vllm_mode="server")
_CORRECTED = _VLLM | when(vllm_importance_sampling_correction=True, behavior_logps="recomputed")
_GENERATE = when(use_vllm=False)  # sampling by transformers
_CLIPPED = when(policy_loss="clip", loss_type=("grpo", "dapo", "dr_grpo", "bnpo", "luspo"))
_CISPO = when(policy_loss="clip", loss_type="cispo")  # clips from above alone
_SCALED = when(rollouts="none", returns="outcome", baseline="group")
_SHOWN = when(log_completions=True)


def _by_field(acts: dict[str, Condition | tuple[Condition, ...]]) -> dict[str, tuple[Condition, ...]]:
    """Field → the conditions of which one must hold for it to have an effect, from fields that have them in common."""
    own = {names: one if isinstance(one, tuple) else (one,) for names, one in acts.items()}
    return {name: conditions for names, conditions in own.items() for name in names.split()}


# as TRL's `GRPOTrainer` reads its fields
_TRL: dict[str, Condition | tuple[Condition, ...]] = {
    "shuffle_dataset": when(prompt_sampler="data"),
    "num_train_epochs": when(max_steps=number("-1", lambda x: x < 1)),
    "warmup_steps": when(lr_scheduler_type=anything_but("constant")),
    "vllm_mode vllm_structured_outputs_regex vllm_importance_sampling_correction": _VLLM,
    "vllm_importance_sampling_cap vllm_importance_sampling_mode vllm_importance_sampling_clip_max "
    "vllm_importance_sampling_clip_min": _CORRECTED,
    "vllm_server_base_url vllm_server_timeout vllm_group_port": _SERVER,
    "vllm_server_host vllm_server_port": _SERVER | when(vllm_server_base_url=None),
    "vllm_model_impl vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_max_model_length "
    "vllm_tensor_parallel_size": _VLLM | when(vllm_mode="colocate"),
    "use_transformers_paged use_transformers_continuous_batching ds3_gather_for_generation": _GENERATE,
    "cache_implementation": _GENERATE | when(use_transformers_continuous_batching=False),
    "transformers_continuous_batching_config": _GENERATE | when(use_transformers_continuous_batching=True),
    "use_bias_correction_kl sync_ref_model": when(beta=anything_but(0.0)),
    "ref_model_mixup_alpha ref_model_sync_steps": when(sync_ref_model=True, beta=anything_but(0.0)),
    "epsilon": (_CLIPPED, _CISPO | when(epsilon_high=None)),
    "epsilon_high": (_CLIPPED, _CISPO),
    "delta": _CLIPPED,
    "sapo_temperature_neg sapo_temperature_pos": when(loss_type="sapo"),
    "vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg": when(loss_type="vespo"),
    "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target": when(use_adaptive_entropy=True),
    "scale_rewards": _SCALED | when(multi_objective_aggregation="sum_then_normalize"),
    "log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo": _SHOWN,
}
TRL_ACTS = _by_field(_TRL)
# the same for TRL's `ModelConfig`
_MODEL: dict[str, Condition | tuple[Condition, ...]] = {
    "lora_r lora_alpha lora_dropout lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type "
    "use_rslora use_dora": when(use_peft=True),
    "bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage": when(load_in_4bit=True),
}
MODEL_ACTS = _by_field(_MODEL)
# what decides about the size of a generation batch and its updates
BATCH_FIELDS = """num_generations generation_batch_size per_device_train_batch_size steps_per_generation
gradient_accumulation_steps num_iterations""".split()


def check_model(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> None:
    """Checks that transformers can load the configuration and the tokenizer of a model, a folder or a name on the Hub;
    for an adapter, those of the model below it. Loads no weights.

    Raises:
        ValueError: it cannot, or a `revision` is given with a folder; the message has transformers' reason.
    """
    shown, is_folder = f"model_name_or_path={name!r}", Path(name).is_dir()
    if is_folder and revision not in (None, "main"):
        raise ValueError(f"model_revision={revision!r} does nothing, since {shown} is a folder: leave it out")
    if is_folder and (base := adapter_base(name)) is not None:
        return check_model(base, trust_remote_code=trust_remote_code)
    try:
        AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:  # of any kind, from files of any content
        code = "set --trust_remote_code once you have read its code; " * ("trust_remote_code" in str(error))
        what = "cannot be loaded" if is_folder else "is no folder, and cannot be loaded from the Hub"
        raise ValueError(f"{shown} {what} (transformers {version}): {code}{one_line(error)}") from error
    if len(tokenizer) == len(set(tokenizer.all_special_ids)):  # transformers makes an empty one if there are no files
        raise ValueError(f"{shown} has no vocabulary for a tokenizer: save the base model's tokenizer there too")
