"""Where gradient noise lies. Both shares are compared with sums over tokens in tests/loss/test_shares_of_a_run.py."""

import pytest
import torch

from trl_credit.credit.shares import last_tokens, noise_outside


def test_the_noise_of_a_sure_token_is_not_rounded_away_and_nothing_is_read_outside_of_the_mask():
    logp, mask = torch.tensor([[-1e-9, torch.nan]]), torch.tensor([[1.0, 0.0]])
    assert noise_outside(logp, selected_t=torch.zeros(1, 2), mask_t=mask)[1].item() == pytest.approx(1e-9)
    assert [x.item() for x in last_tokens(torch.tensor([[-2.0, torch.nan]]), mask_t=mask)] == [2.0, 2.0]
