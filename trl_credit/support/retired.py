"""Names that TRL and transformers had and removed, and what to write instead. Imports no torch."""

from collections.abc import Iterable

from .errors import did_you_mean


# who removed them → name: what to write
_RETIRED = {
    "TRL removed it in 0.28": {
        "max_prompt_length": "leave longer prompts out of the data (--max_prompt_tokens of the command line)",
        "use_liger_loss": "leave it out, or write use_liger_kernel for Liger's kernels",
        "vllm_guided_decoding_regex": "write vllm_structured_outputs_regex",
    },
    "TRL removed it in 0.27": {
        "wandb_log_unique_prompts": "write log_unique_prompts",
        "torch_dtype": "write dtype",
    },
    "TRL removed it in 0.20": {
        "token_entropy_percentile_threshold": "write top_entropy_quantile, which is 1 minus it",
    },
    "TRL removed it in 0.18": {
        "vllm_device": "write vllm_mode='colocate' or 'server'",
        "vllm_dtype": "start `trl vllm-serve` with --dtype",
        "vllm_enable_prefix_caching": "start `trl vllm-serve` with --enable_prefix_caching",
        "vllm_max_model_len": "write vllm_max_model_length",
    },
    "transformers removed it": {
        "tokenizer": "write processing_class",
        "evaluation_strategy": "write eval_strategy",
        "no_cuda": "write use_cpu",
        "warmup_ratio": "write warmup_steps, which below 1 is a share of the steps",
        "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR",
        "group_by_length": "write train_sampling_strategy='group_by_length'",
        "include_inputs_for_metrics": "write include_for_metrics=['inputs']",
        "include_tokens_per_second": "write include_num_input_tokens_seen",
        "push_to_hub_organization": "write hub_model_id='organization/name'",
        "adafactor": "write optim='adafactor'",
        "sharded_ddp": "write fsdp",
        **dict.fromkeys(("per_gpu_train_batch_size", "per_gpu_eval_batch_size"), "write per_device_… for per_gpu_…"),
        **dict.fromkeys(("push_to_hub_token", "push_to_hub_model_id"), "write hub_… for push_to_hub_…"),
        **dict.fromkeys(("fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap"), "write it into fsdp_config"),
        **dict.fromkeys(("dispatch_batches", "split_batches"), "write it into accelerator_config"),
        **dict.fromkeys(("torchdynamo", "xpu_backend"), "write torch_compile_backend or ddp_backend"),
        **dict.fromkeys(
            "fp16_backend fp16_opt_level half_precision_backend jit_mode_eval mp_parameters no_deprecation_warning "
            "past_index ray_scope save_safetensors tpu_metrics_debug tpu_num_cores use_ipex use_legacy_prediction_loop "
            "use_mps_device".split(),
            "leave it out",
        ),
    },
}
RETIRED = {name: f"{who}; {fix}" for who, fixes in _RETIRED.items() for name, fix in fixes.items()}


def meant_by(name: str, known: Iterable[str]) -> str:
    """What to write for an unknown name of a field or flag, for the end of a message: the entry of the table, or a
    known name if this one is a misspelling of it. "" if neither is so."""
    retired = RETIRED.get(name.lstrip("-").replace("-", "_"))
    return f": {retired}" if retired else did_you_mean(name, known, cutoff=0.8)
