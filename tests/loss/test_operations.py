"""What our loss adds to TRL's, counted in calls of torch, and what is measured at logging steps alone."""

from collections import Counter

import pytest
import torch
import trl
from conftest import toy_inputs
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Counts the calls of torch that make a tensor, by name: all but views."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.calls[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def operations(trainer, toy_loss) -> Counter[str]:
    """Counts those of the loss of four responses of 64 tokens, in the middle of a training."""
    g = torch.Generator().manual_seed(0)
    logps, entropies = -torch.rand(4, 64, generator=g), torch.rand(4, 64, generator=g)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5])
    inputs = toy_inputs(torch.ones(4, 64, dtype=torch.long), advantages=advantages, old_per_token_logps=logps - 0.1)
    del inputs["tool_mask"]
    trainer.model.train()
    trainer.state.max_steps = 100
    tensors = {"logps": logps.requires_grad_(), "entropies": entropies}
    toy_loss(trainer, inputs, **tensors)  # what is made once
    with Operations() as counted:
        toy_loss(trainer, inputs, **tensors)
    return counted.calls


@pytest.mark.parametrize(("algo", "between", "logged"), [("grpo", 41, 135), ("s_trace", 84, 256)])
def test_few_operations_are_added_to_those_of_trl(make_trainer, toy_loss, algo, between, logged):
    """The bounds are what was counted with torch 2.13 and TRL 1.16; another torch may split an operation."""
    ours = make_trainer(algo, beta=0.0)
    same = {name: getattr(ours.args, name) for name in ("loss_type", "epsilon", "epsilon_high")}
    plain = operations(make_trainer((trl.GRPOConfig, trl.GRPOTrainer), beta=0.0, **same), toy_loss).total()
    ours.state.logging_steps = 10
    counts = operations(ours, toy_loss)
    assert counts.total() - plain <= 1.1 * between, "if your change needs them, write the new number here"
    assert counts["sort"] == (algo == "s_trace")  # GRPO has no selector, and between logs no metric that needs ranks
    ours.state.logging_steps = 1
    counts = operations(ours, toy_loss)
    assert counts.total() - plain <= 1.1 * logged, "if your metric needs them, write the new number here"
    assert counts["sort"] == 1  # for selector, deciles and noise share


EVERY_STEP = {"clip_fraction", "trained_tokens_per_row", "selected_fraction", "abs_advantage", "noise_share"}
IN_DETAIL = {"effective_horizon", "coefficient/quarter_1", "abs_advantage/quarter_1", "last_tokens_share"}


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
    metrics = trainer._metrics["train" if trainer.model.training else "eval"]
    assert metrics["credit/abs_advantage"] == metrics["credit/abs_advantage/quarter_1"] == [0.5]
