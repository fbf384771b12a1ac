"""A tiny model and a task that it half knows, the default of `examples/train.py`. Imports `config` and below."""

from pathlib import Path
from typing import Any

from ..config import active_part, defaults
from .task import DEMO_MAX_COMPLETION_LENGTH, demo_dataset, demo_reward, split_steps


__all__ = [
    "DEMO_MAX_COMPLETION_LENGTH",
    "DEMO_SEGMENTS",
    "DEMO_SETTINGS",
    "demo_dataset",
    "demo_model_path",
    "demo_reward",
    "demo_settings",
    "split_steps",
]

# Every algorithm learns the task with these within minutes on two cores, see `benchmarks/learning.py`.
DEMO_SETTINGS = {
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 64,
    "num_generations": 8,
    "max_completion_length": DEMO_MAX_COMPLETION_LENGTH,
    "max_steps": 200,
    "logging_steps": 5,
    "log_credit": 20,  # for `trl-credit view` and `show_credit`
}
# For algorithms with segments. Each is refused if it has no effect, see `demo_settings`.
DEMO_SEGMENTS = {
    "cutpoint_interval": 1,  # of a response's 36 tokens, six are decisions
    "step_splitter": "trl_credit.demo.split_steps",
    "tree_branching": [4, 4, 4],
    "tree_segment_length": 6,  # tokens, a step and its separator
}


def demo_settings(config_class: type, **knobs: Any) -> dict[str, Any]:
    """Arguments of a configuration class for a run on the embedded task: `DEMO_SETTINGS`, those of `DEMO_SEGMENTS` that
    have an effect with this class and these knobs, and the knobs, which override both."""
    given = DEMO_SETTINGS | knobs
    return active_part(DEMO_SEGMENTS, defaults(config_class) | DEMO_SEGMENTS | given) | given


def demo_model_path() -> str:
    """Folder of the warm-started checkpoint and its tokenizer, for `from_pretrained`. `warm_start.py` makes it."""
    return str(Path(__file__).parent / "model")
