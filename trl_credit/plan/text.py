"""A plan as lines to read, and as JSON."""

from dataclasses import asdict
from typing import Any

from .estimate import Plan, Range
from .formulas import Layout, Shape
from .rates import Rates, seconds


GIB = 1024**3
_KINDS = {
    "none": "one process",
    "ddp": "a copy on each (DDP)",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "fsdp": "FSDP",
}
_PASSES = {"old": "π_old", "reference": "reference", "loss": "loss"}
HOW = """\
no seconds without rates: give --tokens_per_second and --tflops, or --rates_from the folder of a run, of some steps on
one GPU"""


def as_text(title: str, plan: Plan, shape: Shape, layout: Layout, rates: Rates | None) -> str:
    """All of it, in lines of at most 120 characters but for the assumptions."""
    lines = [title, _model(shape), _machine(plan, layout), ""]
    runs = f"run of {plan.steps:,} steps" if plan.steps else "run"
    lines.append(f"{'':<36}{'optimizer step':>18}{'at most':>18}{runs:>22}{'at most':>14}")
    for name, amount in _amounts(plan).items():
        lines.append(_line(name, amount, plan))
    lines += ["", f"{'FLOPs, matrix products':<36}{'optimizer step':>18}{'':>18}{runs:>22}"]
    for name, amount in _flops(plan).items():
        whole = f"{amount * plan.steps:.3g}" if plan.steps else "?"
        lines.append(f"  {name:<34}{amount:>18.3g}{'':>18}{whole:>22}")
    lines += ["", f"{'memory per GPU (GiB)':<36}"]
    lines += [f"  {name:<34}{_gib(size):>18}" for name, size in plan.memory.items()]
    lines += [f"  {'together':<34}{_gib(sum(plan.memory.values())):>18}", ""]
    if rates is None:
        lines.append(HOW)
    else:
        spent = seconds(plan, rates)
        lines.append(f"{f'seconds, by {rates.source}':<36}{'optimizer step':>18}{'':>18}{runs:>22}")
        for name, amount in [*spent.items(), ("together", sum(spent.values()))]:
            whole = f"{amount * plan.steps:,.0f}" if plan.steps else "?"
            lines.append(f"  {name:<34}{amount:>18,.3f}{'':>18}{whole:>22}")
        if missing := _missing(plan, spent):
            lines.append(f"  not known: {missing}")
    lines += ["", "assumed:", *(f"  {note}" for note in plan.notes)]
    if plan.steps is None:
        lines.append("  unknown: the number of optimizer steps; set --prompts (rows of the data set) or --max_steps")
    return "\n".join(line.rstrip() for line in lines)


def as_json(plan: Plan, shape: Shape, layout: Layout, rates: Rates | None) -> dict[str, Any]:
    """The same in numbers: per optimizer step, bytes, seconds."""
    return {
        "model": asdict(shape),
        "layout": asdict(layout),
        "optimizer_steps": plan.steps,
        "generation_batches_per_step": plan.batches_per_step,
        "step": {name: amount._asdict() for name, amount in _amounts(plan).items()},
        "flops": _flops(plan),
        "memory_bytes": plan.memory | {"together": sum(plan.memory.values())},
        "rates": None if rates is None else asdict(rates),
        "seconds": None if rates is None else seconds(plan, rates),
        "assumed": plan.notes,
    }


def _amounts(plan: Plan) -> dict[str, Range]:
    """Per optimizer step, by name."""
    share = plan.batches_per_step
    found = {"prompts": Range(plan.prompts, plan.prompts), "responses": plan.responses}
    if plan.continued.most:
        found["continuations" if plan.is_chain else "nodes"] = plan.continued
    found["generated tokens"] = plan.generated
    for name, tokens in plan.passes.items():
        found[f"tokens of passes: {_PASSES[name]}"] = tokens
    return {name: amount.times(share) for name, amount in found.items()}


def _flops(plan: Plan) -> dict[str, float]:
    names = {"generation": "generation", **_PASSES, "loss": "loss and its gradient"}
    return {names[name]: amount * plan.batches_per_step for name, amount in plan.flops.items()}


def _line(name: str, amount: Range, plan: Plan) -> str:
    step = [f"{x:,.0f}" if x >= 10 or x == round(x) else f"{x:.1f}" for x in amount]
    run = ["?", "?"]
    if plan.steps:
        run = [f"{x * plan.steps:,.0f}" if x * plan.steps < 1e9 else f"{x * plan.steps:.3g}" for x in amount]
    return f"  {name:<34}{step[0]:>18}{step[1]:>18}{run[0]:>22}{run[1]:>14}"


def _model(shape: Shape) -> str:
    said = f"{_count(shape.parameters)} parameters, {shape.layers} layers of width {shape.hidden:,}"
    return said + (f"; {_count(shape.trained)} of them trained (LoRA)" if shape.is_adapted else "")


def _machine(plan: Plan, layout: Layout) -> str:
    bits = f"{8 * layout.held_bytes}-bit weights, products in {8 * layout.compute_bytes} bits"
    checkpointing = "" if layout.checkpointing else "no "
    offloads = f", {' and '.join(layout.offloads)} on the CPU" if layout.offloads else ""
    gpus = f"{plan.processes} GPU{'s' * (plan.processes > 1)}"
    return f"{gpus}: {_KINDS[layout.kind]}, {bits}, {checkpointing}gradient checkpointing{offloads}"


def _missing(plan: Plan, spent: dict[str, float]) -> str:
    wanted = ["generation", "rewards", *(["π_old, reference"] if plan.forward_flops else []), "training"]
    return ", ".join(name for name in wanted if name not in spent)


def _count(n: int) -> str:
    for size, unit in ((1e9, "billion"), (1e6, "million")):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n:,}"


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f}" if size >= 0.005 * GIB else f"{size / GIB:.2g}"
