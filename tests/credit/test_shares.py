"""Where gradient noise and credit lie: the two shares against sums written out token by token."""

import pytest
import torch

from trl_credit.credit.selection import select_high_entropy
from trl_credit.credit.shares import last_tokens, noise_outside


def example(seed=0, rows=5, length=31):
    g = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(rows, length, generator=g, dtype=torch.float64)
    mask = (torch.rand(rows, length, generator=g) < 0.8).double()
    mask[0, 7:], mask[1] = 0, 0  # a short response, and one without a token
    credit = torch.randn(rows, length, generator=g, dtype=torch.float64)
    return old, mask, credit, torch.rand(rows, length, generator=g, dtype=torch.float64)


def test_the_noise_outside_of_a_selection_token_by_token():
    old, mask, _, entropy = example()
    selected = select_high_entropy(entropy, rate=0.2, mask_t=mask)
    places = [(i, t) for i in range(5) for t in range(31) if mask[i, t]]
    outside = sum(1 - old[p].exp().item() for p in places if not selected[p])
    dirty = old.masked_fill(mask == 0, torch.nan)
    sums = noise_outside(dirty, selected_t=selected, mask_t=mask)
    assert sums[0].item() == pytest.approx(outside, rel=1e-12)
    assert sums[1].item() == pytest.approx(sum(1 - old[p].exp().item() for p in places), rel=1e-12)
    assert noise_outside(old, selected_t=mask, mask_t=mask)[0] == 0


def test_the_noise_of_a_sure_token_is_not_rounded_away():
    logp = torch.full((1, 1), -1e-9)
    assert noise_outside(logp, selected_t=torch.zeros(1, 1), mask_t=torch.ones(1, 1))[1].item() == pytest.approx(1e-9)


@pytest.mark.parametrize("last", [1, 5, 20, 100])
def test_the_credit_of_the_last_tokens_token_by_token(last):
    _, mask, credit, _ = example()
    above = below = 0.0
    for i in range(5):
        sizes = [abs(credit[i, t].item()) for t in range(31) if mask[i, t]]
        m = min(last, len(sizes))
        above += sum(sizes[len(sizes) - m :])
        below += sum(sizes) * m / max(len(sizes), 1)
    sums = last_tokens(credit.masked_fill(mask == 0, torch.nan), mask_t=mask, last=last)
    assert [x.item() for x in sums] == pytest.approx([above, below], rel=1e-12)
