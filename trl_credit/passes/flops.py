"""FLOPs of a forward pass: matrix products, as `torch.utils.flop_counter` counts them. Imports no torch."""

from typing import Any, NamedTuple


# FLOPs that a further call of attention must save in its layer to be worth its overhead: 0.25 ms on a CPU core, with
# gradients; the figure for accelerators is a guess
OF_A_CALL = {"cpu": 2e7, "accelerator": 2e10}


class Pass(NamedTuple):
    """Size of a forward pass: tokens, pairs of tokens in attention, and scored tokens."""

    tokens: float
    squares: float
    scored: float


def rows_pass(rows: float, *, length: float, scored: float) -> Pass:
    """A pass over unpacked rows of `length` tokens, with probabilities for `scored` of them."""
    return Pass(rows * length, rows * length**2, rows * scored)


class Cost(NamedTuple):
    """FLOPs of a decoder: a multiplication and an addition per weight and token, and attention's scores and sums.

    Attributes:
        body: Per token, in the layers' matrices.
        attention: Per pair of tokens of a row, masked or not.
        head: Per token whose probabilities are computed.
    """

    body: float
    attention: float
    head: float

    def forward(self, of: Pass) -> float:
        """FLOPs of a pass."""
        return self.body * of.tokens + self.attention * of.squares + self.head * of.scored


def cost_of(config: Any) -> Cost | None:
    """Cost of a decoder by its configuration; `None` where that does not give the size of its layers."""
    text = config.get_text_config()
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    sizes = [getattr(text, name, None) for name in names]
    if not all(isinstance(x, int) for x in sizes):
        return None
    hidden, inner, layers, heads, vocabulary = sizes
    size = getattr(text, "head_dim", None) or hidden // heads
    of_keys = getattr(text, "num_key_value_heads", None) or heads
    weights = 2 * hidden * size * (heads + of_keys) + 3 * hidden * inner
    return Cost(2.0 * layers * weights, 4.0 * layers * heads * size, 2.0 * hidden * vocabulary)


def cost_of_calls(config: Any, device: str, calls: float) -> float:
    """Overhead in FLOPs of further calls of attention in each layer of a model, on a type of device."""
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    return OF_A_CALL["cpu" if device == "cpu" else "accelerator"] * layers * calls
