"""Checkpoints, run folders and run identity. Independent of how credit is assigned. Overrides private methods of
transformers' `Trainer`, and uses private attributes of TRL's `GRPOTrainer`."""
