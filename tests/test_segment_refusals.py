"""Segment credit refuses what it cannot continue or grade, and says so where nothing can be credited."""

import math

import pytest
import torch
from segment_helpers import CHAIN, engine_calls, generation_batch


def test_a_reward_that_is_no_number_stops_before_any_update(make_trainer):
    def fails_on_rollouts(kind):
        calls = []

        def picky(prompts, completions, **kwargs):
            calls.append(len(completions))
            if len(calls) == 1:
                return [1.0] * len(completions)
            if kind == "raise":
                raise KeyError("no such column")
            return [1.0] * (len(completions) - 1) + [kind]

        return picky

    for kind in (math.nan, math.inf, "raise"):
        trainer = make_trainer(**CHAIN, reward_funcs=fails_on_rollouts(kind))
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        with pytest.raises((ValueError, RuntimeError)) as caught:
            trainer.train()
        assert "picky" in str(caught.value) and any(f"{i}+" in str(caught.value) for i in range(10))
        assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())


@pytest.mark.parametrize("name", ["tools", "rollout_func"])
def test_what_cannot_be_continued_is_refused(make_trainer, name):
    def anything(x: str) -> str:
        """A tool.

        Args:
            x: A string.
        """
        return x

    value = [anything] if name == "tools" else anything
    with pytest.raises(ValueError, match=f"{name}.*rollouts='none'"):
        make_trainer(**CHAIN, trainer_kwargs={name: value})


def test_images_are_refused(make_trainer):
    trainer = make_trainer(**CHAIN)
    trainer.model.train()
    with pytest.raises(ValueError, match="images"):
        trainer._generate_and_score_completions([{"prompt": "1", "image": object()}] * 8)


def test_a_splitter_that_returns_anything_else_stops_the_run(make_trainer, tmp_path):
    (tmp_path / "bad.py").write_text("def split(text):\n    return [len(text), 0]\n")
    trainer = make_trainer(**CHAIN, segmentation="steps", step_splitter=f"{tmp_path}/bad.py:split")
    with pytest.raises(TypeError, match="ascending offsets"):
        trainer.train()


def test_a_batch_without_a_boundary_says_so(make_trainer, caplog):
    trainer = make_trainer(**CHAIN, token_mask="probability", probability_threshold=1e-9)
    calls = engine_calls(trainer)
    with caplog.at_level("WARNING"):
        output = generation_batch(trainer)
    assert "no boundary" in caplog.text and "probability_threshold" in caplog.text
    assert len(calls) == 1 and not output["advantages"].any()
    trainer.current_gradient_accumulation_steps = 1
    assert trainer.compute_loss(trainer.model, output).item() == 0.0  # its normaliser would be 0
