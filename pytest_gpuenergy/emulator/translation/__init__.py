"""CUDA text and PTX translated into C++ for the host."""
