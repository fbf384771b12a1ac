"""The lines that a run begins with: what is trained, what is sampled, and what the preset sets."""

import inspect
import math
import textwrap

from ..config import CreditConfig, settings_of_preset
from ..config.knobs import is_default
from ..demo import DEMO, agent_reward, demo_reward
from ..runs.model_identity import embedded_task
from ..runs.resumable import ResumableTrainer
from ..support.functions import short_name


_GROUPS = {
    "keep": "",
    "replace": "; copies replace groups without signal",
    "refill": "; further prompts replace groups without signal",
}
_ROWS = {"nodes": "of a node each", "paths": "of paths through nodes", "packed": "of several branches each"}


def banner(trainer: ResumableTrainer) -> list[str]:
    """The algorithm with its custom credit function, the amount of data, what is sampled, the embedded task, and the
    settings in which the preset differs from TRL's defaults, without those that have no effect or that the user set."""
    data, name = trainer.train_dataset, credit_name(trainer)
    rows = f" on {len(data):,} prompts" if hasattr(data, "__len__") else ""
    count = trainer.accelerator.num_processes
    lines = [f"{name}{rows}: {describe_sampling(trainer.args)}" + f", on {count} processes" * (count > 1)]
    if any(inspect.unwrap(reward) in (demo_reward, agent_reward) for reward in trainer.reward_funcs):
        task = embedded_task(trainer.accelerator.unwrap_model(trainer.model).config) or DEMO
        lines.append(f"embedded task: {task.description}; reward 1 if the last digit is right")
    if changes := settings_of_preset(trainer.args):
        settings = ", ".join(f"{field} {theirs!r} → {ours!r}" for field, (theirs, ours) in changes.items())
        where = "(TRL's default → the paper's: `trl-credit help coming_from_trl`)"
        text = f"{trainer.algorithm_name} sets {settings} {where}"
        lines.append(textwrap.fill(text, width=120, subsequent_indent="  ", break_on_hyphens=False))
    return lines


def credit_name(trainer: ResumableTrainer) -> str:
    """The algorithm, with the user's credit function if there is one: "S-trace with credit mine.py:f"."""
    if (credit := trainer.args.credit) is None or is_default(trainer.args, "credit"):  # the preset's own
        return trainer.algorithm_name
    return f"{trainer.algorithm_name} with credit {short_name(credit)}"


def describe_sampling(args: CreditConfig) -> str:
    """What is sampled for a prompt, such as "8 responses per prompt"; for trees, also how many rows are trained on."""
    responses = f"{args.num_generations} responses per prompt"
    groups = _GROUPS[args.groups] + "; prompts by difficulty" * (args.prompt_sampler == "difficulty")
    if args.rollouts == "chain":
        return f"{responses}, with {args.rollouts_per_state} rollouts from the start of a segment{groups}"
    if args.rollouts != "tree":
        return responses + groups
    widths = [math.prod(args.tree_branching[: level + 1]) for level in range(len(args.tree_branching))]
    shape, prompts = "-".join(map(str, args.tree_branching)), args.generation_batch_size // args.num_generations
    return (
        f"a tree of {shape} per prompt (at most {widths[-1]:,} leaves and {sum(widths):,} nodes); of {prompts:,} "
        f"prompts in a generation batch at most {args.generation_batch_size:,} rows {_ROWS[args.tree_rows]} are "
        f"trained on{groups}"
    )
