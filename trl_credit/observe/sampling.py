"""What a run samples and trains on, and which of TRL's defaults its preset changes, in words."""

import math
import textwrap

from ..config import CreditConfig, settings_of_preset


_GROUPS = {
    "keep": "",
    "replace": "; copies replace groups without signal",
    "refill": "; further prompts replace groups without signal",
}
_ROWS = {"nodes": "of a node each", "paths": "of paths through nodes", "packed": "of several branches each"}


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


def describe_preset(args: CreditConfig, name: str) -> str:
    """The settings in which a preset differs from TRL's defaults, such as "S-trace sets beta 0.0 → 0.001, …", on
    lines of at most 120 characters. Without those that have no effect or were set to another value; `""` if none is
    left.

    Args:
        args ([`CreditConfig`]):
            The configuration of the run.
        name (`str`):
            The algorithm's name.
    """
    changes = [f"{field} {theirs!r} → {ours!r}" for field, (theirs, ours) in settings_of_preset(args).items()]
    if not changes:
        return ""
    where = "(TRL's default → the paper's: `trl-credit help coming_from_trl`)"
    text = f"{name} sets {', '.join(changes)} {where}"
    return textwrap.fill(text, width=120, subsequent_indent="  ", break_on_hyphens=False)
