"""What our loss adds to TRL's step (see `own.py`), and passes over packed rows: kernels of attention, time, memory.

Forward and backward pass over rows of one group as plain rows, with shared prompts packed (`sdpa`), and with
`flash_attention_2` as plain rows and end to end; and over a tree 6-6-6 in eight rows with a dense mask and in pieces.
All in turns, under bfloat16 autocast (a dry run: float32 and "eager" in the place of `flash_attention_2`).
"""

import copy
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from machine import Machine, random_qwen3
from own import WARM_UP, Calls, own_milliseconds
from record import Recorder
from speed import GIB, MODEL, TINY
from torch import nn
from transformers.utils import is_flash_attn_2_available

from trl_credit.passes import flops
from trl_credit.passes.attention import sequence_attention, tree_attention
from trl_credit.passes.prefix_layout import PromptRow, layout_of, packed_sequences, packing_of
from trl_credit.rollouts.policy import Continuation
from trl_credit.rollouts.replay import visible_columns
from trl_credit.rollouts.tree import Node, Tree, packed_rows


GROUP = 8
SHAPES, TINY_SHAPES = ((512, 256), (2048, 512), (512, 2048)), ((12, 6), (6, 12))
FAR = 0.05  # nats, mean: more is no rounding of bfloat16


class Variant(NamedTuple):
    """One way to compute the same rows.

    Attributes:
        name: For the table.
        forward: Returns hidden states of all response tokens, in one order for all variants.
        tokens: That go forward.
    """

    name: str
    forward: Callable[[], torch.Tensor]
    tokens: int


