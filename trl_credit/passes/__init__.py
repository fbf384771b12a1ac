"""Which rows a forward pass computes. Delete me and it still trains: switched off, every pass is TRL's own.

May import the subpackages up to `loss`. The trainer uses `ReducedPasses` of `reduced.py`.
"""
