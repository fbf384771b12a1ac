"""Runs that save every step, and what is compared between them."""

import pytest
import torch


KIND = "runs and checkpoints"
refused, survived = pytest.mark.hostile(KIND, "refused"), pytest.mark.hostile(KIND, "survived")
SAVES = {"save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}


def trained(make_trainer, *args, resume=None, **settings):
    """The trainer of a run that has ended."""
    trainer = make_trainer(*args, **settings)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def equal(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def length_reward(completions, scale=1, **kwargs):
    return [scale * len(text) / 8 for text in completions]
