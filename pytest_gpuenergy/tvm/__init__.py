"""Kernels from Apache TVM: its search space for the tuner, and the store that lowers records."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
