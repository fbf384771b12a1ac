"""A tiny model and a task that it half knows: what `examples/train.py` trains when nothing else is given."""

from pathlib import Path
from typing import Any

from ..dead_knobs import defaults, live_part
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

# with which every algorithm learns the task within minutes on two cores, see `benchmarks/learning.py`
DEMO_SETTINGS = {
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 64,
    "num_generations": 8,
    "max_completion_length": DEMO_MAX_COMPLETION_LENGTH,
    "max_steps": 200,
    "logging_steps": 5,
}
# for the algorithms with segments; each is refused where it does nothing, see `demo_settings`
DEMO_SEGMENTS = {
    "cutpoint_interval": 1,  # of a response's 36 tokens, six are decisions
    "step_splitter": "trl_credit.demo.split_steps",
    "tree_branching": [4, 4, 4],
    "tree_segment_length": 6,  # tokens, a step and its separator
}


def demo_settings(config_class: type, **knobs: Any) -> dict[str, Any]:
    """Arguments of a configuration class for a run on the embedded task: `DEMO_SETTINGS`, those of `DEMO_SEGMENTS` that
    do something with this class and these knobs, and over them the knobs."""
    given = DEMO_SETTINGS | knobs
    return live_part(DEMO_SEGMENTS, defaults(config_class) | DEMO_SEGMENTS | given) | given


def demo_model_path() -> str:
    """Folder of the warm-started checkpoint and its tokenizer, for `from_pretrained`. `warm_start.py` made it."""
    return str(Path(__file__).parent / "model")
