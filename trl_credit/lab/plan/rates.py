"""How fast a finished run was, from its log: tokens, FLOPs and responses per second."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from trl import get_peft_config

from ...config import CreditConfig
from ...runs.checkpoints import last_checkpoint
from ...settings.arguments import parse_arguments
from ...support.errors import one_line
from ...support.files import read_json
from ...support.functions import names_alone
from ..comparison.histories import make_history, read_history
from ..evaluation.models import is_model
from ..evaluation.protocols import PROTOCOLS
from .estimate import Assumed, Plan, batches_per_step, make_plan
from .formulas import Layout, Shape
from .shapes import read_shape


_FIX = "train some steps with this version, and give its folder to --rates_from"


@dataclass(frozen=True)
class Rates:
    """Rates per second; `None` is unknown.

    Attributes:
        generated: Tokens per GPU.
        forward, training: FLOPs per GPU of the passes for π_old and the reference, and of the loss.
        rewarded: Responses of all processes.
        source: Where the rates come from.
    """

    generated: float | None = None
    forward: float | None = None
    training: float | None = None
    rewarded: float | None = None
    source: str = "--tokens_per_second and --tflops"


class Measured(NamedTuple):
    """Means of a run: tokens of prompts (`None` for trees) and responses; for a chain, states per response, and the
    share of a response that is left at them."""

    prompt: float | None
    response: float
    states: float | None = None
    left: float | None = None


def seconds(plan: Plan, rates: Rates) -> dict[str, float]:
    """Seconds of an optimizer step by phase; phases with an unknown rate are left out."""
    phases = {
        "generation": (plan.generated.mean / plan.processes, rates.generated),
        "rewards": (plan.scored, rates.rewarded),
        "π_old, reference": (plan.forward_flops / plan.processes, rates.forward if plan.forward_flops else None),
        "training": (plan.flops["loss"] / plan.processes, rates.training),
    }
    return {name: amount / rate * plan.batches_per_step for name, (amount, rate) in phases.items() if rate}


def read_rates(folder: str, *, prompt: float | None = None) -> tuple[Rates, Measured]:
    """The rates of a run, and its mean lengths. The first row of its log, which includes one-time costs, is left out of
    the rates if there are others.

    Args:
        folder (`str`):
            The `output_dir` of a run of `trl-credit train` with a complete checkpoint.
        prompt (`float`, *optional*):
            Mean tokens of a prompt, if the log does not have it: for trees.

    Raises:
        ValueError: the folder has no run, no log of phases or no recipe, or the size of its model is unknown.
    """
    path = Path(folder)
    identity, checkpoint = read_history(path).identity, last_checkpoint(path)
    state = read_json(checkpoint / "trainer_state.json")
    logged = [row for row in state["log_history"] if "step_time" in row]
    if not all("credit/seconds/train" in row for row in logged):
        raise ValueError(f"the log in {folder!r} has no credit/seconds/…: {_FIX}")
    if not (path / "recipe.yaml").is_file():
        raise ValueError(f"{folder!r} has no recipe.yaml with the settings of the run: {_FIX}")

    def choices(processes: int) -> Any:
        with names_alone():
            return parse_arguments(["--config", str(path / "recipe.yaml")], processes=processes, protocols=PROTOCOLS)

    args = choices(1).args
    processes, rest = divmod(
        identity["batch_size"], args.per_device_train_batch_size * args.gradient_accumulation_steps
    )
    if rest or not processes:
        raise ValueError(f"recipe.yaml in {folder!r} is of another run than its log: {_FIX}")
    args, model = (getattr(choices(processes), name) for name in ("args", "model"))
    # the base in the checkpoint of a new adapter may be a path of another machine
    where = str(checkpoint) if is_model(checkpoint) and not model.use_peft else model.model_name_or_path
    shape = read_shape(where, adapter=get_peft_config(model))
    totals = [make_history(state | {"log_history": rows}, identity).totals for rows in (logged, logged[:1])]
    whole, first = (total.get("generated", 0.0) for total in totals)
    generated = whole - first * (len(logged) > 1)
    try:
        return _rates(args, shape, logged, processes=processes, generated=generated, prompt=prompt, folder=folder)
    except (KeyError, TypeError, ZeroDivisionError, IndexError) as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"the log in {folder!r} is damaged ({what}): {_FIX}") from error


def _rates(
    args: CreditConfig,
    shape: Shape,
    logged: list[dict[str, Any]],
    *,
    processes: int,
    generated: float,
    prompt: float | None,
    folder: str,
) -> tuple[Rates, Measured]:
    share = batches_per_step(args)
    ends = [0.0, *(row["step"] for row in logged)]
    steps = _differences(ends)
    batches = _differences(ceil(end * share - 1e-9) for end in ends)
    measured = _lengths(args, logged, batches)
    assumed = Assumed(**measured._asdict())
    assumed.prompt = prompt if measured.prompt is None else measured.prompt
    plan = make_plan(args, shape, Layout(processes, checkpointing=args.gradient_checkpointing), assumed)
    later = range(1 if len(logged) > 1 else 0, len(logged))

    def spent(phase: str) -> float:
        """Seconds of a phase. A row has the mean over the steps since the last row in which the phase ran."""
        times = steps if phase == "train" else [min(pair) for pair in zip(steps, batches, strict=True)]
        return sum(logged[i].get(f"credit/seconds/{phase}", 0.0) * times[i] for i in later)

    made = sum(batches[i] for i in later)
    trained = plan.flops["loss"] * share * sum(steps[i] for i in later)
    rates = Rates(
        generated=_ratio(generated, processes * (spent("generate") + spent("rollouts"))),
        forward=_ratio(plan.forward_flops * made, processes * spent("passes")),
        training=_ratio(trained, processes * spent("train")),
        rewarded=_ratio(plan.scored * made, spent("rewards")),
        source=folder,
    )
    return rates, measured


def _differences(ends: Iterable[float]) -> list[float]:
    return [end - begin for begin, end in pairwise(ends)]


def _lengths(args: CreditConfig, logged: list[dict[str, Any]], batches: list[float]) -> Measured:
    def mean(name: str) -> float:
        rows = [(row[name], n) for row, n in zip(logged, batches, strict=True) if name in row and n]
        return sum(x * n for x, n in rows) / sum(n for _, n in rows)

    response = mean("completions/mean_length")
    if args.rollouts == "tree":
        return Measured(None, response)
    rows = args.per_device_train_batch_size * args.steps_per_generation
    sampled = rows * sum(batches)
    if any("credit/groups/sampled" in row for row in logged):  # refills sample more than a batch has
        sampled *= mean("credit/groups/sampled") * args.num_generations / args.generation_batch_size
    prompt = [row["num_tokens"] for row in logged if "num_tokens" in row][-1] / sampled - response
    if args.rollouts == "none":
        return Measured(prompt, response)
    continued, tokens = mean("credit/rollouts"), mean("credit/rollout_tokens")
    left = tokens / (continued * response) if continued else 0.0
    return Measured(prompt, response, continued / (args.rollouts_per_state * rows), left)


def _ratio(amount: float, spent: float) -> float | None:
    return amount / spent if amount > 0 and spent > 0 else None
