"""The processes of a run, and the collective calls that all of them must make, with equal shapes."""

from collections.abc import Sequence

import torch
from accelerate import Accelerator


class Processes:
    """This process among those of the run.

    Args:
        accelerator (`Accelerator`):
            The accelerator of the run.

    Attributes:
        rank: Rank of this process.
        count: Number of processes of the run.
        is_main: Whether this is the main process of the run.
        device: Device of this process.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.rank: int = accelerator.process_index
        self.count: int = accelerator.num_processes
        self.is_main: bool = accelerator.is_main_process
        self.device: torch.device = accelerator.device

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of all processes, by rank. Collective."""
        return self._accelerator.gather(x)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Elementwise sum over processes. Collective."""
        return self._accelerator.reduce(x, reduction="sum")

    def gather_columns(self, *columns: torch.Tensor) -> list[torch.Tensor]:
        """Gathers columns (B,), or tables (B, T) of one shape, of any type with a single collective call: (N,), (N, T).

        Values arrive exactly, since floating types below float32 are sent as float32.
        """
        gathered = self.gather(torch.stack([_as_integers(column) for column in columns], 1))
        return [_restored(gathered[:, i], column.dtype) for i, column in enumerate(columns)]

    def max(self, n: int) -> int:
        """The largest `n` of all processes. Collective."""
        return self.max_of_each([n])[0]

    def max_of_each(self, numbers: Sequence[int]) -> list[int]:
        """The largest of all processes, for each number. One collective call."""
        return self.gather(torch.tensor([list(numbers)], device=self.device)).amax(0).tolist()


def _as_integers(column: torch.Tensor) -> torch.Tensor:
    if column.dtype == torch.float64:
        return column.view(torch.int64)
    return column.float().view(torch.int32).long() if column.is_floating_point() else column.long()


def _restored(column: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float64:
        return column.contiguous().view(dtype)
    return column.int().view(torch.float32).to(dtype) if dtype.is_floating_point else column.to(dtype)
