"""Which rows a forward pass computes. Delete me and it still trains: switched off, every pass is TRL's own.

Imports rooms up to `loss`. The trainer uses `make_passes` of `reduced.py`.
"""
