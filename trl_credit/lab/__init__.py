"""Instruments around training: evaluation, comparison, explanation, plans, viewer. Only `cli` imports them."""
