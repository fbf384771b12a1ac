"""Formulas for what a run generates, computes and stores. They need numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...passes.flops import Cost, Pass


# tokens and entries of the vocabulary whose logits TRL's fused head has in memory at the same time
HEAD_TOKENS, HEAD_ENTRIES = 4096, 32768
# values of optimizer state per trained parameter, in the type of the weights
_STATES = {"adamw": 2.0, "adam": 2.0, "sgd": 0.0}
_EIGHT_BIT = 2.0  # bytes per parameter of both moments


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    Attributes:
        parameters: All parameters, adapters included; tied ones count once.
        trained: Parameters with a gradient.
        matrix: Parameters of the layers' matrices that multiply a token; of a mixture, those of its active experts.
        vocabulary, hidden, layers: Sizes.
        inner: Width of the feed-forward block, of all active experts together.
        attention, keys: Total width of the queries and of the keys of all heads.
        has_head_norms: Whether queries and keys have their own norms.
        source: What the plan says of sizes that are not from the model's own configuration.
        context: Most tokens of prompt and response together. The default is a guess.
    """

    parameters: int
    trained: int
    matrix: int
    vocabulary: int
    hidden: int
    layers: int
    inner: int
    attention: int
    keys: int
    has_head_norms: bool = False
    source: str | None = None
    context: int = 32_768

    @property
    def head(self) -> int:
        """Parameters of the output matrix."""
        return self.vocabulary * self.hidden

    @property
    def cost(self) -> Cost:
        """FLOPs of a forward pass."""
        return Cost.of_sizes(matrix=self.matrix, layers=self.layers, attention=self.attention, head=self.head)

    @property
    def is_adapted(self) -> bool:
        """Whether most weights are frozen."""
        return self.trained < self.parameters


# Tokens


