"""Threads of a training: one for a small model on the CPU, unless a variable sets their number."""

import pytest
import torch
from torch import nn

from trl_credit.support.threads import SMALL, threads_for


NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def inside(model: nn.Module) -> int:
    with threads_for(model):
        return torch.get_num_threads()


@pytest.mark.parametrize("name", NAMES)
def test_a_small_model_has_one_thread_unless_a_variable_is_set(monkeypatch, name):
    """In a process without the variables that the tests set. Two threads, also on one core."""
    for variable in NAMES:
        monkeypatch.delenv(variable, raising=False)
    torch.set_num_threads(2)
    assert inside(nn.Linear(2, 2)) == 1 == inside(nn.Linear(SMALL // 1000 - 1, 1000, bias=False))
    assert inside(nn.Linear(SMALL // 1000, 1000, bias=False)) == 2 == torch.get_num_threads()
    monkeypatch.setenv(name, "2")
    assert inside(nn.Linear(2, 2)) == 2
    torch.set_num_threads(1)  # as the tests have
