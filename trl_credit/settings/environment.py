"""Environment variables that a recipe may set: those that tune a run, and none that decide what is run or trusted.

A recipe may come from others. With PATH, PYTHON*, LD_*, a proxy, HF_ENDPOINT or an NCCL plugin it could make this
machine load other code, or send the token elsewhere. So names are allowed one by one, without prefixes.
"""

import os
from collections.abc import Mapping


ALLOWED = frozenset(
    """
    CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES CUBLAS_WORKSPACE_CONFIG
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
    TORCHDYNAMO_DISABLE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
    TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT
    TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC
    NCCL_ALGO NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_DEBUG NCCL_IB_DISABLE NCCL_IB_HCA NCCL_IB_TIMEOUT
    NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_PROTO NCCL_SHM_DISABLE NCCL_SOCKET_IFNAME
    GLOO_SOCKET_IFNAME
    VLLM_ALLOW_LONG_MAX_MODEL_LEN VLLM_ATTENTION_BACKEND VLLM_CPU_KVCACHE_SPACE VLLM_CPU_OMP_THREADS_BIND
    VLLM_ENABLE_V1_MULTIPROCESSING VLLM_FLASH_ATTN_VERSION VLLM_LOGGING_LEVEL VLLM_USE_FLASHINFER_SAMPLER
    VLLM_USE_V1 VLLM_WORKER_MULTIPROC_METHOD
    HF_DATASETS_OFFLINE HF_HUB_DISABLE_PROGRESS_BARS HF_HUB_DISABLE_TELEMETRY HF_HUB_DISABLE_XET
    HF_HUB_DOWNLOAD_TIMEOUT HF_HUB_ETAG_TIMEOUT HF_HUB_OFFLINE TRANSFORMERS_OFFLINE TRANSFORMERS_VERBOSITY
    DATASETS_VERBOSITY TOKENIZERS_PARALLELISM OMP_NUM_THREADS MKL_NUM_THREADS
    WANDB_MODE WANDB_PROJECT
    """.split()
)


def set_environment(settings: object, *, where: str) -> None:
    """Sets the variables of `env:` in a recipe, all of them or none. `true` and `false` become `1` and `0`.

    Args:
        settings (`Mapping`):
            Name → number, string or bool. `None`: no variables.
        where (`str`):
            Name of the file, for the messages.

    Raises:
        ValueError: it is no mapping, a name is not in `ALLOWED`, or a value is not a single line.
    """
    if settings is None:
        return
    if not isinstance(settings, Mapping):
        raise ValueError(f"`env` in {where} must hold `NAME: value` lines")
    values = {}
    for name, value in settings.items():
        if name not in ALLOWED:
            fix = "set it in your shell (`trl-credit help hub` lists what a recipe may set)"
            raise ValueError(f"`env` in {where} sets {str(name)!r}, which a recipe may not: {fix}")
        if not isinstance(value, (str, int, float)) or not str(value).isprintable():
            raise ValueError(f"`env` in {where}: {name} must be one number, word or line in quotes")
        values[name] = str(int(value) if isinstance(value, bool) else value)
    os.environ.update(values)
