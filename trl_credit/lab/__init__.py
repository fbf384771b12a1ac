"""Instruments around training: evaluation, comparison, explanation, plans, viewer. Imported by `cli` alone."""