def group_variants(
    machine: Machine, model: nn.Module, flash: nn.Module | None, shape: tuple[int, int]
) -> list[Variant]:
    """A group of one prompt, with responses of half to all of the length."""
    prompt, most = shape
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(most // 2, most + 1, (GROUP,), generator=generator).tolist()
    lengths[0] = most
    vocabulary = model.config.vocab_size
    ids = torch.randint(3, vocabulary, (GROUP, prompt + most), generator=generator).to(machine.device)
    ids[:, :prompt] = ids[0, :prompt]
    rows = [PromptRow(0, prompt, n) for n in lengths]
    mask = (torch.arange(prompt + most) < prompt + torch.tensor(lengths)[:, None]).long().to(machine.device)
    inside = mask[:, prompt:].bool()

    def plain(of: nn.Module) -> torch.Tensor:
        hidden = of(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        return hidden[:, prompt - 1 : -1][inside]

    def packed(of: nn.Module, layout: Any, attention: Any) -> torch.Tensor:
        with attention:
            hidden = of(input_ids=ids.flatten()[layout.source], attention_mask=layout.mask, use_cache=False)
        kept = hidden.last_hidden_state[:, -layout.packing.kept - 1 : -1]
        return layout.rows_of(kept)[inside]

    variants = [Variant("plain rows, `sdpa`", lambda: plain(model), ids.numel())]
    shared = layout_of(packing_of(rows), rows, widths=shape, device=machine.device)
    positions = shared.source % (prompt + most)
    variants.append(
        Variant(
            "shared prompt, `sdpa`",
            lambda: packed(
                model, shared, tree_attention(model, branches=shared.packing.branches, position_ids=positions)
            ),
            shared.source.numel(),
        )
    )
    if flash is not None:
        ends = layout_of(packed_sequences(rows), rows, widths=shape, device=machine.device)
        name = "eager" if machine.dry else "flash_attention_2"
        variants.append(Variant(f"plain rows, `{name}`", lambda: plain(flash), ids.numel()))
        variants.append(
            Variant(
                f"end to end, `{name}`",
                lambda: packed(flash, ends, sequence_attention(flash, ends.packing.ends, machine.device)),
                ends.source.numel(),
            )
        )
    return variants


def tree_variants(machine: Machine, model: nn.Module) -> list[Variant]:
    """A tree 6-6-6 (a dry run: 3-3-3) in eight rows."""
    count, segment = (3, 6) if machine.dry else (6, 64)
    tree = Tree({"prompt": ""}, list(range(3, 15)))
    level = [tree.root]
    for depth in (1, 2, 3):
        below = []
        for node in level:
            for k in range(count):
                ids = [3 + (7 * k + depth + i) % 11 for i in range(segment)]
                node.children.append(Node(node, Continuation(ids, None), depth, advantage=k - count / 2 + 0.25))
            below += node.children
        level = below
    rows = packed_rows(tree, max_rows=8)
    prompt, width = (max(len(getattr(row, name)) for row in rows) for name in ("prompt_ids", "completion_ids"))
    until = visible_columns(rows, prompt_width=prompt, width=width).to(machine.device)
    ids, mask = torch.zeros(2, *until.shape, dtype=torch.long, device=machine.device).unbind(0)
    for i, row in enumerate(rows):
        own = [*row.prompt_ids, *row.completion_ids]
        first = prompt - len(row.prompt_ids)
        ids[i, first : first + len(own)] = torch.tensor(own, device=machine.device)
        mask[i, first : first + len(own)] = 1

    def forward(cost: float) -> torch.Tensor:
        kind = "cpu" if machine.dry else "accelerator"
        before, flops.OF_A_CALL[kind] = flops.OF_A_CALL[kind], cost
        try:
            with tree_attention(model):
                inputs = {"attention_mask": mask, "token_type_ids": until, "use_cache": False}
                return model(input_ids=ids, **inputs).last_hidden_state[mask.bool()]
        finally:
            flops.OF_A_CALL[kind] = before

    return [
        Variant("tree, dense mask", lambda: forward(float("inf")), ids.numel()),
        Variant("tree, in pieces", lambda: forward(0.0), ids.numel()),
    ]


def models(machine: Machine) -> Iterator[nn.Module | None]:
    """A decoder without its head, with `sdpa` and with `flash_attention_2`, of the same weights."""
    sizes = TINY if machine.dry else {**MODEL, "num_hidden_layers": 8}
    model = random_qwen3(sizes, machine.device).model
    model.config._attn_implementation = "sdpa"
    yield model
    if not (machine.dry or is_flash_attn_2_available()):
        yield None
        return
    other = copy.deepcopy(model)
    other.config._attn_implementation = "eager" if machine.dry else "flash_attention_2"
    yield other


def compare(machine: Machine, what: str, variants: list[Variant], *, repeats: int, recorder: Recorder) -> None:
    """A row for each variant, and a check that it computes what the first one does."""
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    peaks, kernels, calls, hidden = dict.fromkeys(times, 0), {}, {}, {}
    autocast = torch.autocast(machine.device.type, dtype=torch.bfloat16, enabled=not machine.dry)
    for repeat in range(repeats + WARM_UP):
        for variant in variants if repeat % 2 else variants[::-1]:
            machine.begin_peak()
            start = machine.seconds()
            with autocast:
                states = variant.forward()
            states.float().square().mean().backward()
            if repeat >= WARM_UP:
                times[variant.name].append(machine.seconds() - start)
                peaks[variant.name] = max(peaks[variant.name], machine.peak_bytes())
    for variant in variants:
        with Calls() as counted, autocast:
            hidden[variant.name] = variant.forward().detach().float()
        kernels[variant.name], calls[variant.name] = counted.attention, counted.names.total()
    first = variants[0].name
    size = hidden[first].square().mean().sqrt()
    for variant in variants:
        name = variant.name
        ratio = statistics.median(a / b for a, b in zip(times[name], times[first], strict=True))
        recorder.row(
            **{
                "rows": what,
                "computed as": name,
                "tokens": f"{variant.tokens:,}",
                "ms": f"{statistics.median(times[name]) * 1e3:.1f}",
                "of the first": f"{ratio:.3f}",
                "calls of torch": f"{calls[name]:,}",
                "attention": kernels[name],
                "peak (GiB)": "–" if machine.dry else f"{peaks[name] / GIB:.2f}",
            }
        )
        if name != first:
            far = ((hidden[name] - hidden[first]).abs().mean() / size).item()
            text = f"hidden states {far:.1e} of their size from the first"
            recorder.check(f"{what}: {name}", text, wanted=f"≤ {FAR:.1e}", ok=far <= FAR)
        if name == "shared prompt, `sdpa`" and not machine.dry:
            kinds = {kind.partition(" × ")[0] for kind in kernels[name].split(", ")}
            ok = "flash" in kinds and kinds <= {"flash", "cuDNN"}  # torch may prefer cuDNN for the prompt
            recorder.check(f"{what}: kernels without a mask", kernels[name], wanted="flash, or flash and cuDNN", ok=ok)


def main(args: Namespace, recorder: Recorder) -> None:
    machine = Machine(args.dry_run)
    repeats = args.repeats or (3 if machine.dry else 5)
    for algo in ("grpo", "s_trace"):
        for logged in (False, True):
            with recorder.attempt(f"own milliseconds of {algo}"):
                own_milliseconds(machine, algo, logged=logged, repeats=4 * repeats, recorder=recorder)
            machine.free()
    model, flash = models(machine)
    if flash is None:
        recorder.not_run("flash_attention_2", "flash_attn is not installed, or not for this device")
    for shape in TINY_SHAPES if machine.dry else SHAPES:
        what = f"{GROUP} × {shape[0]}/{shape[1]}"
        with recorder.attempt(what):
            compare(machine, what, group_variants(machine, model, flash, shape), repeats=repeats, recorder=recorder)
        machine.free()
    with recorder.attempt("tree"):
        compare(machine, "a tree in 8 rows", tree_variants(machine, model), repeats=repeats, recorder=recorder)
