"""What TRL's hooks need while TRL samples one generation batch."""

from dataclasses import dataclass

import torch

from ..rollouts.policy import Planned


@dataclass
class SamplePass:
    """One call of TRL's `_generate_and_score_completions`.

    Attributes:
        plan: Rows that replace what TRL would generate, or `None`.
        engine_logps: The engine's log-probabilities of the batch, to replace TRL's pass for π_old, or `None`.
        rewards_per_func: Rewards (N, functions) of the rows of all processes, once they are known.
    """

    plan: Planned | None = None
    engine_logps: list[list[float | None]] | None = None
    rewards_per_func: torch.Tensor | None = None

    def take_engine_logps(self) -> list[list[float | None]] | None:
        """The engine's log-probabilities, for the first forward pass alone: TRL's next one is not that for π_old."""
        found, self.engine_logps = self.engine_logps, None
        return found
