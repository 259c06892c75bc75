"""Kernels from Apache TVM: its search space for the tuner, and the store that lowers records."""
