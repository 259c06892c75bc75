"""Compares runs: ratios with intervals, verdicts, comparisons and history."""
