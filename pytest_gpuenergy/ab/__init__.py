"""Two revisions of the same kernels, measured alternately by one session on one GPU."""
