"""Matrix products: our templates, and the kernels of cuBLAS, CUTLASS and Triton."""
