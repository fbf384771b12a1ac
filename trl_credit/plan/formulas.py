"""What a run generates, trains on, computes and holds, as formulas. Needs nothing but numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..flops import Cost, Pass


# of TRL's fused head: tokens and entries of the vocabulary that it has logits of at one time
HEAD_TOKENS, HEAD_ENTRIES = 4096, 32768
# bytes of optimizer state per trained parameter, besides those that have the type of the weights
_STATES = {"adamw": 2.0, "adam": 2.0, "sgd": 0.0}
_EIGHT_BIT = 2.0  # bytes per parameter, both moments


@dataclass(frozen=True)
class Shape:
    """A model in numbers.

    Attributes:
        parameters: All, tied ones once, adapters included.
        trained: Those with a gradient.
        matrix: Parameters of the layers' matrices that a token is multiplied by; of a mixture, those of its experts.
        vocabulary, hidden, layers: Sizes.
        inner: Width of the feed-forward part, of all experts of a token together.
        attention, keys: Width of all heads' queries, and of all heads' keys.
        has_head_norms: Whether queries and keys have norms of their own.
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

    @property
    def head(self) -> int:
        """Parameters of the matrix that makes logits."""
        return self.vocabulary * self.hidden

    @property
    def cost(self) -> Cost:
        """Of a forward pass."""
        return Cost.of_sizes(matrix=self.matrix, layers=self.layers, attention=self.attention, head=self.head)

    @property
    def is_adapted(self) -> bool:
        """Whether most weights are frozen."""
        return self.trained < self.parameters


# Tokens


