"""What a forward pass costs: matrix products, as `torch.utils.flop_counter` counts them. Needs nothing but numbers."""

from typing import NamedTuple


class Pass(NamedTuple):
    """A forward pass: tokens, pairs of tokens in attention, and tokens that are scored."""

    tokens: float
    squares: float
    scored: float


def rows_pass(rows: float, *, length: float, scored: float) -> Pass:
    """Rows of `length` tokens, of which `scored` have their probability computed; attention over whole squares."""
    return Pass(rows * length, rows * length**2, rows * scored)


class Cost(NamedTuple):
    """FLOPs of a decoder: a multiplication and an addition per weight and token, and the scores and sums of attention.

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

    def layers(self, of: Pass) -> float:
        """Of a pass through all but the head."""
        return self.body * of.tokens + self.attention * of.squares

    def forward(self, of: Pass) -> float:
        """Of a pass."""
        return self.layers(of) + self.head * of.scored
