"""What a forward pass costs: matrix products, as `torch.utils.flop_counter` counts them. Needs nothing but numbers."""

from typing import NamedTuple


class Cost(NamedTuple):
    """FLOPs of a forward pass of a decoder: a multiplication and an addition per weight and token, and the scores and
    sums of attention over the whole square of a row.

    Attributes:
        body: Of a token, in the layers' matrices.
        attention: Of a pair of tokens of a row, seen or not.
        head: Of a token whose probabilities are computed.
    """

    body: float
    attention: float
    head: float

    @classmethod
    def of_sizes(cls, *, matrix: int, layers: int, attention: int, head: int) -> "Cost":
        """By the parameters of the layers' matrices and of the head's, and the width of all heads of a layer."""
        return cls(2.0 * matrix, 4.0 * layers * attention, 2.0 * head)

    def layers(self, tokens: float, squares: float) -> float:
        """Of `tokens` through all but the head, with `squares` the sum over rows of squared lengths."""
        return self.body * tokens + self.attention * squares

    def forward(self, tokens: float, squares: float, scored: float) -> float:
        """Of a pass in which `scored` of the tokens go through the head."""
        return self.layers(tokens, squares) + self.head * scored