def prompts_on(rows: int, group: int, processes: int) -> int:
    """Prompts of each process's rows, added up: a group that lies on two processes counts twice.

    `rows` are those of one process, in groups of `group` that follow each other over all processes.
    """
    return sum(((p + 1) * rows - 1) // group - (p * rows) // group + 1 for p in range(processes))


def most_rollout_tokens(begins: Sequence[int], *, length: int, rows: int, starts: int) -> int:
    """Tokens of one continuation from each of `begins`, places at which segments of each of `rows` responses begin.

    Each may be as long as what `length` tokens leave there. Those from the first token are made once for each of
    `starts` prompts.
    """
    return sum((length - b) * (starts if b == 0 else rows) for b in begins)


def mean_states(segments: float, *, rows: int, starts: int, at_first: bool) -> tuple[float, float]:
    """States that a chain values where responses have so many segments on average, and the share of a response that a
    continuation has left: all of it from the first token, half of it elsewhere."""
    later = rows * max(0.0, segments - 1 if at_first else segments)
    states = later + starts * at_first
    return states, (later / 2 + starts * at_first) / states if states else 0.0


def every(step: int, *, length: int, first: int = 0, last: bool = False) -> list[int]:
    """`first`, `first` + `step`, … within `length` tokens. A segment of the `last` one alone is left out, unless it is
    the only one: nothing is open any more before it."""
    return [*range(first, length if last or length == 1 else length - 1, step)]


class TreeSize(NamedTuple):
    """A tree of which every path has the same length: nodes, their tokens, the tokens of all paths from the root to a
    node, leaves, tokens that requests begin with besides their prompt, and pairs of a token with those of its path."""

    nodes: int
    tokens: float
    path_tokens: float
    leaves: int
    prefix_tokens: float
    pairs: float

    def squares(self, prompt: float, *, rows: float = 1) -> float:
        """Pairs of tokens in attention with branches side by side, behind a prompt that is in each of `rows`."""
        return prompt * (rows * prompt + self.tokens) + self.pairs


def tree_size(branching: Sequence[int], *, segment: int, length: float) -> TreeSize:
    """A tree of `branching` children per node whose inner segments have `segment` tokens, and its paths `length`."""
    nodes, level_nodes, tokens, paths, prefixes, pairs = 0, 1, 0.0, 0.0, 0.0, 0.0
    for level, children in enumerate(branching):
        written = min(level * segment, length)
        left = length - written
        if left <= 0:
            break
        prefixes += level_nodes * written
        level_nodes *= children
        own = left if level == len(branching) - 1 else min(segment, left)
        nodes, tokens, paths = nodes + level_nodes, tokens + level_nodes * own, paths + level_nodes * (written + own)
        pairs += level_nodes * own * (written + own)
    return TreeSize(nodes, tokens, paths, level_nodes, prefixes, pairs)


# Floating-point operations


def forward_flops(shape: Shape, of: Pass) -> float:
    """Of matrix products alone, as `torch.utils.flop_counter` counts them."""
    return shape.cost.forward(of)


def training_flops(shape: Shape, of: Pass, *, checkpointing: bool) -> float:
    """Forward and backward pass. Backward, each product is two, or one where its weight is frozen, attention's two; the
    fused head computes its logits again; with gradient checkpointing each layer is computed again."""
    cost = shape.cost
    layers = cost.layers(of)
    frozen = cost.body * of.tokens * shape.is_adapted
    head = cost.head * of.scored * (2 if shape.is_adapted else 3)
    return forward_flops(shape, of) + 2 * layers - frozen + head + checkpointing * layers


def generation_flops(shape: Shape, *, tokens: float, context: float, prefill: float) -> float:
    """`tokens` new ones, each of which sees `context` others on average, after `prefill` that are read first."""
    return shape.cost.forward(Pass(tokens + prefill, tokens * context, tokens))


# Bytes


@dataclass(frozen=True)
class Layout:
    """How a run lies on its GPUs.

    Attributes:
        processes: GPUs.
        kind: "none", "ddp", "zero1", "zero2", "zero3" or "fsdp".
        weight_bytes: Of a weight as it is loaded.
        compute_bytes: Of a number in a matrix product: 2 under bfloat16 or float16.
        optimizer: transformers' name.
        reference: Whether there is a reference model.
        checkpointing: Whether gradient checkpointing is on.
        frozen_bytes: Of a frozen weight, where it is quantized.
        offloads: What lies in the memory of the CPU: "optimizer", "parameters".
    """

    processes: int
    kind: str
    weight_bytes: int
    compute_bytes: int
    optimizer: str
    reference: bool
    checkpointing: bool
    frozen_bytes: float | None = None
    offloads: tuple[str, ...] = ()

    @property
    def is_deepspeed(self) -> bool:
        return self.kind.startswith("zero")

    @property
    def has_master(self) -> bool:
        """Whether DeepSpeed holds weights in 16 bits, and a copy of the trained ones in 32 with the optimizer."""
        return self.is_deepspeed and self.compute_bytes < 4

    @property
    def held_bytes(self) -> int:
        """Of a weight in training."""
        return self.compute_bytes if self.has_master else self.weight_bytes

    @property
    def casts(self) -> bool:
        """Whether autocast makes a copy of every matrix."""
        return not self.is_deepspeed and self.kind != "fsdp" and self.compute_bytes < self.weight_bytes


def optimizer_bytes(layout: Layout) -> float:
    """Per trained parameter; those of AdamW where an optimizer is not known."""
    kind = layout.optimizer.removeprefix("paged_").partition("_")[0]
    master = 4.0 if layout.has_master else 0.0
    if "8bit" in layout.optimizer:
        return master + _EIGHT_BIT
    return master + _STATES.get(kind, 2.0) * (4 if layout.has_master else layout.weight_bytes)


def knows_optimizer(name: str) -> bool:
    """Whether `optimizer_bytes` does."""
    return name.removeprefix("paged_").partition("_")[0] in _STATES


def activation_bytes(shape: Shape, layout: Layout) -> tuple[float, float]:
    """Per token: what a layer of Llama's or Qwen's kind keeps for its backward pass, and its input alone.

    Norms keep their input in float32 and what they made of it, each product its input, attention queries, keys and
    values of all heads, the feed-forward part four tensors of its width. Under autocast each product has a copy of its
    input.
    """
    held, compute = layout.held_bytes, layout.compute_bytes
    inputs = 5 if layout.casts or (layout.kind == "fsdp" and compute < held) else 2
    norms = 2 * (4 + held) * shape.hidden
    products = compute * (inputs * shape.hidden + 4 * shape.attention + 4 * shape.inner)
    heads = (4 + compute) * (shape.attention + shape.keys) * shape.has_head_norms
    return norms + products + heads, held * shape.hidden


def memory(shape: Shape, layout: Layout, *, tokens: int, scored: int) -> dict[str, float]:
    """Bytes per GPU by what they are for, for micro-batches of `tokens`, padding included, of which `scored` have
    their probability computed. Neither vLLM nor buffers of communication nor fragmentation are counted."""
    spread = layout.processes
    by_weight = spread if layout.kind in ("zero3", "fsdp") else 1
    by_gradient = spread if layout.kind in ("zero2", "zero3", "fsdp") else 1
    by_state = spread if layout.kind in ("zero1", "zero2", "zero3", "fsdp") else 1
    held, frozen = layout.held_bytes, shape.parameters - shape.trained
    frozen_bytes = held if layout.frozen_bytes is None else layout.frozen_bytes
    in_layer, of_input = activation_bytes(shape, layout)
    kept = shape.layers * of_input + in_layer if layout.checkpointing else shape.layers * in_layer
    weights = (shape.trained * held + frozen * frozen_bytes) / by_weight
    found = {
        "weights": weights * ("parameters" not in layout.offloads),
        "gradients": shape.trained * held / by_gradient,
        "optimizer state": shape.trained * optimizer_bytes(layout) / by_state * ("optimizer" not in layout.offloads),
        "reference": layout.reference * shape.parameters * held / by_weight,
        "buckets of DDP": shape.trained * held * (layout.kind == "ddp"),
        "matrices in 16 bits": layout.casts * (shape.matrix + shape.head) * layout.compute_bytes,
        "gathered weights": (by_weight > 1)
        * layout.compute_bytes
        * (2 * shape.matrix / max(shape.layers, 1) + shape.head),
        "activations": tokens * kept,
        "head": min(scored, HEAD_TOKENS) * min(shape.vocabulary, HEAD_ENTRIES) * layout.compute_bytes
        + 8 * scored * shape.hidden
        + 4 * shape.head * (not shape.is_adapted),
    }
    return {name: size for name, size in found.items() if size}
