"""What the micro-batches of an optimizer step leave to be added over processes, by one collective call at its end."""

from collections.abc import Callable, Iterable, Sequence

import torch


class StepSums:
    """Numerators and denominators of metrics, and flags, on the device until the step is over: nothing waits for them.

    All processes must add the same names in the same order.

    Attributes:
        is_open: Whether a step runs that will be closed.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.clear()

    def clear(self) -> None:
        """Forgets what a step has left that did not come to its end."""
        self._names: list[str] = []
        self._sums: list[torch.Tensor] = []
        self._flags: list[torch.Tensor] = []

    def add(self, names: Iterable[str], sums: torch.Tensor) -> None:
        """Takes in numerator and denominator of each name, shape (K, 2)."""
        self._names += names
        self._sums.append(sums.flatten())

    def flag(self, is_bad: torch.Tensor) -> None:
        """Takes in whether something is wrong with a micro-batch of this process: a boolean, without dimensions."""
        self._flags.append(is_bad)

    def close(
        self, flags: Sequence[torch.Tensor], *, reduce: Callable[[torch.Tensor], torch.Tensor], device: torch.device
    ) -> tuple[list[tuple[str, float]], list[bool]]:
        """Ends the step: one collective call and one wait for the device, neither if there is nothing.

        Args:
            flags (sequence of `torch.Tensor`):
                More of them, of the step as a whole.
            reduce (`Callable`):
                Adds a tensor over processes.

        Returns:
            `tuple`: name and quotient of everything that was added, in order, and whether any process had a flag: first
            those of micro-batches, as one, then `flags`.
        """
        names, sums, of_micro_batches = self._names, self._sums, self._flags
        self.clear()
        if of_micro_batches:
            flags = [torch.stack(of_micro_batches).any(), *flags]
        if not names and not flags:
            return [], [False]
        total = reduce(torch.cat([*sums, *(flag.to(device, torch.float32).view(1) for flag in flags)]))
        pairs = total[: 2 * len(names)].view(-1, 2)
        found = torch.cat([pairs[:, 0] / pairs[:, 1], total[2 * len(names) :]]).tolist()
        values, bad = found[: len(names)], [x > 0 for x in found[len(names) :]]
        return list(zip(names, values, strict=True)), bad if of_micro_batches else [False, *bad]
