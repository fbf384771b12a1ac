"""Trains three steps of S-trace with a colocated vLLM on a CPU; `test_vllm.py` reads its last line."""

import sys

import torch
import vllm.model_executor.layers.linear as linear
import vllm.model_executor.layers.utils as utils

from trl_credit import STraceConfig, STraceTrainer
from trl_credit.demo import DEMO_SETTINGS, demo_dataset, demo_model_path, demo_reward


def keep_weights(layer: torch.nn.Module, *args, **kwargs) -> None:
    """On CPUs vLLM repacks weights and drops the originals, which the trainer's weight sync then misses."""
    layer.cpu_linear = torch.nn.functional.linear


def main(folder: str) -> None:
    for module in (utils, linear):
        module.dispatch_cpu_unquantized_gemm = keep_weights
    settings = {**DEMO_SETTINGS, "max_steps": 3, "logging_steps": 1, "per_device_train_batch_size": 32}
    args = STraceConfig(
        output_dir=folder,
        report_to="none",
        save_strategy="no",
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.1,
        vllm_max_model_length=64,
        beta=0.0,
        **settings,
    )
    trainer = STraceTrainer(demo_model_path(), demo_reward, args, train_dataset=demo_dataset())
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    moved = sum(float((a - b).abs().max()) for a, b in zip(before, trainer.model.parameters(), strict=True))
    names = ("reward", "sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean")
    means = [sum(row[name] for row in rows) / len(rows) for name in names]
    print("RESULT", *means, moved)


if __name__ == "__main__":
    main(sys.argv[1])
