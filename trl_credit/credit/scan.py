"""The discounted scan in O(T). Every eligibility trace in this package is computed with it."""

from functools import lru_cache

import torch


def discounted_scan(x_t: torch.Tensor, *, decay: float, block: int = 32) -> torch.Tensor:
    """S_t = x_t + g·S_{t−1}, S_{−1} = 0: the discounted running sum along the last dimension.

    The last dimension is cut into blocks. Inside a block the recursion is one product with a `block × block` triangular
    matrix. The last values of the blocks obey the same recursion with decay g^block, so the same function scans them;
    it ends after log_block(T) levels. Work is O(T·block) and memory O(T). No weight above 1 is ever formed (the usual
    exp-cumsum trick needs g^{−T}, which overflows).

    `decay=0` returns `x_t` itself; `decay=1` is a cumulative sum.

    Args:
        x_t (`torch.Tensor`):
            Shape (..., T). All types but float64 are accumulated in float32, also under autocast.
        decay (`float`):
            g in [0, 1].
        block (`int`, *optional*, defaults to `32`):
            Block length in tokens (32 is the fastest of 16 … 128 on a CPU, see `benchmarks/scan.py`).

    Returns:
        `torch.Tensor`: shape (..., T), float32 (float64 for float64 input), differentiable in `x_t`.

    Source: S-trace (arXiv 2605.05965) and GRPO-λ (arXiv 2510.00194), whose traces are this recursion.
    """
    # autocast would run the product in bfloat16, which leaves two digits of a trace of a thousand tokens
    with torch.autocast(device_type=x_t.device.type, enabled=False):
        x_t = x_t if x_t.dtype == torch.float64 else x_t.float()
        if decay == 0.0 or x_t.size(-1) == 0:
            return x_t
        if decay == 1.0:
            return x_t.cumsum(-1)
        return _blocked_scan(x_t, decay, block)


def reverse_discounted_scan(x_t: torch.Tensor, *, decay: float, block: int = 32) -> torch.Tensor:
    """R_t = x_t + g·R_{t+1}: the transpose of [`discounted_scan`], with its shapes and types."""
    return discounted_scan(x_t.flip(-1), decay=decay, block=block).flip(-1)


def _blocked_scan(x_t: torch.Tensor, decay: float, block: int) -> torch.Tensor:
    length = x_t.size(-1)
    block = min(block, length)
    n_blocks = -(-length // block)
    if n_blocks * block > length:
        x_t = torch.nn.functional.pad(x_t, (0, n_blocks * block - length))
    known_powers = _powers.__wrapped__ if torch.compiler.is_compiling() else _powers  # a compiler keeps its own
    upper, powers = known_powers(decay, block, x_t.dtype, x_t.device)
    inside = x_t.unflatten(-1, (n_blocks, block)) @ upper
    if n_blocks > 1:
        decay_block = decay**block
        ends = inside[..., -1]
        carried = _blocked_scan(ends, decay_block, block) if decay_block > 0.0 else ends
        # block b starts from the trace at the end of block b-1
        carry = torch.nn.functional.pad(carried[..., :-1], (1, 0))
        inside = torch.addcmul(inside, carry.unsqueeze(-1), powers)
    return inside.flatten(-2)[..., :length]


@lru_cache(maxsize=64)
def _powers(decay: float, block: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrix [k, t] ↦ g^{t−k} for k ≤ t, else 0, which scans a row vector of a block, and g^{t+1}, shape (block,).

    They are the same in every pass of a run, and making them takes more calls than the scan itself.
    """
    with torch.inference_mode(False):  # tensors made in it could not be used where gradients are recorded
        exponents = torch.arange(block, device=device)
        # float64, because g^k by float32 multiplication drifts
        powers = torch.pow(decay, exponents.to(torch.float32 if device.type == "mps" else torch.float64))
        lag = exponents[None, :] - exponents[:, None]
        upper = torch.where(lag >= 0, powers[lag.clamp(min=0)], 0.0)
        return upper.to(dtype), (powers * decay).to(dtype)
