"""Runs of several algorithms and seeds side by side: the grid that trains them, curves, intervals, a report."""
