"""The blocked scan against the recursion it computes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_credit.credit.scan import discounted_scan, reverse_discounted_scan


def slow_scan(x, decay):
    out, s = [], torch.zeros_like(x[..., 0])
    for t in range(x.size(-1)):
        s = x[..., t] + decay * s
        out.append(s)
    return torch.stack(out, -1) if out else x


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 300),
    decay=st.sampled_from([0.0, 1e-3, 0.5, 0.9, 0.99, 0.999999, 1.0]) | st.floats(0, 1),
    block=st.sampled_from([2, 7, 32, 64]),
)
def test_equals_the_recursion(length, decay, block):
    x = torch.randn(3, length, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    found = discounted_scan(x, decay=decay, block=block)
    torch.testing.assert_close(found, slow_scan(x, decay), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 1024, 1025, 4097])
@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999, 1.0])
def test_float32_across_block_levels(length, decay):
    x = torch.randn(2, length, generator=torch.Generator().manual_seed(0))
    found = discounted_scan(x, decay=decay).double()
    torch.testing.assert_close(found, slow_scan(x.double(), decay), rtol=1e-5, atol=1e-4)


def test_bfloat16_and_autocast_accumulate_in_float32():
    x = torch.rand(2, 2048, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = slow_scan(x.double(), 0.999)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = discounted_scan(x, decay=0.999)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_compiles_without_a_graph_break():
    compiled = torch.compile(lambda x: discounted_scan(x, decay=0.9), fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 100, requires_grad=True)
    torch.testing.assert_close(compiled(x), discounted_scan(x, decay=0.9))
    upstream = torch.randn(2, 100)
    compiled(x).backward(upstream)
    torch.testing.assert_close(x.grad, reverse_discounted_scan(upstream, decay=0.9))
