"""Matrix products by the kernels of CUTLASS, compiled from its headers."""
