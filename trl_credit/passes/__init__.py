"""Which rows a forward pass computes. With its knobs switched off, every pass is TRL's own.

May import the subpackages up to `loss`. The trainer uses `ReducedPasses` of `reduced.py`.
"""
