"""Formulas for what a run generates and stores. They need numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


# tokens and entries of the vocabulary whose logits TRL's fused head has in memory at the same time
HEAD_TOKENS, HEAD_ENTRIES = 4096, 32768


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    Attributes:
        parameters: All parameters, adapters included; tied ones count once.
        trained: Parameters with a gradient.
        matrix: Parameters of the layers' matrices; of a mixture, those of all experts.
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
    def is_adapted(self) -> bool:
        """Whether most weights are frozen."""
        return self.trained < self.parameters


@dataclass(frozen=True)
class Layout:
    """How a run is distributed over its GPUs.

    Attributes:
        processes: Number of GPUs.
        kind: "none", "ddp", "zero1", "zero2", "zero3" or "fsdp".
        weight_bytes: Bytes of a weight as loaded.
        compute_bytes: Bytes of a number in a matrix product: 2 for bfloat16 and float16.
        optimizer: transformers' name of the optimizer. All but "sgd" are taken to have AdamW's state.
        reference: Whether there is a reference model.
        checkpointing: Whether gradient checkpointing is on.
        frozen_bytes: Bytes of a frozen weight, if it is quantized.
        offloads: What is in the memory of the CPU: "optimizer", "parameters".
        copy_bytes: Bytes of a weight in the copy of the policy that is the teacher; 0 without a copy.
        teacher: Parameters of a teacher that is another model.
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
    copy_bytes: int = 0
    teacher: int = 0

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


def prompts_on(rows: int, group: int, processes: int) -> int:
    """Number of prompts summed over processes: a group that lies on two processes counts twice.

    Each process has `rows` rows, and groups of `group` rows follow each other over all processes.
    """
    return sum(((p + 1) * rows - 1) // group - (p * rows) // group + 1 for p in range(processes))


def segment_starts(step: int, *, length: int, first: int = 0, last: bool = False) -> list[int]:
    """`first`, `first` + `step`, … below `length`. The place of the last token counts only with `last`, or if it is the
    only place: it is no cutpoint of SPO's."""
    return [*range(first, length if last or length == 1 else length - 1, step)]


class TreeSize(NamedTuple):
    """Size of a tree: nodes without the root, their tokens, the summed tokens of the paths to each node, and leaves."""

    nodes: int
    tokens: float
    path_tokens: float
    leaves: int


def tree_size(branching: Sequence[int], *, segment: int, length: float) -> TreeSize:
    """A tree with `branching` children per node, inner segments of `segment` tokens, and paths of `length` tokens."""
    nodes, width, tokens, path_tokens = 0, 1, 0.0, 0.0
    for level, children in enumerate(branching):
        written = min(level * segment, length)
        if written == length:
            break
        width *= children
        new = length - written if level == len(branching) - 1 else min(segment, length - written)
        nodes, tokens, path_tokens = nodes + width, tokens + width * new, path_tokens + width * (written + new)
    return TreeSize(nodes, tokens, path_tokens, width)


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
    values = 0 if layout.optimizer == "sgd" else 2  # AdamW's two moments
    of_state = 2 if "8bit" in layout.optimizer else values * (4 if layout.has_master else layout.weight_bytes)
    in_layer, of_input = activation_bytes(shape, layout)
    copied = shape.trained * ("parameters" not in layout.offloads)
    kept = shape.layers * of_input + in_layer if layout.checkpointing else shape.layers * in_layer
    logits = min(scored, HEAD_TOKENS) * min(shape.vocabulary, HEAD_ENTRIES) * compute
    sizes = {
        "weights": weights / by_weight * ("parameters" not in layout.offloads),
        "gradients": shape.trained * held / by_gradient,
        "optimizer state": (shape.trained * (of_state + 4 * layout.has_master) / by_state)
        * ("optimizer" not in layout.offloads),
        "reference": layout.reference * shape.parameters * held / by_weight,
        "teacher": (copied * layout.copy_bytes + layout.teacher * held) / by_weight,
        "policy, while the teacher scores": copied * held * (layout.copy_bytes > 0) / by_weight,
        "buckets of DDP": shape.trained * held * (layout.kind == "ddp"),
        "matrices in 16 bits": layout.casts * (shape.matrix + shape.head) * compute,
        "gathered weights": (by_weight > 1) * compute * (2 * shape.matrix / max(shape.layers, 1) + shape.head),
        "activations": tokens * kept,
        "head": logits + 8 * scored * shape.hidden + 4 * shape.head * (not shape.is_adapted),
    }
    return {name: size for name, size in sizes.items() if size}
