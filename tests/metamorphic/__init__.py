"""Random valid configurations, each trained in ways that must come to the same weights.

    python -m tests.metamorphic --count 500 [--seed N] [--first I]

`configurations` draws, `training` trains, `equalities` says what must be equal to what, and why. Responses are a
function of their prefix, so that all variants train on the same ones; all else is the real trainer on a tiny model.
"""
