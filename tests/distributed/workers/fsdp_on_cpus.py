"""FSDP2 on CPU processes, for the tests: accelerate reads its settings there, but shards only on accelerators."""

import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor


def shard_on_cpus() -> None:
    """Makes accelerate shard on CPU processes that are configured for FSDP."""
    original = AcceleratorState.__init__

    def init(self, *args, fsdp_plugin=None, **kwargs):
        first = not self.initialized
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if first and fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = init


def check_sharded(model: torch.nn.Module) -> None:
    """Fails if FSDP was configured and a parameter is not sharded."""
    if AcceleratorState().distributed_type == DistributedType.FSDP:
        assert all(isinstance(p, DTensor) for p in model.parameters())
