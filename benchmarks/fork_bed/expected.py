"""What another implementation of the bed found, and whether this one agrees within both intervals.

It is an independent program by another author, on other random numbers: 6 seeds for tuning and 12 for the verdict as
here (18 at the untuned rate).
"""

from collections.abc import Mapping
from math import hypot
from typing import Any, NamedTuple

from .analysis import verdicts


_SETTINGS = "ABCDE"
# mean difference from GRPO and half of its 95 % interval, in A to E
_TUNED = """
s_trace    -0.124 0.064  -0.016 0.019  -0.066 0.026  -0.059 0.055  -0.150 0.068
reference  -0.091 0.075   0.004 0.005   0.075 0.028   0.016 0.059  -0.523 0.046
p_trace    -0.145 0.080  -0.005 0.008  -0.004 0.022  -0.009 0.014   0.006 0.018
lambda     -0.340 0.093  -0.025 0.031  -0.054 0.029  -0.061 0.032  -0.048 0.085
top_20     -0.011 0.022  -0.017 0.017  -0.158 0.033  -0.061 0.030  -0.248 0.059
vine_ppo    0.049 0.060   0.080 0.043   0.138 0.046   0.108 0.041   0.104 0.052
spo_chain   0.004 0.053   0.052 0.027   0.141 0.041       - -       0.169 0.049
oracle      0.011 0.035   0.007 0.026   0.125 0.045   0.098 0.036   0.141 0.044
"""
_UNTUNED = """
s_trace    -0.134 0.011   0.008 0.002   0.091 0.005   0.064 0.003  -0.143 0.009
"""


class Cell(NamedTuple):
    """A difference that both implementations have.

    Attributes:
        algorithm, setting: What is compared with GRPO, and where.
        tuned: Whether both have their best learning rate.
        theirs, ours: Mean difference and half of its 95 % interval.
    """

    algorithm: str
    setting: str
    tuned: bool
    theirs: tuple[float, float]
    ours: tuple[float, float]

    @property
    def distance(self) -> float:
        """Distance of the two over half of the 95 % interval of their difference, √(h₁² + h₂²)."""
        return abs(self.theirs[0] - self.ours[0]) / hypot(self.theirs[1], self.ours[1])

    @property
    def agrees(self) -> bool:
        """Whether the two differ by no more than that."""
        return self.distance <= 1


def cells(results: Mapping[str, Any]) -> list[Cell]:
    """All cells of both tables."""
    agreement = []
    for tuned, text in ((True, _TUNED), (False, _UNTUNED)):
        for line in text.split("\n")[1:-1]:
            algorithm, *numbers = line.split()
            for setting, value, half in zip(_SETTINGS, numbers[::2], numbers[1::2], strict=True):
                if value != "-":
                    test = verdicts(results, setting, tuned=tuned)[algorithm].test
                    ours = test.value, test.high - test.value
                    agreement.append(Cell(algorithm, setting, tuned, (float(value), float(half)), ours))
    return agreement
