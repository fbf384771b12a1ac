"""A tiny model and a task that it half knows: what `examples/train.py` trains when nothing else is given."""

from pathlib import Path

from .task import DEMO_MAX_COMPLETION_LENGTH, demo_dataset, demo_reward, split_steps


__all__ = [
    "DEMO_MAX_COMPLETION_LENGTH",
    "DEMO_SETTINGS",
    "demo_dataset",
    "demo_model_path",
    "demo_reward",
    "split_steps",
]

# with which every algorithm learns the task within minutes on two cores, see `benchmarks/learning.py`
DEMO_SETTINGS = {
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 64,
    "num_generations": 8,
    "max_completion_length": DEMO_MAX_COMPLETION_LENGTH,
    "cutpoint_interval": 1,  # of a response's 24 tokens, some 5 are decisions
    "step_splitter": "trl_credit.demo.split_steps",
    "tree_branching": [4, 4, 4],
    "tree_segment_length": 6,  # tokens, a step and its separator
    "max_steps": 150,
    "logging_steps": 5,
}


def demo_model_path() -> str:
    """Folder of the warm-started checkpoint and its tokenizer, for `from_pretrained`. `warm_start.py` made it."""
    return str(Path(__file__).parent / "model")
