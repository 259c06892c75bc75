"""Workloads: tensors, inputs from a seed, a float64 reference, FLOPs and bytes."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
