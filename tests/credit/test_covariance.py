"""The choice of Clip-Cov and KL-Cov, and FIPO's factor, against loops over tokens, with hostile values too."""

import math

import pytest
import torch

from trl_credit.credit.covariance import clip_cov_tokens, kl_cov_tokens
from trl_credit.credit.future_kl import future_kl_weight


def batch(seed=0, rows=6, length=50, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    logp = -3.0 * torch.rand(rows, length, generator=g, dtype=dtype)
    advantage = torch.tensor([1.5, -1.0, 0.5, -2.0, 1.0, 0.0], dtype=dtype)[:rows].unsqueeze(1)
    mask = torch.ones(rows, length, dtype=dtype)
    mask[1, 20:], mask[2, 5:15], mask[4] = 0, 0, 0
    return logp, advantage, mask


def slow(logp, advantage, mask) -> dict[tuple[int, int], float]:
    """(row, place) → covariance."""
    places = [(b, t) for b in range(len(logp)) for t in range(logp.size(1)) if mask[b, t]]
    mean_a = sum(advantage[b, 0].item() for b, _ in places) / len(places)
    mean_l = sum(logp[place].item() for place in places) / len(places)
    return {(b, t): (advantage[b, 0].item() - mean_a) * (logp[b, t].item() - mean_l) for b, t in places}


def chosen(marks) -> set[tuple[int, int]]:
    assert set(marks.unique().tolist()) <= {0.0, 1.0}
    return {tuple(place) for place in marks.nonzero().tolist()}


def clip(logp, advantage, mask, *, share=0.05, cov_range=(0.3, 1.5), seed=0, clipped_t=None):
    settings = {"share": share, "cov_range": cov_range, "clipped_t": clipped_t}
    generator = torch.Generator().manual_seed(seed)
    return clip_cov_tokens(logp, advantage_t=advantage, **settings, generator=generator, mask_t=mask)


def kl(logp, advantage, mask, *, share=0.05):
    return kl_cov_tokens(logp, advantage_t=advantage, share=share, mask_t=mask)


def test_clip_cov_chooses_so_many_of_the_candidates_alone():
    tensors = batch()
    cov = slow(*tensors)
    candidates = {place for place, c in cov.items() if 0.3 < c < 1.5}
    count = math.floor(0.05 * len(cov))
    assert count == 10 and 3 * count < len(candidates) < len(cov)
    seen = [chosen(clip(*tensors, seed=seed)) for seed in range(40)]
    assert all(len(places) == count and places <= candidates for places in seen)
    assert seen[0] == chosen(clip(*tensors, seed=0)) != seen[1]
    assert set().union(*seen) > set(list(candidates)[: len(candidates) // 2])  # at random among all of them
    counts = [sum(place in places for places in seen) for place in candidates]
    assert max(counts) < 25  # of 40, where one in three or four is expected


def test_the_range_is_open():
    logp = torch.tensor([[0.0, -2.0], [0.0, -2.0]])  # covariances are 1 and −1
    advantage, mask = torch.tensor([[1.0], [-1.0]]), torch.ones(2, 2)
    assert not clip(logp, advantage, mask, share=1.0, cov_range=(1.0, 5.0)).any()
    assert not clip(logp, advantage, mask, share=1.0, cov_range=(-5.0, -1.0)).any()
    assert chosen(clip(logp, advantage, mask, share=1.0, cov_range=(0.99, 1.01))) == {(0, 0), (1, 1)}


def test_kl_cov_chooses_the_largest():
    tensors = batch()
    cov = slow(*tensors)
    ranked = sorted(cov, key=cov.get, reverse=True)
    for share, count in ((0.0, 0), (0.001, 1), (0.05, 10), (0.5, 105), (1.0, len(cov))):
        assert chosen(kl(*tensors, share=share)) == set(ranked[:count])


def test_ties_keep_the_earlier_token():
    mask = torch.ones(3, 4)
    mask[0, 0] = 0
    marks = kl(torch.full((3, 4), -1.0), torch.tensor([[1.0], [-1.0], [0.0]]), mask, share=0.4)
    assert chosen(marks) == {(0, 1), (0, 2), (0, 3), (1, 0)}


@pytest.mark.parametrize("choose", [clip, kl])
def test_equal_advantages_one_token_and_none(choose):
    logp, advantage, mask = batch()
    equal = chosen(choose(logp, torch.ones_like(advantage), mask))
    assert equal == set() if choose is clip else len(equal) == 10
    one = torch.zeros_like(mask)
    one[0, 3] = 1
    assert chosen(choose(logp, advantage, one)) == (set() if choose is clip else {(0, 3)})
    assert not choose(logp, advantage, torch.zeros_like(mask)).any()
    assert choose(logp[:, :0], advantage, mask[:, :0]).shape == (6, 0)


@pytest.mark.parametrize("choose", [clip, kl])
@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf])
def test_neither_padding_nor_what_stands_there_matters(choose, fill):
    logp, advantage, mask = batch(dtype=torch.float32)
    plain = choose(logp, advantage, mask)
    dirty = torch.nn.functional.pad(torch.where(mask.bool(), logp, fill), (0, 7), value=fill)
    marks = choose(dirty, advantage, torch.nn.functional.pad(mask, (0, 7)))
    assert torch.equal(marks[:, :50], plain) and not marks[:, 50:].any() and plain.any()


@pytest.mark.parametrize("choose", [clip, kl])
def test_the_floor_of_a_product_is_that_of_the_numbers(choose):
    """0.29 · 100 is 28.999999999999996 in binary."""
    logp = -torch.rand(1, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logp, advantage = torch.cat([logp, logp.flip(1)]), torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    mask = torch.ones(2, 100)
    mask[1, :] = 0
    mask[1, 0], mask[0, 0] = 1, 0
    marks = choose(logp, advantage, mask, share=0.29, **({"cov_range": (-9.0, 9.0)} if choose is clip else {}))
    assert len(chosen(marks)) == 29


# FIPO's factor against a slow reference, at its limits, and with hostile values


def slow_factor(logp, old, advantage, mask, *, half_life, low, high, ratio_max, safety_ratio):
    """Token by token, O(T²)."""
    gamma, factor_t = 2.0 ** (-1.0 / half_life), torch.ones_like(old)
    for b in range(len(old)):
        for t in range(old.size(1)):
            if not mask[b, t]:
                continue
            future = 0.0
            for k in range(t, old.size(1)):
                drift = (logp[b, k] - old[b, k]).item()
                if mask[b, k] and not (ratio_max is not None and math.exp(drift) > ratio_max):
                    future += gamma ** (k - t) * drift
            f = min(max(math.exp(future), low), high)
            if advantage[b] < 0 and math.exp((logp[b, t] - old[b, t]).item()) > safety_ratio:
                f = min(max(f, 0.8), 1.0)
            factor_t[b, t] = f
    return factor_t


def drifted(seed=0, rows=5, length=60, scale=0.8):
    g = torch.Generator().manual_seed(seed)
    old = -2.0 * torch.rand(rows, length, generator=g, dtype=torch.float64)
    logp = old + scale * torch.randn(rows, length, generator=g, dtype=torch.float64)
    mask = torch.ones(rows, length, dtype=torch.float64)
    mask[1, 40:], mask[2, 10:20], mask[3] = 0, 0, 0
    logp, old = (x.masked_fill(mask == 0, math.nan) for x in (logp, old))  # where nothing may be read
    return logp, old, torch.tensor([1.0, -1.0, -0.5, 2.0, 0.0], dtype=torch.float64), mask


def weight(logp, old, advantage, mask, **settings):
    settings = {"half_life": 32.0, "clip_range": (1.0, 1.2)} | settings
    return future_kl_weight(logp, old_logp_t=old, advantage_t=advantage.unsqueeze(1), **settings, mask_t=mask)


@pytest.mark.parametrize("clip_range", [(1.0, 1.2), (0.8, 1.2), (0.1, 50.0)])
@pytest.mark.parametrize("half_life", [0.5, 32.0])
@pytest.mark.parametrize(("ratio_max", "safety_ratio"), [(None, 1.5), (2.0, 4.0)])
@pytest.mark.parametrize("scale", [0.05, 0.8])
def test_the_factor_is_that_of_the_slow_reference(clip_range, half_life, ratio_max, safety_ratio, scale):
    tensors = drifted(scale=scale)
    settings = {"half_life": half_life, "ratio_max": ratio_max, "safety_ratio": safety_ratio}
    expected = slow_factor(*tensors, **settings, low=clip_range[0], high=clip_range[1])
    torch.testing.assert_close(weight(*tensors, **settings, clip_range=clip_range), expected, rtol=1e-12, atol=1e-12)
    assert expected.unique().numel() > 2  # neither all clipped nor all 1


def test_one_token_no_token_and_no_half_life():
    one = torch.ones(1, 1)
    assert weight(one * 0.1, one * 0, one[0], one).item() == pytest.approx(math.exp(0.1))
    assert weight(one[:, :0], one[:, :0], one[0], one[:, :0]).shape == (1, 0)
