"""Kernels from Apache TVM: records, lowering, search spaces and the tuner."""
