"""The lines that a run begins with: what is trained, what is sampled, and what the preset sets."""

import inspect
import math
import textwrap
from functools import partial

from ..config import CreditConfig, settings_of_preset
from ..config.knobs import is_default
from ..demo import DEMO, agent_reward, demo_reward
from ..runs.model_identity import embedded_task, without_folder
from ..runs.resumable import ResumableTrainer
from ..support.functions import short_name


_GROUPS = {"keep": "", "replace": "; copies replace groups without signal"}
_GROUPS["refill"] = "; further prompts replace groups without signal"
_ROWS = {"nodes": "of a node each", "paths": "of paths through nodes", "packed": "of several branches each"}
_wrapped = partial(textwrap.fill, width=120, subsequent_indent="  ", break_on_hyphens=False)


def banner(trainer: ResumableTrainer) -> list[str]:
    """The algorithm with its custom credit function, the amount of data, what is sampled, the embedded task, the
    teacher, and the settings in which the preset differs from TRL's defaults, without those that have no effect or
    that the user set."""
    data, name = trainer.train_dataset, credit_name(trainer)
    rows = f" on {len(data):,} prompts" if hasattr(data, "__len__") else ""
    count = trainer.accelerator.num_processes
    lines = [f"{name}{rows}: {describe_sampling(trainer.args)}" + f", on {count} processes" * (count > 1)]
    if any(inspect.unwrap(reward) in (demo_reward, agent_reward) for reward in trainer.reward_funcs):
        task = embedded_task(trainer.accelerator.unwrap_model(trainer.model).config) or DEMO
        lines.append(f"embedded task: {task.description}; reward 1 if the last digit is right")
    if trainer.args.teacher is not None:
        lines.append(_wrapped(f"teacher: {describe_teacher(trainer.args)}"))
    if changes := settings_of_preset(trainer.args):
        settings = ", ".join(f"{field} {theirs!r} → {ours!r}" for field, (theirs, ours) in changes.items())
        where = "(TRL's default → the paper's: `trl-credit help coming_from_trl`)"
        lines.append(_wrapped(f"{trainer.algorithm_name} sets {settings} {where}"))
    return lines


def credit_name(trainer: ResumableTrainer) -> str:
    """The algorithm, with the user's credit function if there is one: "S-trace with credit mine.py:f"."""
    if (credit := trainer.args.credit) is None or is_default(trainer.args, "credit"):  # the preset's own
        return trainer.algorithm_name
    return f"{trainer.algorithm_name} with credit {short_name(credit)}"


def describe_teacher(args: CreditConfig) -> str:
    """The weights of the teacher, and what it sees."""
    steps, prompt = args.teacher_sync_steps, args.teacher_prompt
    weights = {"policy": "the policy itself", "reference": "the reference model"}.get(args.teacher)
    if steps is not None:
        every = f"{steps} optimizer steps" if steps > 1 else "optimizer step"
        kind = "copy" if args.teacher_update_rate == 1.0 else "moving average"
        weights = f"a {kind} of the policy, renewed every {every}"
    sees = {None: "the prompt alone", "success": "a right response of the group"}.get(prompt, f"{prompt!r}")
    if args.custom_function("teacher_prompt") is not None:
        sees = f"what {short_name(prompt)} makes of a row"
    return f"{weights or without_folder(args.teacher)}, which sees {sees}"


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
