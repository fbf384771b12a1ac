"""Checkpoints, run folders and identity. Knows nothing of credit; names private methods of transformers' `Trainer`."""
