"""What our loss adds to TRL's, counted in calls of torch, and what is measured at logging steps alone."""

import pytest
import torch
from conftest import toy_inputs


EVERY_STEP = {"clip_fraction", "trained_tokens_per_row", "selected_fraction", "abs_advantage", "noise_share"}
IN_DETAIL = {"trace_mass", "effective_horizon", "coefficient/quarter_1", "abs_advantage/quarter_1", "last_tokens_share"}


@pytest.mark.parametrize(
    ("settings", "logged"),
    [
        ({"logging_steps": 3}, [3, 6, 7]),  # transformers logs the rest at the end
        ({"logging_steps": 5, "logging_first_step": True}, [1, 5, 7]),
    ],
)
def test_details_are_those_of_the_step_that_is_logged(make_trainer, settings, logged):
    trainer = make_trainer("s_trace", max_steps=7, **settings)
    seen: list[set[str]] = []
    append = trainer._meter.append

    def see(values):
        values = list(values)
        if any(name == "clip_fraction" for name, _ in values):
            seen.append({name for name, _ in values})
        append(values)

    trainer._meter.append = see
    trainer.train()
    assert len(seen) == 7 and all(EVERY_STEP <= names for names in seen)
    assert [step for step, names in enumerate(seen, 1) if IN_DETAIL <= names] == logged
    assert [step for step, names in enumerate(seen, 1) if IN_DETAIL & names] == logged
    rows = [row for row in trainer.state.log_history if "credit/clip_fraction" in row]
    assert rows and all(f"credit/{name}" in row for row in rows for name in EVERY_STEP | IN_DETAIL)


def test_advantages_that_the_loss_does_not_see_may_be_anything(make_trainer, toy_loss):
    trainer = make_trainer("grpo", beta=0.0)
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    old = torch.full((2, 3), -1.0)
    inputs = toy_inputs(mask, advantages=torch.tensor([0.5, torch.nan]), old_per_token_logps=old)
    toy_loss(trainer, inputs, logps=old.clone().requires_grad_(), entropies=torch.ones(2, 3))
    found = trainer._metrics["train" if trainer.model.training else "eval"]
    assert found["credit/abs_advantage"] == found["credit/abs_advantage/quarter_1"] == [0.5]
