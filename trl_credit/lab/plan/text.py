"""A plan as text, and as JSON."""

from dataclasses import asdict
from typing import Any

from .estimate import Plan, Range
from .formulas import Layout, Shape


GIB = 1024**3
_KINDS = {"none": "one process", "ddp": "a copy on each (DDP)", "fsdp": "FSDP"}
_KINDS |= {f"zero{stage}": f"ZeRO-{stage}" for stage in (1, 2, 3)}


def as_text(title: str, plan: Plan, shape: Shape, layout: Layout) -> str:
    """The plan in lines of at most 120 characters, except the assumptions."""
    steps = plan.steps
    run = f"run of {steps:,} steps" if steps else "run"
    lines = [title, _model(shape), _machine(layout), ""]
    lines.append(f"{'':<36}{'optimizer step':>18}{'at most':>18}{run:>22}{'at most':>14}")
    lines += [_line(name, amount, steps) for name, amount in plan.step.items()]
    lines += ["", "memory per GPU (GiB)"]
    lines += [f"  {name:<34}{_gib(size):>18}" for name, size in _memory(plan).items()]
    lines += ["", "assumed:", *(f"  {note}" for note in plan.notes)]
    if steps is None:
        lines.append("  unknown: the number of optimizer steps; set --prompts (rows of the data set) or --max_steps")
    return "\n".join(line.rstrip() for line in lines)


def as_json(plan: Plan, shape: Shape, layout: Layout) -> dict[str, Any]:
    """The plan in numbers: amounts per optimizer step, bytes."""
    numbers = {"model": asdict(shape), "layout": asdict(layout), "optimizer_steps": plan.steps}
    numbers["generation_batches_per_step"] = plan.batches_per_step
    numbers["step"] = {name: asdict(amount) for name, amount in plan.step.items()}
    return numbers | {"memory_bytes": _memory(plan), "assumed": plan.notes}


def _memory(plan: Plan) -> dict[str, float]:
    return {**plan.memory, "together": sum(plan.memory.values())}


def _line(name: str, amount: Range, steps: int | None) -> str:
    values = (amount.mean, amount.most)
    of_step = [f"{x:,.0f}" if x >= 10 or x == round(x) else f"{x:.1f}" for x in values]
    of_run = [f"{x * steps:,.0f}" if x * steps < 1e9 else f"{x * steps:.3g}" for x in values] if steps else ["?", "?"]
    return f"  {name:<34}{of_step[0]:>18}{of_step[1]:>18}{of_run[0]:>22}{of_run[1]:>14}"


def _model(shape: Shape) -> str:
    text = f"{_count(shape.parameters)} parameters, {shape.layers} layers of width {shape.hidden:,}"
    return text + (f"; {_count(shape.trained)} of them trained (LoRA)" if shape.is_adapted else "")


def _machine(layout: Layout) -> str:
    bits = f"{8 * layout.held_bytes}-bit weights, products in {8 * layout.compute_bytes} bits"
    checkpointing = "" if layout.checkpointing else "no "
    offloads = f", {' and '.join(layout.offloads)} on the CPU" if layout.offloads else ""
    gpus = f"{layout.processes} GPU{'s' * (layout.processes > 1)}"
    return f"{gpus}: {_KINDS[layout.kind]}, {bits}, {checkpointing}gradient checkpointing{offloads}"


def _count(n: int) -> str:
    return f"{n / 1e9:.2f} billion" if n >= 1e9 else f"{n / 1e6:.2f} million"


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f}" if size >= 0.005 * GIB else f"{size / GIB:.2g}"
