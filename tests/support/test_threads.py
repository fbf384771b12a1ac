"""Threads of a training: one for a small model on the CPU, unless something else has set them."""

import pytest
import torch
from torch import nn

from trl_credit import STraceTrainer
from trl_credit.support import threads
from trl_credit.support.threads import SMALL, threads_for


@pytest.fixture
def unset(monkeypatch):
    """As in a process without the variables that the tests set. More than one thread, also on one core."""
    before = torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_CHOSEN_BY_TORCH", 2)
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


def inside(model: nn.Module) -> int:
    with threads_for(model):
        return torch.get_num_threads()


def test_training_has_one_thread_and_gives_them_back(unset, make_trainer):
    seen = []

    def reward(completions, **kwargs):
        seen.append(torch.get_num_threads())
        if len(seen) == 2:
            raise KeyError("no")
        return [float(i % 2) for i in range(len(completions))]

    trainer = make_trainer("s_trace", reward_funcs=reward, max_steps=2)
    assert isinstance(trainer, STraceTrainer) and torch.get_num_threads() == unset
    with pytest.raises(RuntimeError, match="KeyError"):
        trainer.train()
    assert seen == [1, 1] and torch.get_num_threads() == unset


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_variables_are_followed(unset, monkeypatch, name):
    assert inside(nn.Linear(2, 2)) == 1 == inside(nn.Linear(SMALL // 1000 - 1, 1000, bias=False))
    assert inside(nn.Linear(SMALL // 1000, 1000, bias=False)) == unset
    monkeypatch.setenv(name, str(unset))
    assert inside(nn.Linear(2, 2)) == unset


def test_a_number_that_somebody_set_stays(unset):
    torch.set_num_threads(unset + 1)
    assert inside(nn.Linear(2, 2)) == unset + 1 == torch.get_num_threads()
