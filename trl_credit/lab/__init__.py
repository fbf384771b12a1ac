"""Instruments around training: evaluation, comparison, explanation, plans, viewer. No room below imports them."""
