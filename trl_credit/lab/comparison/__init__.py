"""Comparison of algorithms over seeds: grid, curves, intervals, report. May import all subpackages but `cli`."""
