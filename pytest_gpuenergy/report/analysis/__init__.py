"""Analyses of several measurements: the best kernels, changes between runs, boards."""
