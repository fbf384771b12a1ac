"""What is checked when a training begins, before anything is written or loaded."""

from typing import Any

from ..config import CreditConfig


def check_amount(args: CreditConfig, dataset: Any) -> None:
    """Checks that there is at least one generation batch. Streams have no length to check.

    Raises:
        ValueError: fewer prompts than one generation batch needs.
    """
    if hasattr(dataset, "__len__") and len(dataset) < args.generation_batch_size // args.num_generations:
        raise too_short(args, f"the data set has {len(dataset)} rows")


def too_short(args: CreditConfig, what: str) -> ValueError:
    """The error for data that fill no generation batch."""
    needed = args.generation_batch_size // args.num_generations
    takes = f"one generation batch takes {needed} prompts (generation_batch_size / num_generations)"
    fix = f"give at least {needed} rows, or lower per_device_train_batch_size, gradient_accumulation_steps or"
    return ValueError(f"{what}, and {takes}: {fix} steps_per_generation.")
