"""Groups what a trace launched: a `KernelExtraction` of unique kernels, and unique calls."""
