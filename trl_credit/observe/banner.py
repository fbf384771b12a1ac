"""The lines that a run begins with: what is trained, and how."""

import inspect

from ..config.knobs import is_default
from ..demo import DEMO, agent_reward, demo_reward
from ..runs.model_identity import embedded_task
from ..runs.resumable import ResumableTrainer
from ..support.functions import short_name
from .sampling import describe_preset, describe_sampling


def banner(trainer: ResumableTrainer) -> list[str]:
    """The algorithm with its custom credit function, the amount of data, what is sampled, the embedded task, and what
    the preset sets."""
    data, name = trainer.train_dataset, credit_name(trainer)
    rows = f" on {len(data):,} prompts" if hasattr(data, "__len__") else ""
    count = trainer.accelerator.num_processes
    processes = f", on {count} processes" if count > 1 else ""
    lines = [f"{name}{rows}: {describe_sampling(trainer.args)}{processes}"]
    if any(inspect.unwrap(reward) in (demo_reward, agent_reward) for reward in trainer.reward_funcs):
        task = embedded_task(trainer.accelerator.unwrap_model(trainer.model).config) or DEMO
        lines.append(f"embedded task: {task.description}; reward 1 if the last digit is right")
    if changed := describe_preset(trainer.args, trainer.algorithm_name):
        lines.append(changed)
    return lines


def credit_name(trainer: ResumableTrainer) -> str:
    """The algorithm, with the user's credit function if there is one: "S-trace with credit mine.py:f"."""
    credit = trainer.args.credit
    if credit is None or is_default(trainer.args, "credit"):  # the preset's own
        return trainer.algorithm_name
    return f"{trainer.algorithm_name} with credit {short_name(credit)}"
