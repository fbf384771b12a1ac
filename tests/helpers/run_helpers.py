"""Runs that save every step, and what they are tried with."""

import pytest


KIND = "runs and checkpoints"
refused, survived = pytest.mark.hostile(KIND, "refused"), pytest.mark.hostile(KIND, "survived")
SAVES = {"save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}


def length_reward(completions, scale=1, **kwargs):
    return [scale * len(text) / 8 for text in completions]
