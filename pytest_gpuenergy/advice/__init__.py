"""Finds the best setpoint and kernels for several workloads that run one after another."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
