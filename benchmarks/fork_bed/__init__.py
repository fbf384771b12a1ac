"""The bed of `benchmarks/forks.py`: a policy whose expected reward is exact, and credit on it."""
