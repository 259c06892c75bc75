"""Kernels, which compute workloads: source text, launches, argument order, origin."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
