"""A plan as text, and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .estimate import Plan, Range
from .formulas import Layout, Shape
from .rates import Rates, seconds


GIB = 1024**3
_KINDS = {
    "none": "one process",
    "ddp": "a copy on each (DDP)",
    **{f"zero{stage}": f"ZeRO-{stage}" for stage in (1, 2, 3)},
    "fsdp": "FSDP",
}
_PASSES = {"old": "π_old", "reference": "reference", "loss": "loss"}
HOW = """\
no seconds without rates: give --tokens_per_second and --tflops, or --rates_from with the folder of a run of some steps
on one GPU"""


def as_text(title: str, plan: Plan, shape: Shape, layout: Layout, rates: Rates | None) -> str:
    """The plan in lines of at most 120 characters, except the assumptions."""
    runs = f"run of {plan.steps:,} steps" if plan.steps else "run"
    lines = [title, _model(shape), _machine(plan, layout), ""]
    lines.append(f"{'':<36}{'optimizer step':>18}{'at most':>18}{runs:>22}{'at most':>14}")
    lines += [_amount_line(name, amount, plan.steps) for name, amount in _amounts(plan).items()]
    lines += _section("FLOPs, matrix products", runs, _flops(plan), ".3g", ".3g", plan.steps)
    lines += ["", "memory per GPU (GiB)"]
    lines += [f"  {name:<34}{_gib(size):>18}" for name, size in _with_total(plan.memory).items()]
    if rates is None:
        lines += ["", HOW]
    else:
        spent = seconds(plan, rates)
        lines += _section(f"seconds, by {rates.source}", runs, _with_total(spent), ",.3f", ",.0f", plan.steps)
        phases = ["generation", "rewards", *(["π_old, reference"] if plan.forward_flops else []), "training"]
        if unknown := [name for name in phases if name not in spent]:
            lines.append(f"  not known: {', '.join(unknown)}")
        # measured on one core: 0.01 s for the embedded task, 0.05 s for 100,000 texts, 0.4 s for as many conversations
        lines.append(f"  {'checks before the run, once':<34}{'below 1':>58}")
    lines += ["", "assumed:", *(f"  {note}" for note in plan.notes)]
    if plan.steps is None:
        lines.append("  unknown: the number of optimizer steps; set --prompts (rows of the data set) or --max_steps")
    return "\n".join(line.rstrip() for line in lines)


def as_json(plan: Plan, shape: Shape, layout: Layout, rates: Rates | None) -> dict[str, Any]:
    """The plan in numbers: amounts per optimizer step, bytes, seconds."""
    return {
        "model": asdict(shape),
        "layout": asdict(layout),
        "optimizer_steps": plan.steps,
        "generation_batches_per_step": plan.batches_per_step,
        "step": {name: asdict(amount) for name, amount in _amounts(plan).items()},
        "flops": _flops(plan),
        "memory_bytes": _with_total(plan.memory),
        "rates": None if rates is None else asdict(rates),
        "seconds": None if rates is None else seconds(plan, rates),
        "assumed": plan.notes,
    }


def _amounts(plan: Plan) -> dict[str, Range]:
    """Amounts per optimizer step, by name."""
    found = {"prompts": Range(plan.prompts, plan.prompts), "responses": plan.responses}
    if plan.continued.most:
        found["continuations" if plan.is_chain else "nodes"] = plan.continued
    found["generated tokens"] = plan.generated
    found |= {f"tokens of passes: {_PASSES[name]}": tokens for name, tokens in plan.passes.items()}
    return {name: amount * plan.batches_per_step for name, amount in found.items()}


def _flops(plan: Plan) -> dict[str, float]:
    names = {"generation": "generation", **_PASSES, "loss": "loss and its gradient"}
    return {names[name]: amount * plan.batches_per_step for name, amount in plan.flops.items()}


def _with_total(amounts: Mapping[str, float]) -> dict[str, float]:
    return {**amounts, "together": sum(amounts.values())}


def _section(
    title: str, runs: str, amounts: dict[str, float], of_step: str, of_run: str, steps: int | None
) -> list[str]:
    """Lines of amounts per optimizer step and per run, with the formats of both."""
    lines = ["", f"{title:<36}{'optimizer step':>18}{'':>18}{runs:>22}"]
    for name, amount in amounts.items():
        whole = format(amount * steps, of_run) if steps else "?"
        lines.append(f"  {name:<34}{amount:>18{of_step}}{'':>18}{whole:>22}")
    return lines


def _amount_line(name: str, amount: Range, steps: int | None) -> str:
    values = (amount.mean, amount.most)
    step = [f"{x:,.0f}" if x >= 10 or x == round(x) else f"{x:.1f}" for x in values]
    run = ["?", "?"]
    if steps:
        run = [f"{x * steps:,.0f}" if x * steps < 1e9 else f"{x * steps:.3g}" for x in values]
    return f"  {name:<34}{step[0]:>18}{step[1]:>18}{run[0]:>22}{run[1]:>14}"


def _model(shape: Shape) -> str:
    text = f"{_count(shape.parameters)} parameters, {shape.layers} layers of width {shape.hidden:,}"
    return text + (f"; {_count(shape.trained)} of them trained (LoRA)" if shape.is_adapted else "")


def _machine(plan: Plan, layout: Layout) -> str:
    bits = f"{8 * layout.held_bytes}-bit weights, products in {8 * layout.compute_bytes} bits"
    checkpointing = "" if layout.checkpointing else "no "
    offloads = f", {' and '.join(layout.offloads)} on the CPU" if layout.offloads else ""
    gpus = f"{plan.processes} GPU{'s' * (plan.processes > 1)}"
    return f"{gpus}: {_KINDS[layout.kind]}, {bits}, {checkpointing}gradient checkpointing{offloads}"


def _count(n: int) -> str:
    for size, unit in ((1e9, "billion"), (1e6, "million")):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n:,}"


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f}" if size >= 0.005 * GIB else f"{size / GIB:.2g}"
