"""Slow references for traces."""

import torch


def trace_matrix(length, decay, style):
    """tr(t, k) of GRPO-λ's trace styles, shape (length, length)."""

    def entry(t, k):
        if k > t:
            return 0.0
        recent = decay ** (t - k)
        return recent if style == "recent" else max(recent, decay**k)

    return torch.tensor([[entry(t, k) for k in range(length)] for t in range(length)], dtype=torch.float64)
