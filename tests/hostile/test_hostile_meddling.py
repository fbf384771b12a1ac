"""Reward functions that meddle with the run: it trains as without that, to the last bit."""

import functools
import os
import sys

import pytest
import torch

from trl_credit.rewards.guard import guard_rewards


FUNCTIONS = "reward functions"


def reseeds(completions, **kwargs):
    torch.manual_seed(0)
    torch.rand(3)


def moves(completions, **kwargs):
    os.chdir("/")


def writes(completions, **kwargs):
    completions[:] = ["b"] * len(completions)
    kwargs["completion_ids"][0].append(1)
    kwargs["answer"].clear()


def forks_and_exits(completions, **kwargs):
    if os.fork() == 0:
        sys.exit(3)


def switches_gradients_off(completions, **kwargs):
    torch.set_grad_enabled(False)


MEDDLES = [switches_gradients_off, reseeds, moves, writes, forks_and_exits]


def shares(completions, answer, **kwargs):
    assert len(answer) == len(completions)
    return [sum(c in "abc" for c in text) / 8 for text in completions]


def with_meddling(meddle, *, is_async):
    """`shares`, whose every call also does what it should not."""

    def mine(completions, **kwargs):
        rewards = shares(completions, **kwargs)
        meddle(completions, **kwargs)
        return rewards

    @functools.wraps(mine)
    async def asynchronous(completions, **kwargs):
        return mine(completions, **kwargs)

    return asynchronous if is_async else mine


@pytest.mark.slow
@pytest.mark.hostile(FUNCTIONS, "survived")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize(("is_async", "timeout"), [(False, None), (True, 60.0)])
@pytest.mark.parametrize("meddle", MEDDLES, ids=lambda f: f.__name__)
def test_a_run_is_as_without_what_a_reward_does_to_it(make_trainer, here, meddle, is_async, timeout):
    settings = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-2}
    plain = make_trainer(reward_funcs=[shares, shares], output_dir="plain", **settings)
    plain.train()
    weights = [x.clone() for x in plain.model.parameters()]
    own = os.getpid()
    functions = [with_meddling(meddle, is_async=is_async), shares]
    trainer = make_trainer(reward_funcs=functions, reward_timeout=timeout, output_dir="meddled", **settings)
    trainer.train()
    trainer.save_model()
    assert os.getpid() == own and os.getcwd() == str(here)
    assert all(torch.equal(a, b) for a, b in zip(weights, trainer.model.parameters(), strict=True))
    assert (here / "meddled" / "model.safetensors").is_file()


@pytest.mark.hostile(FUNCTIONS, "survived")
def test_columns_of_conversations_and_images_are_copied_once():
    image = object()
    columns = {
        "prompts": [[{"role": "user", "content": "1+1="}]],
        "completions": [[{"role": "assistant", "content": "2"}]],
        "image": [image],
        "tensor": [torch.ones(2)],
    }

    def mine(completions, prompts, image, tensor, **kwargs):
        completions[0][0]["content"] = prompts[0][0]["content"] = "changed"
        tensor[0].zero_()
        return [float(image[0] is columns["image"][0])]

    assert guard_rewards(mine)(**columns) == [1.0]
    assert columns["completions"][0][0]["content"] == "2" and columns["prompts"][0][0]["content"] == "1+1="
    assert columns["tensor"][0].sum() == 2
