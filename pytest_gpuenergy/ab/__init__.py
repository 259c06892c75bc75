"""Measures two revisions of the same kernels alternately, in one session on one GPU."""
