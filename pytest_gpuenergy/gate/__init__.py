"""Compares runs: ratios with intervals, verdicts, comparisons, history."""
