"""A colocated vLLM on a CPU: runs `examples/train.py`, an audit, or two steps of a chain. See `test_vllm.py`."""

import runpy
import sys
from pathlib import Path

import torch
import vllm.model_executor.layers.linear as linear
import vllm.model_executor.layers.utils as utils
from worker import kept, logged, print_result, trainer_of

from trl_credit import SPOChainConfig, SPOChainTrainer
from trl_credit.cli import main as command
from trl_credit.demo import demo_reward, demo_settings


def keep_weights(layer: torch.nn.Module, *args, **kwargs) -> None:
    """On CPUs vLLM repacks weights and drops the originals, which the trainer's weight sync then misses."""
    layer.cpu_linear = torch.nn.functional.linear


def run_chain(folder: str) -> None:
    sizes = {"per_device_train_batch_size": 32, "max_steps": 2, "num_iterations": 1, "logging_steps": 1}
    settings = demo_settings(SPOChainConfig, **sizes) | {"use_vllm": True, "vllm_mode": "colocate"}
    settings |= {"vllm_gpu_memory_utilization": 0.1, "vllm_max_model_length": 64}
    trainer = trainer_of(SPOChainTrainer, demo_reward, folder, **settings)
    llm, calls, syncs = trainer.vllm_generation.llm, [], kept(trainer.vllm_generation, "sync_weights")
    generate, caching = llm.generate, llm.llm_engine.vllm_config.cache_config.enable_prefix_caching

    def counted_generate(prompts, sampling_params=None, **kwargs):
        params = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(prompts)
        calls.append([[len(p["prompt_token_ids"]), s.n, s.max_tokens] for p, s in zip(prompts, params, strict=False)])
        return generate(prompts, sampling_params=sampling_params, **kwargs)

    llm.generate = counted_generate
    trainer.train()
    print_result(log=logged(trainer), syncs=len(syncs), calls=calls, prefix_caching=caching)


def main(*arguments: str) -> None:
    for module in (utils, linear):
        module.dispatch_cpu_unquantized_gemm = keep_weights
    if arguments[0] == "chain":
        run_chain(*arguments[1:])
    elif arguments[0] == "audit":
        sys.exit(command(list(arguments)))
    else:
        sys.argv = [str(Path(__file__).resolve().parents[3] / "examples" / "train.py"), *arguments]
        runpy.run_path(sys.argv[0], run_name="__main__")
