"""How fast a finished run was, by what it logged: tokens, operations and responses per second."""

import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from trl import get_peft_config

from ..cli import Choices, parse_arguments
from ..comparison.histories import make_history, read_history
from ..mistakes import one_line
from ..trainer.checkpoints import last_checkpoint
from .estimate import Assumed, Plan, make_plan
from .formulas import Layout, Shape
from .shapes import read_shape


_FIX = "train some steps with this version, and give its folder"


@dataclass(frozen=True)
class Rates:
    """Per second. `None` is not known.

    Attributes:
        generated: Tokens per GPU.
        forward, training: FLOPs per GPU, of passes for π_old and the reference, and of the loss.
        rewarded: Responses, of all processes.
        source: Where they are from.
    """

    generated: float | None = None
    forward: float | None = None
    training: float | None = None
    rewarded: float | None = None
    source: str = "--tokens_per_second and --tflops"


class Measured(NamedTuple):
    """Lengths of a run: tokens of prompts (`None` for trees) and responses; of a chain, states per response, and the
    share of a response that is left at them."""

    prompt: float | None
    response: float
    states: float | None = None
    left: float | None = None


def seconds(plan: Plan, rates: Rates) -> dict[str, float]:
    """Of an optimizer step by phase, as far as rates are known."""
    found = {}
    if rates.generated:
        found["generation"] = plan.generated.mean / (rates.generated * plan.processes)
    if rates.rewarded:
        found["rewards"] = plan.scored / rates.rewarded
    if rates.forward and (flops := plan.forward_flops):
        found["π_old, reference"] = flops / (rates.forward * plan.processes)
    if rates.training:
        found["training"] = plan.flops["loss"] / (rates.training * plan.processes)
    return {name: amount * plan.batches_per_step for name, amount in found.items()}


def read_rates(folder: str, *, prompt: float | None = None) -> tuple[Rates, Measured]:
    """The rates of a run in its folder, and its lengths. The first row of its log is left out of the rates where there
    are others: it holds what is done once.

    Args:
        folder (`str`):
            The `output_dir` of a run of `trl-credit train` with a whole checkpoint.
        prompt (`float`, *optional*):
            Tokens of a prompt on average, where the log does not say: that of trees.

    Raises:
        ValueError: the folder holds no run, no log of phases, or no recipe; or its model cannot be counted.
    """
    path = Path(folder)
    identity, checkpoint = read_history(path).identity, last_checkpoint(path)
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    logged = [row for row in state["log_history"] if "step_time" in row]
    if not all("credit/seconds/train" in row for row in logged):
        raise ValueError(f"the log in {folder!r} has no credit/seconds/…: {_FIX} to --rates_from")
    if not (path / "recipe.yaml").is_file():
        raise ValueError(f"{folder!r} has no recipe.yaml, which says what was run: {_FIX} to --rates_from")
    recipe = ["--config", str(path / "recipe.yaml")]
    said = parse_arguments(recipe)
    rows = said.args.per_device_train_batch_size * said.args.gradient_accumulation_steps
    processes, rest = divmod(identity["batch_size"], rows)
    if rest or not processes:
        raise ValueError(f"recipe.yaml in {folder!r} is of another run than its log: {_FIX} to --rates_from")
    said = parse_arguments(recipe, processes=processes)
    whole, first = (
        make_history(state | {"log_history": part}, identity).totals.get("generated", 0.0)
        for part in (logged, logged[:1])
    )
    given = {"processes": processes, "generated": whole - first * (len(logged) > 1), "prompt": prompt}
    shape = _shape(checkpoint, said)
    try:
        return _rates(said, shape, logged, folder=folder, **given)
    except (KeyError, TypeError, ZeroDivisionError, IndexError) as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"the log in {folder!r} is damaged ({what}): {_FIX} to --rates_from") from error


def _shape(checkpoint: Path, said: Choices) -> Shape:
    whole = (checkpoint / "config.json").is_file()  # an adapter's checkpoint has none
    return read_shape(str(checkpoint) if whole else said.model.model_name_or_path, adapter=get_peft_config(said.model))


def _rates(
    said: Choices,
    shape: Shape,
    logged: list[dict[str, Any]],
    *,
    processes: int,
    generated: float,
    prompt: float | None,
    folder: str,
) -> tuple[Rates, Measured]:
    args = said.args
    share = args.gradient_accumulation_steps / (args.steps_per_generation * args.num_iterations)
    begins = [0.0, *(row["step"] for row in logged)]
    steps = [end - begin for begin, end in zip(begins, begins[1:], strict=False)]
    batches = [
        ceil(end * share - 1e-9) - ceil(begin * share - 1e-9) for begin, end in zip(begins, begins[1:], strict=False)
    ]
    measured = _lengths(args, logged, batches)
    assumed = Assumed(**measured._asdict())
    assumed.prompt = prompt if measured.prompt is None else measured.prompt
    plan = make_plan(args, shape, _plain_layout(args, processes), assumed)
    later = range(1 if len(logged) > 1 else 0, len(logged))

    def spent(*phases: str) -> float:
        """A logged phase is the mean over the steps since the row before in which it was."""
        found = 0.0
        for i in later:
            for phase in phases:
                times = steps[i] if phase == "train" else min(steps[i], batches[i])
                found += logged[i].get(f"credit/seconds/{phase}", 0.0) * times
        return found

    made = sum(batches[i] for i in later)
    trained = plan.flops["loss"] * plan.batches_per_step * sum(steps[i] for i in later)
    rates = Rates(
        generated=_ratio(generated, processes * spent("generate", "rollouts")),
        forward=_ratio(plan.forward_flops * made, processes * spent("passes")),
        training=_ratio(trained, processes * spent("train")),
        rewarded=_ratio(plan.scored * made, spent("rewards")),
        source=folder,
    )
    return rates, measured


def _lengths(args: Any, logged: list[dict[str, Any]], batches: list[int]) -> Measured:
    def mean(name: str) -> float:
        rows = [(row[name], n) for row, n in zip(logged, batches, strict=True) if name in row and n]
        return sum(x * n for x, n in rows) / sum(n for _, n in rows)

    response = mean("completions/mean_length")
    rows = args.per_device_train_batch_size * args.steps_per_generation
    if args.rollouts == "tree":
        return Measured(None, response)
    counted = [row["num_tokens"] for row in logged if "num_tokens" in row]
    prompt = counted[-1] / (rows * sum(batches)) - response
    if args.rollouts == "none":
        return Measured(prompt, response)
    continued, tokens = mean("credit/rollouts"), mean("credit/rollout_tokens")
    left = tokens / (continued * response) if continued else 0.0
    return Measured(prompt, response, continued / (args.rollouts_per_state * rows), left)


def _plain_layout(args: Any, processes: int) -> Layout:
    """Of which only what counts for operations matters."""
    checkpointing = args.gradient_checkpointing
    return Layout(processes, "none", 4, 4, "adamw", reference=False, checkpointing=checkpointing)


def _ratio(amount: float, spent: float) -> float | None:
    return amount / spent if amount > 0 and spent > 0 else None