def prompts_on(rows: int, group: int, processes: int) -> int:
    """Number of prompts summed over processes: a group that lies on two processes counts twice.

    Each process has `rows` rows, and groups of `group` rows follow each other over all processes.
    """
    return sum(((p + 1) * rows - 1) // group - (p * rows) // group + 1 for p in range(processes))


def most_rollout_tokens(begins: Sequence[int], *, length: int, rows: int, starts: int) -> int:
    """Most tokens of one continuation from each of `begins`, the places at which segments of a response begin.

    A continuation from place b has up to `length` − b tokens. There is one for each of `rows` responses, but from the
    first token only one for each of `starts` prompts.
    """
    return sum((length - b) * (starts if b == 0 else rows) for b in begins)


def mean_states(segments: float, *, rows: int, starts: int, at_first: bool) -> tuple[float, float]:
    """States that a chain values, given the mean number of segments per response, and the mean share of a response that
    is left at a state: all of it at the first token, half of it elsewhere."""
    later = rows * max(0.0, segments - at_first)
    states = later + starts * at_first
    return states, (later / 2 + starts * at_first) / states if states else 0.0


def every(step: int, *, length: int, first: int = 0, last: bool = False) -> list[int]:
    """`first`, `first` + `step`, … below `length`. The place of the last token counts only with `last`, or if it is the
    only place: before it nothing is left to decide."""
    return [*range(first, length if last or length == 1 else length - 1, step)]


class TreeSize(NamedTuple):
    """Size of a tree: nodes without the root, their tokens, the summed tokens of the paths to each node, leaves, tokens
    of request prefixes besides the prompt, and pairs of a token with the tokens of its path."""

    nodes: int
    tokens: float
    path_tokens: float
    leaves: int
    prefix_tokens: float
    pairs: float

    def squares(self, prompt: float, *, rows: float = 1) -> float:
        """Pairs of tokens in attention with branches side by side, if each of `rows` begins with the prompt."""
        return prompt * (rows * prompt + self.tokens) + self.pairs


def tree_size(branching: Sequence[int], *, segment: int, length: float) -> TreeSize:
    """A tree with `branching` children per node, inner segments of `segment` tokens, and paths of `length` tokens."""
    nodes, level_nodes, tokens, paths, prefixes, pairs = 0, 1, 0.0, 0.0, 0.0, 0.0
    for level, children in enumerate(branching):
        written = min(level * segment, length)
        left = length - written
        if left <= 0:
            break
        prefixes += level_nodes * written
        level_nodes *= children
        new = left if level == len(branching) - 1 else min(segment, left)
        nodes, tokens, paths = nodes + level_nodes, tokens + level_nodes * new, paths + level_nodes * (written + new)
        pairs += level_nodes * new * (written + new)
    return TreeSize(nodes, tokens, paths, level_nodes, prefixes, pairs)


# Floating-point operations


def training_flops(shape: Shape, of: Pass, *, checkpointing: bool) -> float:
    """FLOPs of a forward and a backward pass.

    The backward pass computes two products for each product, and one if its weight is frozen. The fused head computes
    its logits again, and gradient checkpointing computes each layer again.
    """
    cost = shape.cost
    layers = cost.layers(of)
    frozen = cost.body * of.tokens * shape.is_adapted
    head = cost.head * of.scored * (2 if shape.is_adapted else 3)
    return cost.forward(of) + 2 * layers - frozen + head + checkpointing * layers


def generation_flops(shape: Shape, *, tokens: float, context: float, prefill: float) -> float:
    """FLOPs of `tokens` new tokens, each of which attends to `context` others on average, after `prefill` tokens."""
    return shape.cost.forward(Pass(tokens + prefill, tokens * context, tokens))


# Bytes


@dataclass(frozen=True)
class Layout:
    """How a run is distributed over its GPUs.

    Attributes:
        processes: Number of GPUs.
        kind: "none", "ddp", "zero1", "zero2", "zero3" or "fsdp".
        weight_bytes: Bytes of a weight as loaded.
        compute_bytes: Bytes of a number in a matrix product: 2 for bfloat16 and float16.
        optimizer: transformers' name of the optimizer.
        reference: Whether there is a reference model.
        checkpointing: Whether gradient checkpointing is on.
        frozen_bytes: Bytes of a frozen weight, if it is quantized.
        offloads: What is in the memory of the CPU: "optimizer", "parameters".
    """

    processes: int
    kind: str = "none"
    weight_bytes: int = 4
    compute_bytes: int = 4
    optimizer: str = "adamw_torch"
    reference: bool = False
    checkpointing: bool = False
    frozen_bytes: float | None = None
    offloads: tuple[str, ...] = ()

    @property
    def has_master(self) -> bool:
        """Whether DeepSpeed has weights in 16 bits, and a copy of the trained ones in 32 bits with the optimizer."""
        return self.kind.startswith("zero") and self.compute_bytes < 4

    @property
    def held_bytes(self) -> int:
        """Bytes of a weight in training."""
        return self.compute_bytes if self.has_master else self.weight_bytes

    @property
    def casts(self) -> bool:
        """Whether autocast makes a copy of every matrix."""
        return self.kind in ("none", "ddp") and self.compute_bytes < self.weight_bytes


def optimizer_states(name: str) -> float | None:
    """Values of state per trained parameter; `None` for an unknown optimizer."""
    return _STATES.get(name.removeprefix("paged_").partition("_")[0])


def _optimizer_bytes(layout: Layout) -> float:
    """Bytes per trained parameter; an unknown optimizer has the state of AdamW."""
    master = 4.0 if layout.has_master else 0.0
    if "8bit" in layout.optimizer:
        return master + _EIGHT_BIT
    states = optimizer_states(layout.optimizer)
    return master + (2.0 if states is None else states) * (4 if layout.has_master else layout.weight_bytes)


def activation_bytes(shape: Shape, layout: Layout) -> tuple[float, float]:
    """Bytes per token that a layer like Llama's or Qwen's keeps for its backward pass, and those of its input.

    A norm keeps its input in float32 and its output, a product its input, attention the queries, keys and values of
    all heads, and the feed-forward block four tensors of its width. Under autocast a product also keeps a copy of its
    input.
    """
    held, compute = layout.held_bytes, layout.compute_bytes
    inputs = 5 if layout.casts or (layout.kind == "fsdp" and compute < held) else 2
    norms = 2 * (4 + held) * shape.hidden
    products = compute * (inputs * shape.hidden + 4 * shape.attention + 4 * shape.inner)
    heads = (4 + compute) * (shape.attention + shape.keys) * shape.has_head_norms
    return norms + products + heads, held * shape.hidden


def memory(shape: Shape, layout: Layout, *, tokens: int, scored: int) -> dict[str, float]:
    """Bytes per GPU by purpose, for micro-batches of `tokens` tokens with padding, of which `scored` have their
    probability computed. vLLM, communication buffers and fragmentation are left out."""
    by_weight = layout.processes if layout.kind in ("zero3", "fsdp") else 1
    by_gradient = layout.processes if layout.kind in ("zero2", "zero3", "fsdp") else 1
    by_state = layout.processes if layout.kind in ("zero1", "zero2", "zero3", "fsdp") else 1
    held, compute, frozen = layout.held_bytes, layout.compute_bytes, shape.parameters - shape.trained
    weights = shape.trained * held + frozen * (held if layout.frozen_bytes is None else layout.frozen_bytes)
    states = shape.trained * _optimizer_bytes(layout)
    in_layer, of_input = activation_bytes(shape, layout)
    kept = shape.layers * of_input + in_layer if layout.checkpointing else shape.layers * in_layer
    gathered = (by_weight > 1) * compute * (2 * shape.matrix / max(shape.layers, 1) + shape.head)
    logits = min(scored, HEAD_TOKENS) * min(shape.vocabulary, HEAD_ENTRIES) * compute
    found = {
        "weights": weights / by_weight * ("parameters" not in layout.offloads),
        "gradients": shape.trained * held / by_gradient,
        "optimizer state": states / by_state * ("optimizer" not in layout.offloads),
        "reference": layout.reference * shape.parameters * held / by_weight,
        "buckets of DDP": shape.trained * held * (layout.kind == "ddp"),
        "matrices in 16 bits": layout.casts * (shape.matrix + shape.head) * compute,
        "gathered weights": gathered,
        "activations": tokens * kept,
        "head": logits + 8 * scored * shape.hidden + 4 * shape.head * (not shape.is_adapted),
    }
    return {name: size for name, size in found.items() if size}
