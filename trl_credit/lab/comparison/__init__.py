"""Comparison of algorithms over seeds: grid, curves, intervals, report. May import every room but cli."""
