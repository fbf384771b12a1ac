"""From knobs and log-probabilities to the (W, A, M) that TRL's loss reads. Only `keys` has TRL's dict keys as strings.
Imports `credit`, `config` and `support`."""
