"""Where gradient noise lies. Both shares are compared with sums over tokens in tests/loss/test_shares_of_a_run.py."""

import pytest
import torch

from trl_credit.credit.shares import noise_outside


def test_the_noise_of_a_sure_token_is_not_rounded_away():
    logp = torch.full((1, 1), -1e-9)
    assert noise_outside(logp, selected_t=torch.zeros(1, 1), mask_t=torch.ones(1, 1))[1].item() == pytest.approx(1e-9)
