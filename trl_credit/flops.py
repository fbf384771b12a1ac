"""What a forward pass costs: matrix products, as `torch.utils.flop_counter` counts them. Needs nothing but numbers."""

from typing import Any, NamedTuple


# FLOPs that have to be saved in a layer for each call of attention more, which takes its time however little it
# computes: a quarter of a millisecond, gradients included, on a CPU core; what an accelerator does meanwhile is a guess
OF_A_CALL = {"cpu": 2e7, "accelerator": 2e10}


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


def cost_of(config: Any) -> Cost | None:
    """Of a decoder, by its configuration; `None` where that does not say how large its layers are."""
    text = config.get_text_config()
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    if any(not isinstance(getattr(text, name, None), int) for name in names):
        return None
    hidden, inner, layers, heads, vocabulary = (getattr(text, name) for name in names)
    size = getattr(text, "head_dim", None) or hidden // heads
    of_keys = getattr(text, "num_key_value_heads", None) or heads
    weights = 2 * hidden * size * (heads + of_keys) + 3 * hidden * inner
    return Cost.of_sizes(matrix=layers * weights, layers=layers, attention=heads * size, head=hidden * vocabulary)


def cost_of_calls(config: Any, device: str, calls: float) -> float:
    """Of calls of attention in each layer of a model of this configuration, on a type of device, in FLOPs."""
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    return OF_A_CALL["cpu" if device == "cpu" else "accelerator"] * layers * calls
