"""The one reader of kernel source text: CUDA by tree-sitter, Triton by Python's own parser."""
