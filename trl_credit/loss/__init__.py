"""From knobs and log-probabilities to the (W, A, M) that TRL's loss reads. `keys` alone spells TRL's dict keys. Imports
`credit`, `config` and `support`."""
