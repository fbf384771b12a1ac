"""The blocked scan against the dense matrix, a plain loop and `torch.cumsum`, alternating in one run.

    python benchmarks/scan.py [--lengths 1024 8192 32768] [--batch 8] [--repeats 15]

Prints medians and ratios; only the ratios mean anything from machine to machine. The dense product is left out where
its matrix would take more than 2 GiB, the loop above 8k tokens.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from memory import peak_bytes

from trl_credit.credit.scan import discounted_scan


def dense_scan(x_t: torch.Tensor, decay: float) -> torch.Tensor:
    """The same recursion as one product with the T×T matrix of g^(t−k)."""
    t = torch.arange(x_t.size(-1), device=x_t.device)
    lag = t[:, None] - t[None, :]
    matrix = torch.where(lag >= 0, decay ** lag.clamp(min=0).float(), 0.0)
    return x_t @ matrix.T


def loop_scan(x_t: torch.Tensor, decay: float) -> torch.Tensor:
    """The same recursion token by token."""
    out, s_t = torch.empty_like(x_t), torch.zeros_like(x_t[:, 0])
    for t in range(x_t.size(-1)):
        s_t = x_t[:, t] + decay * s_t
        out[:, t] = s_t
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 8192, 32768])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--decay", type=float, default=0.99)
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 32, 64, 128])
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, B = {args.batch}, g = {args.decay}, float32")
    for length in args.lengths:
        x_t = torch.randn(args.batch, length)
        ways: dict[str, Callable[[], torch.Tensor]] = {
            "scan": lambda x_t=x_t: discounted_scan(x_t, decay=args.decay),
            "cumsum": lambda x_t=x_t: x_t.cumsum(-1),
        }
        for block in args.blocks:
            ways[f"block {block}"] = lambda x_t=x_t, block=block: discounted_scan(x_t, decay=args.decay, block=block)
        if length <= 8192:
            ways["loop"] = lambda x_t=x_t: loop_scan(x_t, args.decay)
        if length**2 * 4 <= 2 * 2**30:
            ways["dense"] = lambda x_t=x_t: dense_scan(x_t, args.decay)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(args.repeats + 2):
            for name, way in ways.items():
                if name == "dense" and repeat >= 5:
                    continue  # a second each
                start = time.perf_counter()
                way()
                if repeat >= 2:  # the first two warm up
                    times[name].append(time.perf_counter() - start)
        median = {name: statistics.median(values) for name, values in times.items()}
        leaf_t = x_t.clone().requires_grad_()
        peak = peak_bytes(lambda leaf_t=leaf_t: discounted_scan(leaf_t, decay=args.decay).sum().backward())
        print(f"T = {length}: scan {median['scan'] * 1e3:.3f} ms, peak {peak / 1e6:.2f} MB")
        for name, value in median.items():
            if name != "scan":
                print(f"    {name:<10} {value * 1e3:10.3f} ms   {value / median['scan']:8.2f} x the scan")


if __name__ == "__main__":
    main()
