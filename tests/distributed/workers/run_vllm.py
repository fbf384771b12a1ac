"""Runs `examples/train.py` with a colocated vLLM on a CPU; `test_vllm.py` starts it and reads what it leaves."""

import runpy
import sys
from pathlib import Path

import torch
import vllm.model_executor.layers.linear as linear
import vllm.model_executor.layers.utils as utils


def keep_weights(layer: torch.nn.Module, *args, **kwargs) -> None:
    """On CPUs vLLM repacks weights and drops the originals, which the trainer's weight sync then misses."""
    layer.cpu_linear = torch.nn.functional.linear


if __name__ == "__main__":
    for module in (utils, linear):
        module.dispatch_cpu_unquantized_gemm = keep_weights
    script = Path(__file__).resolve().parents[3] / "examples" / "train.py"
    sys.argv[0] = str(script)
    runpy.run_path(str(script), run_name="__main__")
