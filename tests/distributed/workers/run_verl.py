"""One update of verl's real `TrainingWorker` (FSDP 2, packed rows) on one or two CPU processes: run_verl.py LOSS_MODE.

Each process prints its loss, metrics and the weights after the update.
"""

import os
import sys
from functools import partial
from types import SimpleNamespace


os.environ["VERL_ENGINE_DEVICE"] = "cuda"  # the name under which verl has its FSDP engine

import torch
import verl.plugin.platform as platforms
from torch.distributed.tensor import DTensor
from verl.plugin.platform.platform_base import PlatformBase


NAMES = (
    "max_memory_allocated max_memory_reserved memory_allocated memory_reserved empty_cache synchronize set_device "
    "manual_seed reset_peak_memory_stats"
).split()


def nothing(*args, **kwargs):
    return 0


class CPU(PlatformBase):
    """What verl asks of a device, for a CPU."""

    device_name, vendor_name = "cpu", "cpu"
    device_module = SimpleNamespace(
        **dict.fromkeys(NAMES, nothing),
        mem_get_info=lambda *args: (1, 1),
        current_device=lambda: torch.device("cpu"),
        get_device_name=lambda *args: "CPU",
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
        is_available=lambda: True,
        device_count=lambda: 1,
    )
    current_device = lambda self: torch.device("cpu")  # noqa: E731
    communication_backend_name = lambda self: "gloo"  # noqa: E731
    visible_devices_envvar = lambda self: "CUDA_VISIBLE_DEVICES"  # noqa: E731
    is_available = lambda self: True  # noqa: E731
    device_count = lambda self: 1  # noqa: E731


for _name in PlatformBase.__abstractmethods__ - {*vars(CPU)}:
    setattr(CPU, _name, nothing)
CPU.__abstractmethods__ = frozenset()
platforms.set_platform(CPU())

from hydra.utils import instantiate  # noqa: E402
from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.config import (  # noqa: E402
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker  # noqa: E402
from verl.workers.utils import losses  # noqa: E402
from worker import print_result  # noqa: E402

from trl_credit.demo import demo_model_path  # noqa: E402


def main(loss_mode: str) -> None:
    rank, size = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({name: value for name, value in alone.items() if name not in os.environ})
    torch.distributed.init_process_group("gloo")
    model = {"override_config": {"attn_implementation": "sdpa"}, "enable_gradient_checkpointing": False}
    full = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    micro = {"micro_batch_size_per_gpu": 2, "infer_micro_batch_size_per_gpu": 2, "use_dynamic_bsz": False}
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(path=demo_model_path(), use_remove_padding=False, **model),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2", model_dtype="fp32", use_torch_compile=False, mixed_precision=full, **micro
            ),
            optimizer_config=FSDPOptimizerConfig(lr=1e-3),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    ours, theirs = "trl_credit.engines.verl.PolicyLoss", "verl.workers.config.PolicyLossConfig"
    actor = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=4,
        ppo_micro_batch_size_per_gpu=2,
        calculate_entropy=True,
        policy_loss=instantiate({"_target_": ours if "." in loss_mode else theirs, "loss_mode": loss_mode}),
    )
    worker.set_loss_fn(partial(losses.ppo_loss, config=actor))
    # the same 8 rows whatever the number of processes
    g = torch.Generator().manual_seed(0)
    lengths = [5, 3, 7, 4, 6, 2, 5, 7]
    prompts = [torch.randint(3, 18, (2 + i % 2,), generator=g) for i in range(8)]
    responses = [torch.randint(3, 18, (n,), generator=g) for n in lengths]
    advantages = [torch.full((n,), a) for n, a in zip(lengths, torch.randn(8, generator=g).tolist(), strict=True)]
    noise = [0.3 * torch.randn(n, generator=g) for n in lengths]
    mine = slice(rank * 8 // size, (rank + 1) * 8 // size)

    def nested(rows):
        return torch.nested.as_nested_tensor(rows[mine], layout=torch.jagged)

    whole = [torch.cat(x) for x in zip(prompts, responses, strict=True)]
    ones = [torch.ones(n, dtype=torch.long) for n in lengths]
    outside = [torch.cat([torch.zeros(len(p), dtype=torch.long), m]) for p, m in zip(prompts, ones, strict=True)]
    data = {"prompts": prompts, "responses": responses, "input_ids": whole, "response_mask": ones, "loss_mask": outside}
    data |= {"position_ids": [torch.arange(len(x)) for x in whole], "advantages": advantages}
    settings = {"temperature": 1.0, "use_fused_kernels": False, "calculate_entropy": True, "compute_loss": False}
    settings |= {"global_token_num": [len(x) for x in whole[mine]]}
    batch = tu.get_tensordict({name: nested(rows) for name, rows in data.items()}, settings)
    known = worker.infer_batch(batch)["log_probs"]
    at = [slice(len(p) - 1, len(p) - 1 + n) for p, n in zip(prompts, lengths, strict=True)][mine]
    old = [row[s] - x for row, s, x in zip(known.unbind(), at, noise[mine], strict=True)]
    batch["old_log_probs"] = torch.nested.as_nested_tensor(old, layout=torch.jagged)
    update = {"compute_loss": True, "mini_batch_size": 8, "global_batch_size": 8, "epochs": 1, "seed": 0}
    tu.assign_non_tensor(batch, **update, dataloader_kwargs={"shuffle": False})
    before = weights_of(worker)
    metrics = tu.get(worker.train_mini_batch(batch), "metrics")
    metrics = {name: float(x[0] if isinstance(x, list) else x) for name, x in metrics.items() if "actor/" in name}
    weights = weights_of(worker)
    moved = max(abs(x - y) for x, y in zip(before, weights, strict=True))
    print_result(moved=moved, weights=weights, metrics=metrics)


def weights_of(worker: TrainingWorker) -> list[float]:
    """Sum and norm of each parameter."""
    parameters = [x.full_tensor() if isinstance(x, DTensor) else x for x in worker.engine.module.parameters()]
    return [number.item() for x in parameters for number in (x.detach().double().sum(), x.detach().double().norm())]


if __name__ == "__main__":
    main(sys.argv[1])
