"""Tiny models and tasks that they half know, the default of `examples/train.py`. Imports `config` and below."""

from typing import Any

from ..config import active_part, defaults
from .agent import Calculator, StepCalculator, agent_dataset, agent_reward
from .task import DEMO, TASKS, DemoTask, demo_dataset, demo_reward, split_steps, without_filler


__all__ = ["DEMO", "DEMO_SEGMENTS", "DEMO_SETTINGS", "TASKS", "Calculator", "DemoTask", "StepCalculator"]
__all__ += ["agent_dataset", "agent_reward", "demo_dataset", "demo_model_path", "demo_reward", "demo_settings"]
__all__ += ["split_steps", "task_of_model", "without_filler"]

DEMO_SETTINGS = DEMO.settings
# For algorithms with segments. Each is refused if it has no effect, see `demo_settings`.
DEMO_SEGMENTS = {
    "cutpoint_interval": 1,  # of a response's 36 tokens, six are decisions
    "step_splitter": "trl_credit.demo.split_steps",
    "tree_branching": [4, 4, 4],
    "tree_segment_length": 6,  # tokens, a step and its separator
}


def demo_settings(config_class: type, *, task: DemoTask = DEMO, **knobs: Any) -> dict[str, Any]:
    """Arguments of a configuration class for a run on an embedded task: its settings, those of `DEMO_SEGMENTS` that
    have an effect with this class and these knobs, and the knobs, which override both."""
    settings = task.settings | knobs
    return active_part(DEMO_SEGMENTS, defaults(config_class) | DEMO_SEGMENTS | settings) | settings


def demo_model_path(task: DemoTask = DEMO) -> str:
    """Folder of a task's warm-started checkpoint and its tokenizer, for `from_pretrained`.

    `benchmarks/warm_start.py` makes it.
    """
    return task.model_path


def task_of_model(name: str | None) -> DemoTask | None:
    """The embedded task whose checkpoint a name or a folder means, `None` for any other model."""
    return next((task for task in TASKS.values() if name in (task.name, task.model_path)), None)
